package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.Safetensors;
import dev.chagres.io.SafetensorsException;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.Linear;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.AdamW.Masters;
import dev.chagres.optim.LossScaler;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import dev.chagres.pipeline.PipelineModel;
import dev.chagres.pipeline.PipelineModel.Place;
import dev.chagres.pipeline.PipelineModel.Variant;
import dev.chagres.pipeline.PipelineParallel;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Ranks, whatever they shard, begin with weights that one rank has trained: from a file of only those, or of a whole run. */
@Tag("L0")
@Tag("L2")
class TrainedWeightsTest {
    private static final int LAYERS = 4;
    private static final int MICRO_BATCHES = 2;
    private static final long TRAINED_SEED = 11;
    private static final long OTHER_SEED = 7;
    private static final TransformerLayerConfig LAYER =
            TransformerLayerConfig.encoder(PipelineModel.HIDDEN, AttentionConfig.of(4, 8, AttentionMask.none()));
    private static final boolean REFERENCE = Provider.current() == Provider.REFERENCE;

    @TempDir
    private Path folder;

    /** What the file has that ranks begin with. */
    private enum Content {
        WEIGHTS,
        RUN
    }

    /** How ranks divide the model: numbers along the dimensions of a mesh, and what is sharded along the second. */
    private record Division(
            int pipeline,
            int replicate,
            int shard,
            int tensor,
            @Nullable FullyShardedConfig zero) {
        static Division of(String text) {
            String[] words = text.split(" ");
            FullyShardedConfig zero = switch (words[4]) {
                case "ALL" -> null;
                case "THREE_ALL_RANKS" ->
                    FullyShardedConfig.of(ZeroStage.THREE).withOptimizer(OptimizerSharding.ALL_RANKS);
                default -> FullyShardedConfig.of(ZeroStage.valueOf(words[4]));
            };
            return new Division(
                    Integer.parseInt(words[0]),
                    Integer.parseInt(words[1]),
                    Integer.parseInt(words[2]),
                    Integer.parseInt(words[3]),
                    zero);
        }

        MeshShape shape() {
            return MeshShape.ofOne()
                    .with(MeshDimension.PIPELINE, pipeline)
                    .with(MeshDimension.REPLICATE, replicate)
                    .with(MeshDimension.SHARD, shard)
                    .with(MeshDimension.TENSOR, tensor);
        }

        /** Takes memory for a rank's part of a model with other weights. */
        Parameters share(ModelPlan plan, DType dtype, Device device, Mesh mesh, AtomicReference<Strategy> made) {
            made.set(
                    zero == null
                            ? DataParallel.of(
                                    Parameters.allocate(device, plan, dtype, OTHER_SEED),
                                    mesh.along(MeshDimension.REPLICATE))
                            : FullySharded.allocate(plan, dtype, OTHER_SEED, zero, mesh));
            return made.get().parameters();
        }
    }

    private static PipelineModel whole(Device device, DType dtype, long seed) {
        Place all =
                new Place(1, 1, 0, 1, 0, 1, new ModelPlan(), plan -> Parameters.allocate(device, plan, dtype, seed));
        return new PipelineModel(device, LAYERS, LAYER, all, Variant.PLAIN);
    }

    private static void compute(PipelineModel model, Pass pass, int step) {
        model.begin(5, step, MICRO_BATCHES);
        for (int i = 0; i < MICRO_BATCHES; i++) {
            model.compute(i, pass);
        }
    }

    /** Trains on one rank, writes both files, and returns the loss of what comes after. */
    private static float train(DType dtype, Masters masters, Path weights, Path run) {
        try (Device device = Device.open();
                PipelineModel model = whole(device, dtype, TRAINED_SEED);
                AdamW optimizer =
                        new AdamW(model.parameters, AdamW.Config.standard().withMasters(masters));
                Pass pass = Pass.training(device)) {
            for (int step = 0; step < 2; step++) {
                compute(model, pass, step);
                optimizer.step(1e-2f);
            }
            Safetensors.save(weights, model.parameters.weightState(), device.stream(), Map.of());
            State number = new State.Builder()
                    .number("data.sequences", () -> 8, value -> {}, 10)
                    .build();
            State all = State.of(model.parameters.state(), optimizer.state(), number);
            Safetensors.save(run, all, device.stream(), Map.of("about", "a run"));
            compute(model, pass, 2);
            return model.loss();
        }
    }

