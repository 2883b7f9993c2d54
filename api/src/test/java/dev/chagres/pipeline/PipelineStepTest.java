package dev.chagres.pipeline;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.ZeroStage;
import java.lang.management.ManagementFactory;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Steps of a pipeline of linear layers: memory, and what is refused. */
@Tag("L0")
@Tag("L2")
class PipelineStepTest {
    private static final int WIDTH = 16;
    private static final int TOKENS = 32;
    private static final AdamW.Config ADAM = AdamW.Config.standard();

    /** One linear layer a stage; the loss is half the sum of squares. */
    private static final class Squares implements PipelineStage, AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final Layer[] layers;
        private final Tensor[] last = new Tensor[64];
        private final PipelinePlan stages;
        private final Parameters parameters;
        private final Mesh mesh;
        private final DataParallel copies;
        private final PipelineParallel pipeline;
        private int tokens = TOKENS;
        private int drawing = -1;

        Squares(Rank rank, int ranks, int stagesPerRank) {
            layers = new Layer[ranks * stagesPerRank];
            stages = PipelinePlan.of(plan, ranks, stagesPerRank);
            for (int i = 0; i < layers.length; i++) {
                layers[i] = new Linear(WIDTH, WIDTH, Initializer.normal(0.1f), plan.group("layers." + i));
                stages.place(i, plan.group("layers." + i).parameters());
            }
            MeshShape shape = MeshShape.ofOne().with(MeshDimension.PIPELINE, ranks);
            mesh = Mesh.of(rank.communicator(), shape);
            parameters = Parameters.allocate(rank.device(), stages.part(rank.index()), DType.FLOAT32, 1);
            copies = DataParallel.of(parameters, mesh.along(MeshDimension.REPLICATE));
            pipeline = PipelineParallel.of(stages, parameters, WIDTH, mesh);
        }

        @Override
        public long tokens(int microBatch) {
            return tokens;
        }

