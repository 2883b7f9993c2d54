package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.layer.ParallelMode;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.Reduction;
import dev.chagres.optim.AdamW;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pipeline.PipelineModel;
import dev.chagres.pipeline.PipelineParallel;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Ranks that cannot go on without one that has failed say what went with it. */
@Tag("L0")
@Tag("L2")
@Timeout(60)
class LostLayersTest {
    private static final String SPLIT =
            "shrink: expected ranks with whole layers, got tensor-parallel rank %d of 2, of which shards were lost"
                    + " with a rank; ";
    private static final String PARTS =
            "shrink: expected ranks that each compute the whole model, got stages of a pipeline or parts of tokens,"
                    + " which need the failed rank; ";

    /** Makes what a rank has of a model, and trains it data-parallel. */
    private interface Model {
        void use(Rank rank, Mesh mesh, Body body);
    }

    private interface Body {
        void run(Parameters parameters);
    }

    /** Returns what each rank that is left says when it is to shrink without {@code victim}. */
    private static Map<Integer, String> refusals(MeshShape shape, int victim, Model model) {
        DevicesNeeded.assume(shape.ranks());
        Map<Integer, String> texts = new TreeMap<>();
        CyclicBarrier made = new CyclicBarrier(shape.ranks());
        assertThrows(
                RankFailedException.class,
                () -> Ranks.local(shape.ranks()).each(rank -> {
                    try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                        model.use(rank, mesh, parameters -> {
                            try (DataParallel training = DataParallel.of(
                                            parameters, mesh.along(MeshDimension.REPLICATE, MeshDimension.CONTEXT));
                                    AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
                                await(made);
                                if (rank.index() == victim) {
                                    throw new IllegalArgumentException("it is ill");
                                }
                                awaitFailure(rank);
                                String text = assertThrows(
                                                IllegalStateException.class, () -> training.shrink(optimizer))
                                        .getMessage();
                                synchronized (texts) {
                                    texts.put(rank.index(), String.valueOf(text));
                                }
                            }
                        });
                    }
                }));
        assertEquals(shape.ranks() - 1, texts.size(), texts.toString());
        return texts;
    }

    /** Waits until all ranks have made what they train with: a rank that fails before would end that. */
    private static void await(CyclicBarrier made) {
        try {
            made.await(30, TimeUnit.SECONDS);
        } catch (InterruptedException | BrokenBarrierException | TimeoutException failure) {
            throw new AssertionError(failure);
        }
    }

    private static void awaitFailure(Rank rank) {
        try (Scope scope = rank.device().openScope()) {
            Tensor one = scope.tensor(DType.FLOAT32, 1);
            one.zero(rank.device().stream());
            assertThrows(RankFailedException.class, () -> {
                while (true) {
                    rank.communicator().allReduce(one, one, Reduction.SUM, rank.device().stream());
                }
            });
        }
    }

    private static void useLinear(Rank rank, Mesh mesh, Body body) {
        ModelPlan plan = new ModelPlan(
                TensorParallel.of(mesh.along(MeshDimension.TENSOR)),
                ContextParallel.of(mesh.along(MeshDimension.CONTEXT)));
        new Linear(16, 16, Bias.PRESENT, ParallelMode.COLUMN, Initializer.zeros(), plan.group("split"));
        new Linear(16, 16, Initializer.zeros(), plan.group("whole"));
        try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 1)) {
            body.run(parameters);
        }
    }

    private static MeshShape shape(MeshDimension dimension) {
        return MeshShape.ofOne().with(dimension, 2);
    }

    @Test
    void partsOfLayers() {
        assertEquals(
                Map.of(
                        0,
                        SPLIT.formatted(0)
                                + "with rank 1 went part 1 of 2 of the heads, columns and vocabulary of:\n"
                                + "  split.weight, split.bias\n"
                                + "no other rank has that: start again from a saved state"),
                refusals(shape(MeshDimension.TENSOR), 1, LostLayersTest::useLinear));
    }

    @Test
    void partsThatAnotherCopyHas() {
        String lost = "with rank 2 went part 0 of 2 of the heads, columns and vocabulary of:\n"
                + "  split.weight, split.bias\n"
                + "ranks [0] have the same; start again from a saved state";
        assertEquals(
                Map.of(0, SPLIT.formatted(0) + lost, 1, SPLIT.formatted(1) + lost, 3, SPLIT.formatted(1) + lost),
                refusals(shape(MeshDimension.TENSOR).with(MeshDimension.REPLICATE, 2), 2, LostLayersTest::useLinear));
    }

    @Test
    void partsOfTheTokens() {
        assertEquals(
                Map.of(
                        1,
                        PARTS + "with rank 0 went part 0 of 2 of the tokens, and a copy of:\n"
                                + "  split.weight, split.bias, whole.weight, whole.bias\n"
                                + "ranks [1] have the same; start again from a saved state"),
                refusals(shape(MeshDimension.CONTEXT), 0, LostLayersTest::useLinear));
    }

    @Test
    void stagesOfAPipeline() {
        String text = refusals(shape(MeshDimension.PIPELINE), 1, (rank, mesh, body) -> {
                    try (PipelineModel model = new PipelineModel(
                                    rank.device(), DType.FLOAT32, 2, 2, 1, rank.index(), PipelineModel.Variant.PLAIN);
                            PipelineParallel pipeline =
                                    PipelineParallel.of(model.stages(), model.parameters, PipelineModel.HIDDEN, mesh)) {
                        assertFalse(pipeline.passes().isEmpty());
                        body.run(model.parameters);
                    }
                })
                .get(0);
        assertTrue(text.startsWith(PARTS + "with rank 1 went the stages of pipeline rank 1 of 2:\n  "), text);
        assertTrue(text.contains("layers.1.") && text.contains("head.dense.weight"), text);
        assertFalse(text.contains("layers.0."), text);
        assertTrue(text.endsWith("\nno other rank has that: start again from a saved state"), text);
    }

    /** A communicator that no mesh has made says not which rank has what. */
    @Test
    void ranksWithoutAMesh() {
        DevicesNeeded.assume(2);
        CyclicBarrier made = new CyclicBarrier(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    var alone = rank.communicator()
                            .split(rank.index(), 0, rank.communicator().config());
                    ModelPlan plan = new ModelPlan(TensorParallel.of(rank.communicator()));
                    new Linear(16, 16, Bias.PRESENT, ParallelMode.COLUMN, Initializer.zeros(), plan.group("split"));
                    try (alone;
                            Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 1);
                            DataParallel training = DataParallel.of(parameters, alone);
                            AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
                        await(made);
                        if (rank.index() == 1) {
                            throw new IllegalArgumentException("it is ill");
                        }
                        awaitFailure(rank);
                        training.shrink(optimizer);
                    }
                }));
        assertEquals(
                "shrink: expected ranks with whole layers, got tensor-parallel rank 0 of 2, of which shards were lost"
                        + " with a rank;"
                        + " start again from a saved state",
                failure.getSuppressed()[0].getMessage());
    }
}
