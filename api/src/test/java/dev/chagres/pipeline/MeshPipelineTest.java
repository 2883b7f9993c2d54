package dev.chagres.pipeline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.Safetensors;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import dev.chagres.pipeline.PipelineModel.Place;
import dev.chagres.pipeline.PipelineModel.Variant;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.GradientSync;
import dev.chagres.sharding.OptimizerSharding;
import dev.chagres.sharding.Reshard;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.WholeLayers;
import dev.chagres.sharding.ZeroStage;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiConsumer;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** A pipeline whose stages are replicated, sharded, split, or given parts of the tokens computes, and evaluates, what one rank does. */
@Tag("L0")
@Tag("L2")
class MeshPipelineTest {
    private static final int STEPS = 20;
    /** Micro-batches of an evaluation, in batches of their own. */
    private static final int EVALUATED = 2;

    private static final int APART = 1_000;
    private static final float RATE = 1e-3f;
    private static final long SEED = 7;
    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f);
    private static final boolean REFERENCE = Provider.current() == Provider.REFERENCE;
    private static final TransformerLayerConfig LAYER = TransformerLayerConfig.encoder(
                    PipelineModel.HIDDEN, AttentionConfig.of(24, 8, AttentionMask.none()))
            .withMlp(MlpConfig.gelu(PipelineModel.HIDDEN).withInner(96))
            .withHiddenDropout(Dropout.of(0.1f));

    /** What copies of a stage keep. */
    private enum Kept {
        WHOLE,
        ONE,
        TWO,
        TWO_OF_ALL,
        /** Gathered for each call, and summed in each micro-batch. */
        THREE,
        /** Gathered and summed once a step. */
        THREE_ONCE,
        THREE_ONCE_OF_ALL,
        /** Summed in each micro-batch in BF16, in which products write. */
        THREE_IN_BF16;

        private FullyShardedConfig config() {
            FullyShardedConfig all = FullyShardedConfig.of(ZeroStage.TWO).withOptimizer(OptimizerSharding.ALL_RANKS);
            FullyShardedConfig once = FullyShardedConfig.of(ZeroStage.THREE)
                    .withReshard(Reshard.AFTER_STEP)
                    .withGradientSync(GradientSync.LAST_MICRO_BATCH);
            return switch (this) {
                case ONE -> FullyShardedConfig.of(ZeroStage.ONE);
                case WHOLE, TWO -> FullyShardedConfig.of(ZeroStage.TWO);
                case TWO_OF_ALL -> all;
                case THREE -> FullyShardedConfig.of(ZeroStage.THREE);
                case THREE_ONCE -> once;
                case THREE_ONCE_OF_ALL -> once.withOptimizer(OptimizerSharding.ALL_RANKS);
                case THREE_IN_BF16 -> FullyShardedConfig.of(ZeroStage.THREE).withReduceType(DType.BFLOAT16);
            };
        }
    }

    /** Which tokens tensor-parallel ranks have between branches. */
    private enum Tokens {
        ALL,
        PART
    }

    /** Steps from {@code first} to before {@code end}; from a state and to one, where there are files. */
    private record Span(
            int first,
            int end,
            @Nullable Path loaded,
            @Nullable Path saved) {
        static final Span ALL = new Span(0, STEPS, null, null);
    }

    /** A model in stages, and what the mesh does with them. */
    private record Division(
            MeshShape mesh, int stagesPerRank, int layers, Tokens tokens, Kept kept, Variant variant, DType dtype) {
        private static final int MICRO_BATCHES = 3;

        int copies() {
            return mesh.size(MeshDimension.REPLICATE) * mesh.size(MeshDimension.SHARD);
        }

        /** Each context-parallel rank has a token of the shortest micro-batch; sequence-parallel ranks divide it. */
        int multiple() {
            return tokens == Tokens.PART
                    ? mesh.size(MeshDimension.TENSOR)
                    : mesh.size(MeshDimension.CONTEXT) > 2 ? 2 : 1;
        }

        /** Every third step has one more. */
        int microBatches(int step) {
            return step % 3 == 2 ? MICRO_BATCHES + 1 : MICRO_BATCHES;
        }
    }

    /** What the steps and the evaluations before each of them gave: weights and moments after the last step. */
    private record Run(float[] losses, float[] evaluated, float[] norms, Map<String, float[]> state) {
        Run() {
            this(new float[STEPS], new float[STEPS], new float[STEPS], new LinkedHashMap<>());
        }

        BiConsumer<String, Tensor> sink(Stream stream) {
            return (name, tensor) -> state.put(name, tensor.toFloats(stream));
        }
    }

    private static Run ofOne(Division division, Span span) {
        try (Device device = Device.open()) {
            Function<ModelPlan, Parameters> memory = plan -> Parameters.allocate(device, plan, division.dtype, SEED);
            Place all = new Place(1, 1, 0, 1, 0, division.multiple(), new ModelPlan(), memory);
            try (PipelineModel model = new PipelineModel(device, division.layers, LAYER, all, division.variant);
                    AdamW optimizer = new AdamW(model.parameters, ADAM);
                    Pass pass = Pass.training(device);
                    Pass evaluation = Pass.evaluation(device)) {
                GradientNorm norm = new GradientNorm(model.parameters, 1);
                State state = State.of(model.parameters.state(), optimizer.state());
                if (span.loaded != null) {
                    Safetensors.load(span.loaded, state, device.stream());
                }
                Run run = new Run();
                for (int step = span.first; step < span.end; step++) {
                    int evaluated = division.copies() * EVALUATED;
                    model.begin(5, APART + step, evaluated);
                    for (int i = 0; i < evaluated; i++) {
                        model.evaluate(i, evaluation);
                    }
                    run.evaluated[step] = model.loss();
                    int microBatches = division.copies() * division.microBatches(step);
                    model.begin(5, step, microBatches);
                    for (int i = 0; i < microBatches; i++) {
                        model.compute(i, pass);
                    }
                    finish(run, step, model, norm, optimizer);
                }
                if (span.saved != null) {
                    Safetensors.save(span.saved, state, device.stream(), Map.of());
                }
                state.tensors().forEach(run.sink(device.stream()));
                return run;
            }
        }
    }

    private static void finish(Run run, int step, PipelineModel model, GradientNorm norm, AdamW optimizer) {
        norm.compute();
        run.losses[step] = model.loss();
        run.norms[step] = norm.norm().toFloats(model.parameters.scope().stream())[0];
        optimizer.step(RATE, norm);
    }

    private static Strategy strategy(Division division, ModelPlan part, Mesh mesh, Device device) {
        return division.kept == Kept.WHOLE
                ? DataParallel.of(
                        Parameters.allocate(device, part, division.dtype, SEED),
                        mesh.along(MeshDimension.REPLICATE, MeshDimension.SHARD, MeshDimension.CONTEXT))
                : FullySharded.allocate(part, division.dtype, SEED, division.kept.config(), mesh);
    }

    private static Place place(Division division, Mesh mesh, Device device, AtomicReference<Strategy> made) {
        TensorParallel tensor = TensorParallel.of(mesh.along(MeshDimension.TENSOR));
        return new Place(
                mesh.size(MeshDimension.PIPELINE),
                division.stagesPerRank,
                mesh.coordinate(MeshDimension.PIPELINE),
                division.copies(),
                mesh.coordinate(MeshDimension.REPLICATE) * mesh.size(MeshDimension.SHARD)
                        + mesh.coordinate(MeshDimension.SHARD),
                division.multiple(),
                new ModelPlan(
                        division.tokens == Tokens.PART ? tensor.withSequenceParallel() : tensor,
                        ContextParallel.of(mesh.along(MeshDimension.CONTEXT))),
                part -> {
                    made.set(strategy(division, part, mesh, device));
                    return made.get().parameters();
                });
    }

    /** Returns the folder of the checkpoints that ranks save beside a file. */
    private static Path steps(Path saved) {
        return saved.resolveSibling(saved.getFileName() + ".steps");
    }

    private static Run ofRank(Rank rank, Division division, Span span) {
        AtomicReference<Strategy> made = new AtomicReference<>();
        Stream stream = rank.device().stream();
        try (Mesh mesh = Mesh.of(rank.communicator(), division.mesh);
                PipelineModel model = new PipelineModel(
                        rank.device(),
                        division.layers,
                        LAYER,
                        place(division, mesh, rank.device(), made),
                        division.variant);
                Strategy strategy = made.get();
                PipelineParallel pipeline =
                        PipelineParallel.of(model.stages(), model.parameters, PipelineModel.HIDDEN, mesh);
                AdamW optimizer = new AdamW(model.parameters, ADAM)) {
            GradientNorm norm = new GradientNorm(model.parameters, 1);
            // @start region="passes"
            pipeline.passes().forEach(strategy::follow);
            // @end
            // @start region="evaluation-pass"
            strategy.follow(pipeline.evaluationPass());
            // @end
            if (span.loaded != null) {
                RunState.of(strategy).stages(pipeline).optimizer(optimizer).load(span.loaded);
            }
            Run run = new Run();
            for (int step = span.first; step < span.end; step++) {
                model.begin(5, APART + step, EVALUATED);
                pipeline.evaluate(model, EVALUATED);
                run.evaluated[step] = model.loss();
                model.begin(5, step, division.microBatches(step));
                pipeline.run(model, division.microBatches(step));
                strategy.sumGradients();
                finish(run, step, model, norm, optimizer);
            }
            if (span.saved != null) {
                RunState state = RunState.of(strategy).stages(pipeline).optimizer(optimizer);
                state.save(span.saved, Map.of());
                state.save(CheckpointFolder.of(steps(span.saved)), span.end, Map.of());
            }
            if (strategy instanceof FullySharded sharded) {
                sharded.gatherState(optimizer, run.sink(stream));
            } else {
                WholeLayers.gather(model.parameters, optimizer.state(), run.sink(stream));
                WholeLayers.gather(model.parameters, model.parameters.state(), run.sink(stream));
            }
            return run;
        }
    }

    @ParameterizedTest
    @CsvSource({
        "2, 1, 1, 1, 2, 1, ALL, TWO, 2, PLAIN",
        "2, 1, 2, 2, 1, 1, ALL, TWO_OF_ALL, 2, PLAIN",
        "2, 1, 1, 2, 1, 2, PART, ONE, 2, PLAIN",
        "2, 1, 1, 2, 2, 1, ALL, TWO, 2, RECOMPUTED",
        "2, 2, 1, 1, 2, 2, ALL, WHOLE, 4, PLAIN",
        "4, 1, 2, 1, 1, 1, ALL, WHOLE, 4, FROZEN_MIDDLE",
        "2, 2, 1, 1, 1, 2, ALL, WHOLE, 4, FROZEN_TABLE",
        "2, 1, 1, 2, 1, 1, ALL, THREE_ONCE, 3, PLAIN",
        "2, 2, 1, 2, 1, 1, ALL, THREE_ONCE, 4, FROZEN_TABLE",
        "2, 1, 2, 2, 1, 1, ALL, THREE_ONCE_OF_ALL, 2, FROZEN_BOTTOM",
        "2, 1, 1, 2, 1, 2, PART, THREE, 2, PLAIN",
        "2, 1, 1, 1, 2, 1, ALL, THREE_ONCE, 2, PLAIN"
    })
    void ranksOfAMeshTakeTheStepsOfOne(
            int pipeline,
            int stages,
            int replicate,
            int shard,
            int context,
            int tensor,
            Tokens tokens,
            Kept kept,
            int layers,
            Variant variant) {
        MeshShape mesh = MeshShape.ofOne()
                .with(MeshDimension.PIPELINE, pipeline)
                .with(MeshDimension.REPLICATE, replicate)
                .with(MeshDimension.SHARD, shard)
                .with(MeshDimension.CONTEXT, context)
                .with(MeshDimension.TENSOR, tensor);
        DevicesNeeded.assume(mesh.ranks());
        Division division = new Division(mesh, stages, layers, tokens, kept, variant, DType.FLOAT32);
        List<Run> runs = Ranks.local(mesh.ranks()).run(rank -> ofRank(rank, division, Span.ALL));
        assertSame(ofOne(division, Span.ALL), runs, tensor);
    }

    /** Four ranks have two stages, two copies or parts of the tokens; what one rank saves they load and save byte for byte. */
    @ParameterizedTest
    @CsvSource({
        "SHARD, ONE, FROZEN_BOTTOM",
        "SHARD, TWO, PLAIN",
        "CONTEXT, ONE, FROZEN_TABLE",
        "CONTEXT, WHOLE, PLAIN",
        "SHARD, THREE, PLAIN",
        "SHARD, THREE_ONCE, FROZEN_BOTTOM",
        "SHARD, THREE_IN_BF16, PLAIN"
    })
    void stateIsTheFileOfOneRank(MeshDimension dimension, Kept kept, Variant variant, @TempDir Path folder)
            throws IOException {
        DevicesNeeded.assume(4);
        MeshShape mesh = MeshShape.ofOne().with(MeshDimension.PIPELINE, 2).with(dimension, 2);
        Division division = new Division(mesh, 1, 3, Tokens.ALL, kept, variant, DType.BFLOAT16);
        Path one = folder.resolve("one");
        Path several = folder.resolve("several");
        Path later = folder.resolve("later");
        ofOne(division, new Span(0, 3, null, one));
        Ranks.local(4).each(rank -> ofRank(rank, division, new Span(0, 0, one, several)));
        assertArrayEquals(Files.readAllBytes(one), Files.readAllBytes(several));
        List<Run> on = Ranks.local(4).run(rank -> ofRank(rank, division, new Span(3, 6, steps(several), later)));
        Run expected = ofOne(division, new Span(3, 6, one, null));
        for (int step = 3; step < 6; step++) {
            float loss = 0;
            float evaluated = 0;
            for (Run run : on) {
                loss += run.losses[step];
                evaluated += run.evaluated[step];
            }
            assertEquals(expected.losses[step], loss, 1e-2 * loss, "loss " + step);
            assertEquals(expected.evaluated[step], evaluated, 1e-2 * evaluated, "evaluation " + step);
        }
        ofOne(division, new Span(6, 7, steps(later), null));
    }

    private static void assertSame(Run expected, List<Run> runs, int tensor) {
        assertTrue(expected.losses[STEPS - 1] < expected.losses[0]);
        for (int step = 0; step < STEPS; step++) {
            float loss = 0;
            float evaluated = 0;
            for (int rank = 0; rank < runs.size(); rank++) {
                loss += rank % tensor == 0 ? runs.get(rank).losses[step] : 0; // Ranks that split layers have the same.
                evaluated += rank % tensor == 0 ? runs.get(rank).evaluated[step] : 0;
                float norm = expected.norms[step];
                assertEquals(norm, runs.get(rank).norms[step], (REFERENCE ? 1e-4 : 1e-2) * norm, "norm " + step);
            }
            float whole = expected.losses[step];
            assertEquals(whole, loss, (REFERENCE ? 1e-5 : 1e-3) * whole, "loss " + step);
            whole = expected.evaluated[step];
            assertEquals(whole, evaluated, (REFERENCE ? 1e-5 : 1e-3) * whole, "evaluation " + step);
        }
        Map<String, float[]> all = new LinkedHashMap<>();
        for (Run run : runs) {
            run.state.forEach((name, values) -> {
                float[] before = all.putIfAbsent(name, values);
                assertArrayEquals(before == null ? values : before, values, name + " on all ranks that have it");
            });
        }
        assertEquals(
                expected.state.keySet().stream().sorted().toList(),
                all.keySet().stream().sorted().toList());
        expected.state.forEach((name, values) -> {
            double most = 1e-6;
            for (float value : values) {
                most = Math.max(most, Math.abs(value));
            }
            // The gradient of the keys' bias is 0, and Adam makes whole steps of what rounding leaves of it.
            double allowed = name.contains("qkv.linear.bias") ? 2 * STEPS * RATE : (REFERENCE ? 1e-3 : 2e-2) * most;
            assertArrayEquals(values, all.get(name), (float) allowed, name);
        });
    }
}