    /** Trains other weights, loads those, takes a step that leaves masters and so weights as they are, saves weights, and returns the loss. */
    private static float rank(Rank rank, Division division, DType dtype, Masters masters, Path file, Path saved) {
        AtomicReference<Strategy> made = new AtomicReference<>();
        Device device = rank.device();
        try (Mesh mesh = Mesh.of(rank.communicator(), division.shape())) {
            Place place = new Place(
                    division.pipeline,
                    1,
                    mesh.coordinate(MeshDimension.PIPELINE),
                    1,
                    0,
                    1,
                    new ModelPlan(TensorParallel.of(mesh.along(MeshDimension.TENSOR))),
                    plan -> division.share(plan, dtype, device, mesh, made));
            try (PipelineModel model = new PipelineModel(device, LAYERS, LAYER, place, Variant.PLAIN);
                    Strategy strategy = made.get();
                    Pass pass = Pass.training(device);
                    PipelineParallel pipeline = division.pipeline == 1
                            ? null
                            : PipelineParallel.of(model.stages(), model.parameters, PipelineModel.HIDDEN, mesh);
                    AdamW optimizer =
                            new AdamW(model.parameters, AdamW.Config.standard().withMasters(masters))) {
                if (pipeline == null) {
                    strategy.follow(pass);
                }
                step(model, strategy, pipeline, pass, 0);
                optimizer.step(1e-2f);
                step(model, strategy, pipeline, pass, 1); // gathers weights, and is forgotten
                RunState weights = weights(strategy, pipeline, mesh);
                weights.load(file);
                step(model, strategy, pipeline, pass, 2);
                optimizer.step(0);
                weights.save(saved, Map.of());
                assertEquals(2, model.parameters.step(), "that of the file is left out");
                return model.loss();
            }
        }
    }

    private static void step(
            PipelineModel model, Strategy strategy, @Nullable PipelineParallel pipeline, Pass pass, int step) {
        if (pipeline == null) {
            compute(model, pass, step);
        } else {
            model.begin(5, step, MICRO_BATCHES);
            pipeline.run(model, MICRO_BATCHES);
        }
        strategy.sumGradients();
    }

    private static RunState weights(Strategy strategy, @Nullable PipelineParallel pipeline, Mesh mesh) {
        if (pipeline != null) {
            return RunState.of(strategy).stages(pipeline);
        }
        return strategy.parameters().tensorParallel().isSplit()
                ? RunState.of(strategy).over(mesh)
                : RunState.of(strategy);
    }

