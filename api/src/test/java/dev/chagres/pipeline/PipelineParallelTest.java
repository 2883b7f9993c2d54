package dev.chagres.pipeline;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.Safetensors;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.AdamW.Masters;
import dev.chagres.optim.GradientNorm;
import dev.chagres.optim.ParameterGroup;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import dev.chagres.pipeline.PipelineModel.Variant;
import dev.chagres.sharding.DataParallel;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Ranks that have stages of a model each compute what one rank computes that accumulates the same micro-batches. */
@Tag("L0")
@Tag("L2")
class PipelineParallelTest {
    private static final int STEPS = 20;
    private static final float RATE = 1e-3f;
    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f);
    private static final boolean REFERENCE = Provider.current() == Provider.REFERENCE;

    /** Steps from {@code first} to before {@code end}; from a state and to one, where there are files. */
    private record Span(
            int first,
            int end,
            @Nullable Path loaded,
            @Nullable Path saved) {
        static final Span ALL = new Span(0, STEPS, null, null);
    }

    /** What the steps gave: gradients of the first one, weights after the last one, by name. */
    private record Run(float[] losses, float[] norms, Map<String, float[]> gradients, Map<String, float[]> weights) {}

    /** One model and its division. */
    private record Division(
            int ranks,
            int stagesPerRank,
            int layers,
            int microBatches,
            DType dtype,
            Variant variant,
            Masters masters,
            List<ParameterGroup> groups) {
        Division(int ranks, int stagesPerRank, int layers, int microBatches, DType dtype, Variant variant) {
            this(ranks, stagesPerRank, layers, microBatches, dtype, variant, Masters.FLOAT32, List.of());
        }

        AdamW optimizer(PipelineModel model) {
            return new AdamW(model.parameters, ADAM.withMasters(masters), groups);
        }

        /** Every third step has two more. */
        int microBatches(int step) {
            return step % 3 == 2 ? microBatches + 2 : microBatches;
        }
    }

    private static Run ofOne(Division division, Span span) {
        try (Device device = Device.open();
                PipelineModel model =
                        new PipelineModel(device, division.dtype, division.layers, 1, 1, 0, division.variant);
                AdamW optimizer = division.optimizer(model);
                Pass pass = Pass.training(device)) {
            GradientNorm norm = new GradientNorm(model.parameters, 1);
            State state = State.of(model.parameters.state(), optimizer.state());
            if (span.loaded != null) {
                Safetensors.load(span.loaded, state, device.stream());
            }
            Run run = new Run(new float[STEPS], new float[STEPS], new LinkedHashMap<>(), new LinkedHashMap<>());
            for (int step = span.first; step < span.end; step++) {
                model.begin(5, step, division.microBatches(step));
                for (int i = 0; i < division.microBatches(step); i++) {
                    model.compute(i, pass);
                }
                norm.compute();
                finish(run, step, model, norm, optimizer);
            }
            if (span.saved != null) {
                Safetensors.save(span.saved, state, device.stream(), Map.of());
            }
            return weights(run, model, device.stream());
        }
    }

    private static void finish(Run run, int step, PipelineModel model, GradientNorm norm, AdamW optimizer) {
        Stream stream = model.parameters.scope().stream();
        run.losses[step] = model.loss();
        run.norms[step] = norm.norm().toFloats(stream)[0];
        if (step == 0) {
            run.gradients.putAll(model.gradients());
        }
        optimizer.step(RATE, norm);
    }

    private static Run weights(Run run, PipelineModel model, Stream stream) {
        model.parameters
                .all()
                .forEach(one -> run.weights.put(one.name(), one.weight().toFloats(stream)));
        return run;
    }

    private static Run ofRank(Rank rank, Division division, Span span) {
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.PIPELINE, division.ranks);
        try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                PipelineModel model = new PipelineModel(
                        rank.device(),
                        division.dtype,
                        division.layers,
                        division.ranks,
                        division.stagesPerRank,
                        rank.index(),
                        division.variant);
                PipelineParallel pipeline =
                        PipelineParallel.of(model.stages(), model.parameters, PipelineModel.HIDDEN, mesh);
                DataParallel strategy = DataParallel.of(model.parameters, mesh.along(MeshDimension.REPLICATE));
                AdamW optimizer = division.optimizer(model)) {
            GradientNorm norm = new GradientNorm(model.parameters, 1);
            if (span.loaded != null) {
                RunState.of(strategy).stages(pipeline).optimizer(optimizer).load(span.loaded);
            }
            Run run = new Run(new float[STEPS], new float[STEPS], new LinkedHashMap<>(), new LinkedHashMap<>());
            for (int step = span.first; step < span.end; step++) {
                int microBatches = division.microBatches(step);
                model.begin(5, step, microBatches);
                // @start region="step"
                pipeline.run(model, microBatches);
                strategy.sumGradients(); // of copies of this rank's stages
                norm.compute();
                // @end
                finish(run, step, model, norm, optimizer);
            }
            if (span.saved != null) {
                RunState.of(strategy).stages(pipeline).optimizer(optimizer).save(span.saved, Map.of());
            }
            return weights(run, model, rank.device().stream());
        }
    }

    private static List<Run> ofRanks(Division division, Span span) {
        DevicesNeeded.assume(division.ranks);
        return Ranks.local(division.ranks).run(rank -> ofRank(rank, division, span));
    }

    private static void assertSame(Run expected, List<Run> ranks, double lossTolerance, double normTolerance) {
        for (int step = 0; step < STEPS; step++) {
            float loss = 0;
            for (Run run : ranks) {
                loss += run.losses[step];
                assertEquals(
                        expected.norms[step], run.norms[step], normTolerance * expected.norms[step], "norm " + step);
            }
            assertEquals(expected.losses[step], loss, lossTolerance * expected.losses[step], "loss " + step);
        }
    }

    /** Each rank's part, and all of them together. */
    private static void assertAll(
            Map<String, float[]> expected, List<Map<String, float[]>> ranks, double tolerance, String what) {
        Map<String, float[]> all = new LinkedHashMap<>();
        for (Map<String, float[]> part : ranks) {
            part.forEach((name, values) -> {
                float[] before = all.put(name, values);
                if (before != null) {
                    assertArrayEquals(before, values, what + " " + name + " on all ranks that have it");
                }
                double most = 1e-6;
                for (float value : expected.get(name)) {
                    most = Math.max(most, Math.abs(value));
                }
                // The gradient of the keys' bias is 0, and Adam makes whole steps of what rounding leaves of it.
                boolean rounding = name.endsWith("qkv.linear.bias");
                float[] whole = expected.get(name);
                for (int i = 0; i < values.length; i++) {
                    double allowed = rounding ? 2 * STEPS * RATE : tolerance * most;
                    assertEquals(whole[i], values[i], allowed, what + " " + name + "[" + i + "]");
                }
            });
        }
        assertEquals(expected.keySet(), all.keySet(), what);
    }

    @ParameterizedTest
    @CsvSource({
        "3, 1, 5, 3, RECOMPUTED_DROPOUT",
        "4, 1, 6, 7, DROPOUT",
        "4, 1, 4, 3, FROZEN_MIDDLE",
        "2, 1, 2, 4, FROZEN_TABLE",
        "2, 2, 5, 4, DROPOUT",
        "2, 3, 6, 5, PLAIN",
        "4, 2, 8, 4, FROZEN_BOTTOM"
    })
    void ranksTakeTheStepsOfOne(int ranks, int stages, int layers, int microBatches, Variant variant) {
        Division division = new Division(ranks, stages, layers, microBatches, DType.FLOAT32, variant);
        List<Run> runs = ofRanks(division, Span.ALL);
        Run expected = ofOne(division, Span.ALL);
        assertTrue(expected.losses[STEPS - 1] < expected.losses[0]);
        assertSame(expected, runs, REFERENCE ? 1e-5 : 1e-3, REFERENCE ? 1e-4 : 1e-2);
        assertAll(expected.gradients, runs.stream().map(Run::gradients).toList(), REFERENCE ? 1e-5 : 1e-2, "gradient");
        assertAll(expected.weights, runs.stream().map(Run::weights).toList(), REFERENCE ? 1e-3 : 2e-2, "weight");
    }

    /** All ranks are given the groups of one rank, also those whose parameters other stages have; a tied one is in the same group everywhere. */
    @Test
    void groupsOfParametersThatOtherStagesHave() {
        List<ParameterGroup> groups = List.of(
                ParameterGroup.of("table", p -> p.name().startsWith("embedding"))
                        .withRateFactor(0.25f),
                ParameterGroup.of("middle", p -> p.name().startsWith("layers.1."))
                        .withRateFactor(3)
                        .withWeightDecay(0.5f),
                ParameterGroup.of("top", p -> p.name().startsWith("head")).withRateFactor(2));
        Division division = new Division(3, 1, 3, 4, DType.FLOAT32, Variant.PLAIN, Masters.FLOAT32, groups);
        List<Run> runs = ofRanks(division, Span.ALL);
        Run expected = ofOne(division, Span.ALL);
        assertSame(expected, runs, REFERENCE ? 1e-5 : 1e-3, REFERENCE ? 1e-4 : 1e-2);
        assertAll(expected.weights, runs.stream().map(Run::weights).toList(), REFERENCE ? 1e-3 : 2e-2, "weight");
    }

    @Test
    void groupsOfNoStageAreRefused() {
        try (Device device = Device.open();
                PipelineModel model = new PipelineModel(device, DType.FLOAT32, 3, 3, 1, 1, Variant.FROZEN_TABLE)) {
            List<ParameterGroup> groups =
                    List.of(ParameterGroup.of("table", p -> p.name().startsWith("embedding")));
            assertThrown(
                    IllegalArgumentException.class,
                    "groups: expected trained parameters in group table that no group before it has, got none",
                    () -> new AdamW(model.parameters, ADAM, groups));
        }
    }

    @Test
    void ranksTakeTheStepsOfOneInSixteenBits() {
        Division division = new Division(3, 1, 4, 4, DType.BFLOAT16, Variant.PLAIN);
        List<Run> runs = ofRanks(division, Span.ALL);
        assertSame(ofOne(division, Span.ALL), runs, 1e-2, 5e-2);
    }

    /** Of four ranks with a layer each, one has a stage without a trained parameter. */
    @ParameterizedTest
    @CsvSource({"3, 1, FROZEN_BOTTOM, FLOAT32", "4, 1, FROZEN_MIDDLE, REMAINDER", "2, 2, PLAIN, FLOAT32"})
    void stateIsTheFileOfOneRank(int ranks, int stages, Variant variant, Masters kept, @TempDir Path folder)
            throws IOException {
        Division division = new Division(ranks, stages, 4, 4, DType.BFLOAT16, variant, kept, List.of());
        Path one = folder.resolve("one");
        Path several = folder.resolve("several");
        Run first = ofOne(division, new Span(0, 3, null, one));
        List<Run> loaded = ofRanks(division, new Span(0, 0, one, several));
        assertArrayEquals(Files.readAllBytes(one), Files.readAllBytes(several));
        for (Run run : loaded) {
            run.weights.forEach((name, values) -> assertArrayEquals(first.weights.get(name), values, name));
        }
        List<Run> on = ofRanks(division, new Span(3, 6, several, folder.resolve("later")));
        Run expected = ofOne(division, new Span(3, 6, one, null));
        assertSame(expected, on, 1e-2, 5e-2);
        ofOne(division, new Span(6, 7, folder.resolve("later"), null));
    }

    @Test
    void aStageThatThrowsEndsAllRanks() {
        DevicesNeeded.assume(3);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(3).each(rank -> {
                    MeshShape shape = MeshShape.ofOne().with(MeshDimension.PIPELINE, 3);
                    try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                            PipelineModel model = new PipelineModel(
                                    rank.device(), DType.FLOAT32, 3, 3, 1, rank.index(), Variant.PLAIN);
                            PipelineParallel pipeline =
                                    PipelineParallel.of(model.stages(), model.parameters, PipelineModel.HIDDEN, mesh)) {
                        model.begin(5, 0, 4);
                        pipeline.run(rank.index() == 1 ? new Broken(model) : model, 4);
                    }
                }));
        assertEquals(List.of(1), failure.ranks());
        assertEquals("broken in micro-batch 2", failure.getCause().getMessage());
    }

    private record Broken(PipelineModel model) implements PipelineStage {
        @Override
        public long tokens(int microBatch) {
            return model.tokens(microBatch);
        }

        @Override
        public void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass) {
            if (microBatch == 2) {
                throw new IllegalStateException("broken in micro-batch 2");
            }
            model.forward(stage, microBatch, x, y, pass);
        }

        @Override
        public void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass) {
            model.backward(stage, microBatch, dy, dx, pass);
        }
    }

    @Test
    void aRankHasThePassesOfItsMicroBatchesUnderWay() {
        DevicesNeeded.assume(3);
        Ranks.local(3).each(rank -> {
            MeshShape shape = MeshShape.ofOne().with(MeshDimension.PIPELINE, 3);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                    PipelineModel model =
                            new PipelineModel(rank.device(), DType.FLOAT32, 3, 3, 1, rank.index(), Variant.PLAIN);
                    PipelineParallel pipeline =
                            PipelineParallel.of(model.stages(), model.parameters, PipelineModel.HIDDEN, mesh)) {
                assertEquals(3 - rank.index(), pipeline.passes().size());
                assertEquals(
                        PipelineSchedule.of(3, 1, 100).passes(rank.index()),
                        pipeline.passes().size());
            }
        });
    }

    @Test
    void refusesWhatDoesNotFit() {
        try (Device device = Device.open()) {
            assertThrown(
                    IllegalArgumentException.class,
                    "layers: expected at least as many as the 3 stages of the pipeline, on 3 ranks, got 2",
                    () -> new PipelineModel(device, DType.FLOAT32, 2, 3, 1, 0, Variant.PLAIN));
            assertThrown(
                    IllegalArgumentException.class,
                    "rank: expected 0 to 2, got 3",
                    () -> new PipelineModel(device, DType.FLOAT32, 3, 3, 1, 3, Variant.PLAIN));
        }
    }
}