        @Override
        public void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass) {
            Tensor in = x;
            if (in == null) {
                in = pass.scope().tensor(DType.FLOAT32, tokens, WIDTH);
                in.zero(pass.stream());
            }
            if (microBatch == drawing) {
                pass.draw();
            }
            if (y == null) {
                last[microBatch] = layers[stage].forward(in, pass);
            } else {
                layers[stage].forward(in, y, pass);
            }
        }

        @Override
        public void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass) {
            Tensor gradient = dy;
            if (gradient == null) {
                gradient = pass.scope().like(last[microBatch]);
                gradient.copyFrom(pass.stream(), last[microBatch]);
            }
            if (dx == null) {
                layers[stage].backward(gradient, pass);
            } else {
                layers[stage].backward(gradient, dx, pass);
            }
        }

        void step(int microBatches, GradientNorm norm, AdamW optimizer) {
            pipeline.run(this, microBatches);
            copies.sumGradients();
            norm.compute();
            optimizer.step(1e-3f, norm);
        }

        @Override
        public void close() {
            pipeline.close();
            copies.close();
            parameters.close();
            mesh.close();
        }
    }

    private static Squares onOneRank(Rank rank) {
        return new Squares(rank, 1, 1);
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void aStepMakesNoGarbageAndTakesNoMemoryFromTheSecondOn(int stagesPerRank) {
        DevicesNeeded.assume(2);
        List<Long> garbage = Ranks.local(2).run(rank -> {
            ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
            try (Squares model = new Squares(rank, 2, stagesPerRank);
                    AdamW optimizer = new AdamW(model.parameters, ADAM)) {
                GradientNorm norm = new GradientNorm(model.parameters, 1);
                model.step(4, norm, optimizer);
                model.step(4, norm, optimizer);
                long held = rank.device().peakHeldBytes();
                long least = Long.MAX_VALUE;
                for (int i = 0; i < 2_000; i++) {
                    long before = threads.getCurrentThreadAllocatedBytes();
                    model.step(4, norm, optimizer);
                    least = Math.min(least, threads.getCurrentThreadAllocatedBytes() - before);
                }
                assertEquals(held, rank.device().peakHeldBytes());
                return least;
            }
        });
        assertEquals(List.of(0L, 0L), garbage);
    }

    /** Between steps, which take their memory for what travels from the same scope. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void anEvaluationMakesNoGarbageAndTakesNoMemoryFromTheSecondOn(int stagesPerRank) {
        DevicesNeeded.assume(2);
        List<Long> garbage = Ranks.local(2).run(rank -> {
            ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
            try (Squares model = new Squares(rank, 2, stagesPerRank);
                    AdamW optimizer = new AdamW(model.parameters, ADAM)) {
                GradientNorm norm = new GradientNorm(model.parameters, 1);
                for (int i = 0; i < 2; i++) {
                    model.step(4, norm, optimizer);
                    model.pipeline.evaluate(model, 6);
                }
                long held = rank.device().peakHeldBytes();
                long least = Long.MAX_VALUE;
                for (int i = 0; i < 2_000; i++) {
                    long before = threads.getCurrentThreadAllocatedBytes();
                    model.pipeline.evaluate(model, 6);
                    least = Math.min(least, threads.getCurrentThreadAllocatedBytes() - before);
                    model.step(4, norm, optimizer);
                }
                assertEquals(held, rank.device().peakHeldBytes());
                return least;
            }
        });
        assertEquals(List.of(0L, 0L), garbage);
    }

    /** What a micro-batch has given lies in the pass until the next one begins, so many take as much as one. */
    @Test
    void anEvaluationOfManyMicroBatchesTakesTheMemoryOfOne() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            try (Squares model = new Squares(rank, 2, 2)) {
                model.pipeline.evaluate(model, 1);
                long one = model.pipeline.evaluationPass().peakBytes();
                long held = rank.device().peakHeldBytes();
                model.pipeline.evaluate(model, 9);
                assertEquals(one, model.pipeline.evaluationPass().peakBytes());
                assertEquals(held, rank.device().peakHeldBytes());
                assertTrue(one <= 2L * TOKENS * WIDTH * Float.BYTES, "input of the model and output: " + one);
            }
        });
    }

    @Test
    void refusesEvaluationsThatDoNotFit() {
        Ranks.local(1).each(rank -> {
            try (Squares model = onOneRank(rank)) {
                assertThrown(
                        IllegalArgumentException.class,
                        "microBatches: expected at least 1, got 0",
                        () -> model.pipeline.evaluate(model, 0));
                model.tokens = 0;
                assertThrown(
                        IllegalArgumentException.class,
                        "tokens: expected at least 1 in micro-batch 0, got 0",
                        () -> model.pipeline.evaluate(model, 1));
                model.tokens = TOKENS;
                assertThrown(
                        CaptureException.class,
                        "evaluate: expected a stream that does not capture, got " + rank.device().stream()
                                + "; steps of a pipeline are enqueued one by one",
                        () -> {
                            try (var graph = rank.device().stream().capture(() -> model.pipeline.evaluate(model, 1))) {
                                graph.launch();
                            }
                        });
                model.drawing = 1;
                model.pipeline.evaluate(model, 2); // the last stage may draw
                model.pipeline.close();
                String closed = "the pipeline of 1 stages, rank 0 of 1 is closed";
                assertThrown(IllegalStateException.class, closed, () -> model.pipeline.evaluate(model, 1));
                assertThrown(IllegalStateException.class, closed, () -> model.pipeline.evaluationPass());
            }
        });
    }

    @Test
    void aStageBeforeTheLastThatDrawsInAnEvaluationIsRefused() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    try (Squares model = new Squares(rank, 2, 1)) {
                        model.drawing = 1;
                        model.pipeline.evaluate(model, 3);
                    }
                }));
        assertEquals(
                "stage 0: expected no draws of random numbers in an evaluation before the last stage, got 1; later"
                        + " stages would draw other numbers than a single rank does",
                failure.getCause().getMessage());
    }

    @Test
    void refusesMicroBatchesThatDoNotFit() {
        Ranks.local(1).each(rank -> {
            try (Squares model = onOneRank(rank)) {
                assertThrown(
                        IllegalArgumentException.class,
                        "microBatches: expected at least 1, got 0",
                        () -> model.pipeline.run(model, 0));
                model.tokens = 0;
                assertThrown(
                        IllegalArgumentException.class,
                        "tokens: expected at least 1 in micro-batch 0, got 0",
                        () -> model.pipeline.run(model, 1));
                model.tokens = TOKENS;
                model.pipeline.run(model, 1);
                model.drawing = 1;
                assertThrown(
                        IllegalStateException.class,
                        "stage 0: expected 0 draws of random numbers, as in the first micro-batch, got 1; later"
                                + " stages would draw other numbers than a single rank does",
                        () -> model.pipeline.run(model, 2));
                assertTrue(model.parameters.all().stream().noneMatch(one -> one.hasGradient()), "forgotten");
                model.drawing = -1;
                model.pipeline.run(model, 2);
                assertTrue(model.parameters.all().stream().allMatch(one -> one.hasGradient()));
                model.parameters.forgetGradients();
                assertThrown(
                        CaptureException.class,
                        "run: expected a stream that does not capture, got " + rank.device().stream()
                                + "; steps of a pipeline are enqueued one by one",
                        () -> {
                            try (var graph = rank.device().stream().capture(() -> model.pipeline.run(model, 1))) {
                                graph.launch();
                            }
                        });
                model.pipeline.close();
                assertThrown(
                        IllegalStateException.class,
                        "the pipeline of 1 stages, rank 0 of 1 is closed",
                        () -> model.pipeline.run(model, 1));
            }
        });
    }

    @Test
    void refusesParametersThatAreNotItsPart() {
        Ranks.local(1).each(rank -> {
            MeshShape one = MeshShape.ofOne();
            try (Squares model = onOneRank(rank);
                    Mesh mesh = Mesh.of(rank.communicator(), one)) {
                ModelPlan two = new ModelPlan();
                new Linear(WIDTH, WIDTH, Initializer.normal(0.1f), two.group("a"));
                PipelinePlan other = PipelinePlan.of(two, 1, 1);
                assertThrown(
                        IllegalStateException.class,
                        "parameter a.weight is on no stage: call place(stage, parameters) for it",
                        () -> other.part(0));
                assertThrown(
                        IllegalArgumentException.class,
                        "stage: expected 0 to 0, got 1",
                        () -> other.place(1, two.parameters()));
                assertThrown(
                        IllegalArgumentException.class,
                        "parameters: expected those of the plan, got layers.0.weight",
                        () -> other.place(0, model.plan.parameters()));
                other.place(0, two.parameters());
                assertThrown(
                        IllegalArgumentException.class,
                        "parameters: expected those of plan.part(0), got others: allocate them of that part",
                        () -> PipelineParallel.of(other, model.parameters, WIDTH, mesh));
                assertThrown(
                        IllegalArgumentException.class,
                        "width: expected at least 1, got 0",
                        () -> PipelineParallel.of(model.stages, model.parameters, 0, mesh));
                assertThrown(
                        IllegalStateException.class,
                        "the parameters belong to rank 0 of a pipeline of 1 already, even after that is closed; allocate new"
                                + " Parameters of the same part",
                        () -> PipelineParallel.of(model.stages, model.parameters, WIDTH, mesh));
                assertThrown(
                        IllegalArgumentException.class,
                        "plan: expected one for 1 ranks, as many as the mesh has along PIPELINE, got one for 2",
                        () -> PipelineParallel.of(PipelinePlan.of(two, 2, 1), model.parameters, WIDTH, mesh));
            }
        });
    }

    /** Reads the weights of a layer. */
    private record Reading(Linear layer) implements PipelineStage {
        @Override
        public long tokens(int microBatch) {
            return 1;
        }

        @Override
        public void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass) {
            Tensor in = pass.scope().tensor(DType.FLOAT32, 1, WIDTH);
            in.zero(pass.stream());
            layer.forward(in, pass);
        }

        @Override
        public void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass) {
            Tensor gradient = pass.scope().tensor(DType.FLOAT32, 1, WIDTH);
            gradient.zero(pass.stream());
            layer.backward(gradient, pass);
        }
    }

    @Test
    void shardedWeightsNeedFollowedPasses() {
        Ranks.local(1).each(rank -> {
            ModelPlan plan = new ModelPlan();
            Reading stage = new Reading(new Linear(WIDTH, WIDTH, Initializer.normal(0.1f), plan.group("a")));
            PipelinePlan stages = PipelinePlan.of(plan, 1, 1).place(0, plan.parameters());
            try (Mesh mesh = Mesh.of(rank.communicator(), MeshShape.ofOne());
                    FullySharded shared = FullySharded.allocate(
                            stages.part(0), DType.FLOAT32, 1, ZeroStage.THREE, rank.communicator());
                    PipelineParallel pipeline = PipelineParallel.of(stages, shared.parameters(), WIDTH, mesh)) {
                assertThrown(
                        IllegalStateException.class,
                        "weight of a.weight: sharded among 1 ranks, it is gathered only while layers run, and only in"
                                + " a pass that the strategy follows; call strategy.follow(…) for this pass, also for"
                                + " evaluation, or save and load all by RunState.of(strategy)",
                        () -> pipeline.run(stage, 2));
                assertThrown(
                        IllegalStateException.class,
                        "weight of a.weight: sharded among 1 ranks, it is gathered only while layers run, and only in"
                                + " a pass that the strategy follows; call strategy.follow(…) for this pass, also for"
                                + " evaluation, or save and load all by RunState.of(strategy)",
                        () -> pipeline.evaluate(stage, 2));
                pipeline.passes().forEach(shared::follow);
                shared.follow(pipeline.evaluationPass());
                pipeline.run(stage, 2);
                pipeline.evaluate(stage, 2);
                shared.sumGradients();
            }
        });
    }

    @Test
    void ranksWithOtherPlansAreRefused() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    ModelPlan plan = new ModelPlan();
                    PipelinePlan stages = PipelinePlan.of(plan, 2, 1);
                    for (int i = 0; i < 2; i++) {
                        String name = "layers." + (i + rank.index());
                        new Linear(WIDTH, WIDTH, Initializer.normal(0.1f), plan.group(name));
                        stages.place(i, plan.group(name).parameters());
                    }
                    MeshShape shape = MeshShape.ofOne().with(MeshDimension.PIPELINE, 2);
                    try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                            Parameters parameters =
                                    Parameters.allocate(rank.device(), stages.part(rank.index()), DType.FLOAT32, 1);
                            PipelineParallel pipeline = PipelineParallel.of(stages, parameters, WIDTH, mesh)) {
                        throw new AssertionError(pipeline + " was made");
                    }
                }));
        assertEquals(
                "plan: expected the same on all ranks of the pipeline, got another on rank 1 than on rank 0; declare the whole"
                        + " model on each, with the same types, stages and width and the same parameters frozen",
                failure.getCause().getMessage());
    }

    @Test
    void aLayerOfAnotherStageHasNoWeights() {
        ModelPlan plan = new ModelPlan();
        Linear first = new Linear(WIDTH, WIDTH, Initializer.normal(0.1f), plan.group("a"));
        Linear second = new Linear(WIDTH, WIDTH, Initializer.normal(0.1f), plan.group("b"));
        PipelinePlan stages = PipelinePlan.of(plan, 2, 1)
                .place(0, plan.group("a").parameters())
                .place(1, plan.group("b").parameters());
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, stages.part(0), DType.FLOAT32, 1);
                Pass pass = Pass.training(device)) {
            assertEquals(2, parameters.all().size());
            assertEquals(WIDTH * WIDTH + WIDTH, parameters.count());
            assertEquals(2 * 4L * (WIDTH * WIDTH + WIDTH), parameters.byteSize(), "weights and gradients of one stage");
            pass.begin();
            Tensor x = pass.scope().tensor(DType.FLOAT32, 2, WIDTH);
            x.zero(device.stream());
            Tensor y = first.forward(x, pass);
            assertThrown(
                    IllegalStateException.class,
                    "parameter b.weight has no memory yet: call Parameters.allocate",
                    () -> second.forward(y, pass));
        }
    }
}