    /** Numbers of ranks along PIPELINE, REPLICATE, SHARD and TENSOR, and the stage of ZeRO. */
    @ParameterizedTest
    @CsvSource({
        "1 2 1 1 ALL, FLOAT32, FLOAT32, WEIGHTS",
        "1 4 1 1 ALL, BFLOAT16, REMAINDER, RUN",
        "1 1 2 1 ONE, FLOAT32, FLOAT32, RUN",
        "1 1 4 1 ONE, BFLOAT16, FLOAT32, WEIGHTS",
        "1 1 2 1 TWO, BFLOAT16, REMAINDER, WEIGHTS",
        "1 1 4 1 TWO, FLOAT32, FLOAT32, RUN",
        "1 1 2 1 THREE, FLOAT32, FLOAT32, WEIGHTS",
        "1 1 4 1 THREE, FLOAT32, FLOAT32, RUN",
        "1 1 4 1 THREE, BFLOAT16, FLOAT32, RUN",
        "1 2 2 1 TWO, BFLOAT16, FLOAT32, RUN",
        "1 2 2 1 THREE, FLOAT32, FLOAT32, WEIGHTS",
        "1 2 2 1 THREE_ALL_RANKS, BFLOAT16, REMAINDER, WEIGHTS",
        "1 1 1 2 ALL, FLOAT32, FLOAT32, WEIGHTS",
        "1 1 1 4 ALL, BFLOAT16, FLOAT32, RUN",
        "1 1 2 2 THREE, FLOAT32, FLOAT32, RUN",
        "2 1 1 1 ALL, FLOAT32, FLOAT32, WEIGHTS",
        "4 1 1 1 ALL, BFLOAT16, REMAINDER, RUN",
        "2 1 2 1 ONE, FLOAT32, FLOAT32, RUN",
        "2 1 1 2 ALL, FLOAT32, FLOAT32, WEIGHTS"
    })
    void ranksBeginWithTheWeightsOfOneRank(String ranks, DType dtype, Masters masters, Content content)
            throws IOException {
        Division division = Division.of(ranks);
        DevicesNeeded.assume(division.shape().ranks());
        Path weights = folder.resolve("weights");
        Path run = folder.resolve("run");
        Path saved = folder.resolve("saved");
        float expected = train(dtype, masters, weights, run);
        Path file = content == Content.WEIGHTS ? weights : run;

        List<Float> losses =
                Ranks.local(division.shape().ranks()).run(rank -> rank(rank, division, dtype, masters, file, saved));

        boolean sameBits = REFERENCE && division.tensor == 1;
        double tolerance = sameBits ? 0 : dtype == DType.BFLOAT16 ? 1e-2 : REFERENCE ? 1e-5 : 1e-3;
        int first = losses.size() - losses.size() / division.pipeline; // the last stage has the loss
        for (int i = first; i < losses.size(); i++) {
            assertEquals(expected, losses.get(i), tolerance * expected, "loss of rank " + i);
        }
        assertEquals(-1, Files.mismatch(weights, saved), "weights loaded and saved");
    }

    private static ModelPlan linear(int features, String group) {
        ModelPlan plan = new ModelPlan();
        new Linear(features, 16, Bias.ABSENT, Initializer.normal(0.1f), plan.group(group));
        return plan;
    }

