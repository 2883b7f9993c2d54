package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.UniqueId;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.Ranks;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** N ranks with a part of the sequences each compute what one rank computes that accumulates N micro-batches. */
@Tag("L0")
@Tag("L2")
class DataParallelTest {
    private static final int STEPS = 8;
    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f);

    /** What training gave: losses and gradient norms of each step, and the last weights. */
    private record Run(float[] losses, float[] norms, List<float[]> weights) {}

    private static final Consumer<ModelPlan> NOTHING_FROZEN = plan -> {};
    private static final Consumer<ModelPlan> BOTTOM_FROZEN =
            plan -> plan.groups().get("layers.0").forEach(Parameter::freeze);

    /** Sequences of part {@code part} of a step: unequal, and none at all for the last of four. */
    private static int[] lengths(int part) {
        return switch (part) {
            case 0 -> new int[] {7, 1, 12, 5};
            case 1 -> new int[] {3};
            case 2 -> new int[] {16, 2};
            default -> new int[] {};
        };
    }

    private static int[][] batch(int step, int part) {
        return SmallModel.batch(100L * step + part, lengths(part));
    }

    private static int labelled(int step, int part) {
        int count = 0;
        for (int label : batch(step, part)[1]) {
            count += label >= 0 ? 1 : 0;
        }
        return count;
    }

    /** Forward and backward of one part; returns its part of the loss. */
    private static float part(SmallModel model, Pass pass, int step, int part, Tensor divisor) {
        int[] lengths = lengths(part);
        if (lengths.length == 0) {
            return 0;
        }
        int[][] batch = batch(step, part);
        pass.begin();
        pass.seed(5, step, part);
        pass.sequences(Sequences.packed(pass.scope(), lengths));
        Tensor embedded = model.embedding.forward(model.ints(pass.scope(), batch[0]), pass);
        Tensor logits = model.head.forward(model.layers.forward(embedded, pass), pass);
        Tensor loss = model.crossEntropy.forward(logits, model.ints(pass.scope(), batch[1]), divisor, pass);
        float value = loss.toFloats(model.device.stream())[0];
        model.backward(pass);
        return value;
    }

    private static Run oneRank(int parts, float dropout, Consumer<ModelPlan> frozen) {
        try (Device device = Device.open();
                SmallModel model = new SmallModel(device, DType.FLOAT32, dropout, UnaryOperator.identity(), frozen);
                AdamW optimizer = new AdamW(model.parameters, ADAM);
                Pass pass = Pass.training(device);
                Scope scope = device.openScope()) {
            Stream stream = device.stream();
            GradientNorm norm = new GradientNorm(model.parameters, 1);
            Tensor divisor = scope.tensor(DType.INT32, 1);
            float[] losses = new float[STEPS];
            float[] norms = new float[STEPS];
            for (int step = 0; step < STEPS; step++) {
                int count = 0;
                for (int part = 0; part < parts; part++) {
                    count += labelled(step, part);
                }
                divisor.set(stream, count);
                for (int part = 0; part < parts; part++) {
                    losses[step] += part(model, pass, step, part, divisor);
                }
                norm.compute();
                norms[step] = norm.norm().toFloats(stream)[0];
                optimizer.step(1e-2f, norm);
            }
            return new Run(losses, norms, weights(model));
        }
    }

    private static List<float[]> weights(SmallModel model) {
        List<float[]> weights = new ArrayList<>();
        for (Parameter parameter : model.parameters.all()) {
            weights.add(parameter.weight().toFloats(model.device.stream()));
        }
        return weights;
    }

    private static List<Run> ranks(int ranks, float dropout, Consumer<ModelPlan> frozen) {
        return Ranks.local(ranks).run(rank -> {
            Device device = rank.device();
            Stream stream = device.stream();
            try (SmallModel model = new SmallModel(device, DType.FLOAT32, dropout, UnaryOperator.identity(), frozen);
                    AdamW optimizer = new AdamW(model.parameters, ADAM);
                    Pass pass = Pass.training(device);
                    Scope scope = device.openScope()) {
                if (rank.index() != 0) {
                    Parameter first = model.parameters.all().getLast();
                    first.weight().zero(stream); // rank 0's weights count
                    model.parameters.changed();
                }
                GradientNorm norm = new GradientNorm(model.parameters, 1);
                Tensor labelled = scope.tensor(DType.INT32, 1);
                float[] losses = new float[STEPS];
                float[] norms = new float[STEPS];
                // @start region="step"
                try (DataParallel training = DataParallel.of(model.parameters, rank.communicator())) {
                    for (int step = 0; step < STEPS; step++) {
                        labelled.set(stream, labelled(step, rank.index()));
                        training.sumOverRanks(labelled);
                        losses[step] = part(model, pass, step, rank.index(), labelled);
                        training.sumGradients();
                        norm.compute();
                        norms[step] = norm.norm().toFloats(stream)[0];
                        optimizer.step(1e-2f, norm);
                    }
                }
                // @end
                return new Run(losses, norms, weights(model));
            }
        });
    }

    @ParameterizedTest
    @CsvSource({"1, 0", "2, 0", "2, 0.1", "3, 0.1", "4, 0", "4, 0.1"})
    void ranksComputeWhatOneRankAccumulates(int count, float dropout) {
        compare(count, dropout, NOTHING_FROZEN);
    }

    @Test
    void frozenParametersToo() {
        compare(3, 0, BOTTOM_FROZEN);
    }

    private static void compare(int count, float dropout, Consumer<ModelPlan> frozen) {
        Run expected = oneRank(count, dropout, frozen);
        List<Run> actual = ranks(count, dropout, frozen);
        for (int step = 0; step < STEPS; step++) {
            float loss = 0;
            for (Run run : actual) {
                loss += run.losses[step];
                assertEquals(
                        expected.norms[step], run.norms[step], 1e-4 * expected.norms[step], "norm of step " + step);
            }
            assertEquals(expected.losses[step], loss, 1e-5 * expected.losses[step], "loss of step " + step);
        }
        assertTrue(expected.losses[STEPS - 1] < expected.losses[0]);
        for (Run run : actual) {
            for (int i = 0; i < run.weights.size(); i++) {
                assertArrayEquals(
                        actual.getFirst().weights.get(i), run.weights.get(i), "weights are the same on all ranks");
            }
        }
    }

    @Test
    void otherParametersAreRefusedOnEachRank() {
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    Consumer<ModelPlan> frozen = rank.index() == 1 ? BOTTOM_FROZEN : NOTHING_FROZEN;
                    try (SmallModel model =
                            new SmallModel(rank.device(), DType.FLOAT32, 0, UnaryOperator.identity(), frozen)) {
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
            assertThrown(IllegalStateException.class, "the data-parallel training is closed", training::sumGradients);
        }
    }
}
