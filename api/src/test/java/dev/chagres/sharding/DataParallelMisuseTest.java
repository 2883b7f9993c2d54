package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Calls with which the ranks' weights would part are refused, and a right step can follow. */
@Tag("L0")
@Tag("L2")
class DataParallelMisuseTest {
    private static void microBatch(SmallModel model, Pass pass) {
        int[][] batch = SmallModel.batch(1, 4, 3);
        pass.begin();
        pass.sequences(Sequences.packed(pass.scope(), 4, 3));
        Tensor embedded = model.embedding.forward(model.ints(pass.scope(), batch[0]), pass);
        Tensor logits = model.head.forward(model.layers.forward(embedded, pass), pass);
        model.crossEntropy.forward(logits, model.ints(pass.scope(), batch[1]), pass);
        model.backward(pass);
    }

    @Test
    void stepsInAnotherOrder() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            try (SmallModel model = SmallModel.plain(rank.device(), DType.FLOAT32);
                    AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard());
                    Pass pass = Pass.training(rank.device());
                    DataParallel training = DataParallel.of(model.parameters, rank.communicator())) {
                GradientNorm norm = new GradientNorm(model.parameters, 1);
                microBatch(model, pass);
                String unsummed =
                        "gradients: expected the sum over 2 ranks, got only this rank's, by which the ranks' weights"
                                + " would diverge; call sumGradients() before the norm and the optimizer's step";
                assertThrown(IllegalStateException.class, unsummed, norm::compute);
                assertThrown(IllegalStateException.class, unsummed, () -> optimizer.step(1e-2f));
                assertEquals(0, model.parameters.step());
                assertEquals(0, optimizer.step(), "with another number the moments would be corrected otherwise");
                training.sumGradients();
                IllegalStateException again = assertThrows(IllegalStateException.class, () -> microBatch(model, pass));
                assertTrue(
                        String.valueOf(again.getMessage())
                                .endsWith(
                                        ": summed over the ranks already, got another backward call; call sumGradients"
                                                + " after the step's last backward call, and the optimizer's step before the next"),
                        again.getMessage());
                microBatch(model, pass); // The refused call has failed its step, whose gradients are forgotten.
                training.sumGradients();
                norm.compute();
                optimizer.step(1e-2f, norm);
                assertEquals(1, model.parameters.step());
                assertEquals(1, optimizer.step());
            }
        });
    }

    @Test
    void parametersBelongToOne() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Communicator world = rank.communicator();
            try (SmallModel model = SmallModel.plain(rank.device(), DType.FLOAT32)) {
                try (DataParallel training = DataParallel.of(model.parameters, world)) {
                    assertThrown(
                            IllegalStateException.class,
                            "the parameters belong to data-parallel training on rank " + rank.index()
                                    + " of 2, 1 bucket already; close that before another shards them",
                            () -> DataParallel.of(model.parameters, world));
                    assertTrue(training.explain().contains("; 0 were sent while backward was running:"));
                }
                DataParallel.of(model.parameters, world).close();
            }
        });
    }

    @Test
    void settingsAreTheSameOnAllRanks() {
        DevicesNeeded.assume(2);
        RankFailedException buckets = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    try (SmallModel model = SmallModel.plain(rank.device(), DType.FLOAT32)) {
                        DataParallel.of(
                                model.parameters,
                                rank.communicator(),
                                DataParallelConfig.standard().withBucketBytes(1000 + rank.index()));
                    }
                }));
        assertEquals(
                "bucketBytes: expected the same on all ranks, got 1001 on rank 1 and 1000 on rank 0",
                buckets.getCause().getMessage());
        RankFailedException stages = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    ModelPlan plan = new ModelPlan();
                    plan.group("layer").declare("weight", Initializer.ones(), 4);
                    ZeroStage stage = rank.index() == 0 ? ZeroStage.ONE : ZeroStage.TWO;
                    FullySharded.allocate(plan, DType.FLOAT32, 1, stage, rank.communicator());
                }));
        assertEquals(
                "stage: expected the same on all ranks, got 2 on rank 1 and 1 on rank 0",
                stages.getCause().getMessage());
    }
}