    private static void save(Path file, ModelPlan plan) {
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, TRAINED_SEED);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
            Safetensors.save(file, State.of(parameters.state(), optimizer.state()), device.stream(), Map.of());
        }
    }

    /** What a whole run in eight bits has beside weights is left out on one rank, too. */
    @Test
    void oneRankEvaluatesWhatARunHasSaved() {
        Path file = folder.resolve("run.safetensors");
        float[] trained;
        ModelPlan plan = linear(16, "layer");
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, TRAINED_SEED);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Quantizers quantizers = Quantizers.allocate(parameters, DelayedScaling.standard())) {
            trained = parameters.get("layer.weight").weight().toFloats(device.stream());
            LossScaler scaler = new LossScaler(parameters, LossScaler.Config.standard());
            State run = State.of(parameters.state(), optimizer.state(), quantizers.state(), scaler.state());
            Safetensors.save(file, run, device.stream(), Map.of());
        }
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, linear(16, "layer"), DType.BFLOAT16, OTHER_SEED)) {
            // @start region="one"
            Safetensors.load(file, parameters.weightState(), device.stream()); // no optimizer is needed
            // @end
            float[] loaded = parameters.get("layer.weight").weight().toFloats(device.stream());
            assertArrayEquals(trained, loaded);
            SafetensorsException strict = assertThrows(
                    SafetensorsException.class, () -> Safetensors.load(file, parameters.state(), device.stream()));
            assertContains(strict, "nothing was loaded; to load only weights, use weightState()\n  unexpected:");
        }
    }

    /** Scales of the run come along where they are asked for, also to ranks that gather weights in eight bits. */
    @Test
    void scalesOfARunComeWithItsWeights() {
        DevicesNeeded.assume(2);
        Path file = folder.resolve("run.safetensors");
        float[] scales;
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, linear(16, "layer"), DType.BFLOAT16, TRAINED_SEED);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Quantizers quantizers = Quantizers.allocate(parameters, DelayedScaling.standard())) {
            State state = quantizers.state();
            state.tensors().get("layer.weight.scale").set(device.stream(), 3f);
            state.loaded();
            scales = state.tensors().get("layer.weight.scale").toFloats(device.stream());
            State run = State.of(parameters.state(), optimizer.state(), state);
            Safetensors.save(file, run, device.stream(), Map.of());
        }
        Ranks.local(2).each(rank -> {
            try (FullySharded strategy = FullySharded.allocate(
                            linear(16, "layer"), DType.BFLOAT16, OTHER_SEED, ZeroStage.THREE, rank.communicator());
                    Quantizers quantizers = Quantizers.allocate(strategy.parameters(), DelayedScaling.standard())) {
                assertThrown(
                        IllegalStateException.class,
                        "state: expected scales reduced over all ranks, got those of only this rank; call"
                                + " reduceAmax(quantizers) of the strategy before the first step",
                        () -> RunState.of(strategy).with(quantizers).specs());
                strategy.reduceAmax(quantizers);
                RunState.of(strategy).with(quantizers).load(file);
                Tensor scale = quantizers.state().tensors().get("layer.weight.scale");
                assertArrayEquals(scales, scale.toFloats(rank.device().stream()));
            }
        });
    }

    private static void assertContains(Exception failure, String text) {
        String message = String.valueOf(failure.getMessage());
        assertEquals(text, message.contains(text) ? text : message);
    }

    @Test
    void examples() {
        DevicesNeeded.assume(2);
        Path file = folder.resolve("trained.safetensors");
        save(file, linear(16, "layer"));
        Ranks.local(2).each(rank -> {
            try (FullySharded strategy = FullySharded.allocate(
                    linear(16, "layer"), DType.FLOAT32, OTHER_SEED, ZeroStage.THREE, rank.communicator())) {
                // @start region="shared"
                RunState.of(strategy).load(file); // each rank calls it; rank 0 has the file
                // @end
                assertEquals(1, RunState.of(strategy).specs().size());
            }
        });
        Path split = folder.resolve("split.safetensors");
        ModelPlan mlp = new ModelPlan();
        new LayerNormMlp(MlpConfig.gelu(16), mlp.group("layer"));
        save(split, mlp);
        Ranks.local(2).each(rank -> {
            MeshShape shape = MeshShape.ofOne().with(MeshDimension.TENSOR, 2);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                ModelPlan plan = new ModelPlan(TensorParallel.of(mesh.along(MeshDimension.TENSOR)));
                new LayerNormMlp(MlpConfig.gelu(16), plan.group("layer"));
                try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, OTHER_SEED);
                        Strategy copies = DataParallel.of(parameters, mesh.along(MeshDimension.REPLICATE))) {
                    // @start region="split"
                    RunState.of(copies).over(mesh).load(split);
                    // @end
                    String ranks = String.valueOf(plan.tensorParallel());
                    String other = ": expected whole layers, got those of " + ranks
                            + "; call RunState.of(strategy).over(mesh)";
                    assertThrown(
                            IllegalStateException.class,
                            "state" + other,
                            () -> RunState.of(copies).specs());
                    assertThrown(IllegalStateException.class, "weightState" + other, parameters::weightState);
                }
            }
        });
    }

    @Test
    void stagesOfAPipeline() {
        DevicesNeeded.assume(2);
        Path file = folder.resolve("trained.safetensors");
        train(DType.FLOAT32, Masters.FLOAT32, file, folder.resolve("run"));
        Ranks.local(2).each(rank -> {
            MeshShape shape = MeshShape.ofOne().with(MeshDimension.PIPELINE, 2);
            Place place = Place.of(rank.device(), DType.FLOAT32, 2, 1, rank.index());
            try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                    PipelineModel model = new PipelineModel(rank.device(), LAYERS, LAYER, place, Variant.PLAIN);
                    PipelineParallel pipeline =
                            PipelineParallel.of(model.stages(), model.parameters, PipelineModel.HIDDEN, mesh);
                    DataParallel copies = DataParallel.of(model.parameters, mesh.along(MeshDimension.REPLICATE));
                    Parameters others =
                            Parameters.allocate(rank.device(), linear(16, "layer"), DType.FLOAT32, OTHER_SEED);
                    DataParallel foreign = DataParallel.of(others, mesh.along(MeshDimension.REPLICATE))) {
                // @start region="stages"
                RunState.of(copies).stages(pipeline).load(file);
                // @end
                String staged = "state: expected parameters of the whole model, got those of rank " + rank.index()
                        + " of a pipeline of 2; call RunState.of(strategy).stages(pipeline)";
                assertThrown(
                        IllegalStateException.class,
                        staged,
                        () -> RunState.of(copies).specs());
                assertThrown(IllegalStateException.class, staged, model.parameters::weightState);
                assertThrown(
                        IllegalArgumentException.class,
                        "pipeline: expected that of the strategy's parameters, got that of others: " + pipeline,
                        () -> RunState.of(foreign).stages(pipeline).specs());
            }
        });
    }

    /** Weights that are missing, those of other layers with what is kept beside them, and other shapes are told on every rank. */
    @ParameterizedTest
    @CsvSource({
        "32, layer, '0 missing, 0 unexpected, 1 of another type or shape; nothing was loaded\n"
                + "  different: expected \"layer.weight\" F32[16, 16], got \"layer.weight\" F32[16, 32]'",
        "16, other, '1 missing, 1 unexpected, 0 of another type or shape; nothing was loaded\n"
                + "  missing: \"layer.weight\" F32[16, 16]\n"
                + "  unexpected: \"other.weight\" F32[16, 16]'"
    })
    void weightsOfAnotherModelAreRefused(int features, String group, String differences) {
        DevicesNeeded.assume(2);
        Path file = folder.resolve("other");
        save(file, linear(features, group));
        String text = file + ": the file holds other tensors than expected: " + differences;
        Ranks.local(2).each(rank -> {
            Path before = folder.resolve("before");
            Path after = folder.resolve("after");
            try (FullySharded strategy = FullySharded.allocate(
                    linear(16, "layer"), DType.FLOAT32, OTHER_SEED, ZeroStage.THREE, rank.communicator())) {
                RunState weights = RunState.of(strategy);
                weights.save(before, Map.of());
                assertThrown(SafetensorsException.class, text, () -> weights.load(file));
                weights.save(after, Map.of());
                if (rank.index() == 0) {
                    assertEquals(-1, Files.mismatch(before, after));
                }
                assertThrown(
                        IllegalStateException.class,
                        "state: expected whole weights, got a rank's parts of them; save and load them with"
                                + " RunState.of(strategy)",
                        strategy.parameters()::weightState);
            }
        });
    }

    /** The other way round: a file of weights has too little for a run to go on, and the error says what it has enough for. */
    @Test
    void aRunDoesNotGoOnWithWeightsAlone() {
        DevicesNeeded.assume(2);
        Path file = folder.resolve("weights");
        Ranks.local(2).each(rank -> {
            try (FullySharded strategy = FullySharded.allocate(
                            linear(16, "layer"), DType.FLOAT32, OTHER_SEED, ZeroStage.TWO, rank.communicator());
                    AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard())) {
                RunState.of(strategy).save(file, Map.of());
                assertThrown(
                        SafetensorsException.class,
                        file
                                + ": the file holds other tensors than expected: 4 missing, 0 unexpected, 0 of another type or"
                                + " shape; nothing was loaded; to load only weights, use weightState()\n"
                                + "  missing: \"layer.weight.exp_avg\" F32[16, 16]\n"
                                + "  missing: \"layer.weight.exp_avg_sq\" F32[16, 16]\n"
                                + "  missing: \"step\" I64[]\n"
                                + "  missing: \"optimizer.step\" I64[]",
                        () -> RunState.of(strategy).optimizer(optimizer).load(file));
                strategy.close();
                assertThrown(
                        IllegalStateException.class,
                        "the " + strategy + " is closed",
                        () -> RunState.of(strategy).specs());
            }
        });
    }
}
