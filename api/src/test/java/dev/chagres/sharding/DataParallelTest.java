package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.UniqueId;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.sharding.RankedRun.Variant;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** N ranks with a part of the sequences each compute what one rank computes that accumulates N micro-batches. */
@Tag("L0")
@Tag("L2")
class DataParallelTest {
    private enum Between {
        NOTHING,
        EVALUATION
    }

    private static Strategy strategy(ModelPlan plan, DType dtype, Rank rank) {
        Parameters parameters = Parameters.allocate(rank.device(), plan, dtype, 7);
        if (rank.index() != 0) {
            parameters.weights().zero(rank.device().stream()); // rank 0's weights count
            parameters.changed();
        }
        // @start region="parallel"
        DataParallel strategy = DataParallel.of(parameters, rank.communicator());
        // @end
        return strategy;
    }

    @ParameterizedTest
    @CsvSource({"2, 2, DROPOUT", "3, 1, FROZEN_BOTTOM"})
    void ranksComputeWhatOneRankAccumulates(int ranks, int microBatches, Variant variant) {
        DevicesNeeded.assume(ranks);
        RankedRun expected = RankedRun.ofOne(ranks * microBatches, DType.FLOAT32, variant);
        expected.assertSame(Ranks.local(ranks)
                .run(rank -> RankedRun.of(rank, DataParallelTest::strategy, microBatches, DType.FLOAT32, variant)));
    }

    /** Layers are recomputed, and a tied weight is used first and last: its gradient is summed once backward has come to both. */
    @Test
    void anEvaluationBetweenForwardAndBackwardChangesNothing() {
        DevicesNeeded.assume(2);
        int[] lengths = {7, 5};
        int[][] batch = SmallModel.batch(1, lengths);
        List<float[]> all = new ArrayList<>();
        for (Between between : Between.values()) {
            all.addAll(Ranks.local(2).run(rank -> {
                try (SmallModel model = new SmallModel(rank.device(), DType.FLOAT32, 0, Recomputed::new, plan -> {});
                        Pass pass = Pass.training(rank.device());
                        Pass evaluation = Pass.evaluation(rank.device())) {
                    DataParallel strategy = DataParallel.of(model.parameters, rank.communicator());
                    strategy.follow(pass);
                    strategy.follow(evaluation);
                    pass.begin();
                    strategy.lastMicroBatch();
                    Tensor logits = model.logits(pass, batch[0], lengths);
                    Tensor labelled = model.ints(pass.scope(), 10);
                    model.crossEntropy.forward(logits, model.ints(pass.scope(), batch[1]), labelled, pass);
                    if (between == Between.EVALUATION) {
                        model.logits(evaluation, batch[0], lengths);
                        evaluation.end();
                    }
                    model.backward(pass);
                    strategy.sumGradients();
                    return model.parameters.gradients().toFloats(rank.device().stream());
                }
            }));
        }
        for (float[] one : all) {
            assertArrayEquals(all.getFirst(), one);
        }
    }

    @Test
    void otherParametersAreRefusedOnEachRank() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    Variant variant = rank.index() == 1 ? Variant.FROZEN_BOTTOM : Variant.PLAIN;
                    try (SmallModel model =
                            new SmallModel(rank.device(), DType.FLOAT32, 0, variant.wrapper(), variant.frozen())) {
                        DataParallel.of(model.parameters, rank.communicator());
                    }
                }));
        String text = String.valueOf(failure.getCause().getMessage());
        assertTrue(
                text.matches(
                        "parameters: expected the same on all ranks, got others on rank 1 \\(\\d+ elements\\) than on rank"
                                + " 0 \\(\\d+\\); build the same plan, with the same types and the same parameters frozen, on each"),
                text);
    }

    @Test
    void misuse() {
        DevicesNeeded.assume(2);
        try (Device device = Device.open();
                Device other = Device.open(1);
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Communicator far = Communicator.open(other, UniqueId.create(), 1, 0, CommunicatorConfig.standard());
                Communicator own = Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard());
                Scope scope = device.openScope()) {
            assertThrown(
                    IllegalArgumentException.class,
                    "parameters: expected those of device 1, got some of device 0",
                    () -> DataParallel.of(model.parameters, far));
            DataParallel training = DataParallel.of(model.parameters, own);
            assertThrown(
                    IllegalStateException.class,
                    "lastMicroBatch: expected follow(pass) before, so that gradients are reduced during backward;"
                            + " call it with the training pass",
                    training::lastMicroBatch);
            assertThrown(
                    IllegalArgumentException.class,
                    "labelled: expected INT32[1], got INT64[1]",
                    () -> training.sumOverRanks(scope.tensor(DType.INT64, 1)));
            training.sumGradients();
            assertThrown(
                    IllegalStateException.class,
                    "sumGradients: expected one call a step, got a second one; take the optimizer's step before, or call"
                            + " Parameters.forgetGradients",
                    training::sumGradients);
            model.parameters.forgetGradients();
            training.sumGradients();
            model.parameters.nextStep();
            training.sumGradients();
            training.close();
            training.close();
            assertThrown(
                    IllegalStateException.class,
                    "the data-parallel training on rank 0 of 1, 1 bucket is closed",
                    training::sumGradients);
        }
    }
}
