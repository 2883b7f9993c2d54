package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.attention.AttentionMask;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.Safetensors;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.optim.AdamW;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pipeline.PipelineModel;
import dev.chagres.pipeline.PipelineModel.Place;
import dev.chagres.pipeline.PipelineModel.Variant;
import dev.chagres.pipeline.PipelineParallel;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.function.Function;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Ranks that have some of the layers each, or some of each layer, save and load {@link WeightStorage#QUANTIZED} weights as one rank does. */
@Tag("L0")
@Tag("L2")
class QuantizedStateTest {
    private static final int LAYERS = 2;
    private static final TransformerLayerConfig LAYER =
            TransformerLayerConfig.encoder(PipelineModel.HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()));

    private static Parameters quantized(Device device, ModelPlan plan, long seed) {
        return Parameters.allocate(device, plan, DType.BFLOAT16, seed, WeightStorage.QUANTIZED);
    }

    private static void saveOne(Path file) {
        try (Device device = Device.open();
                PipelineModel model = new PipelineModel(
                        device,
                        LAYERS,
                        LAYER,
                        new Place(1, 1, 0, 1, 0, 1, new ModelPlan(), plan -> quantized(device, plan, 7)),
                        Variant.PLAIN);
                AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard())) {
            Safetensors.save(file, State.of(model.parameters.state(), optimizer.state()), device.stream(), Map.of());
        }
    }

    /** What a rank does that has some of the model. */
    private interface Body {
        void run(Strategy strategy, Function<State[], RunState> state);
    }

    private static void run(Rank rank, MeshShape shape, long seed, Body body) {
        try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
            int pipeline = mesh.size(MeshDimension.PIPELINE);
            ModelPlan empty = new ModelPlan(
                    TensorParallel.of(mesh.along(MeshDimension.TENSOR)),
                    ContextParallel.of(mesh.along(MeshDimension.CONTEXT)));
            Place place = new Place(
                    pipeline,
                    1,
                    mesh.coordinate(MeshDimension.PIPELINE),
                    1,
                    0,
                    1,
                    empty,
                    plan -> quantized(rank.device(), plan, seed));
            try (PipelineModel model = new PipelineModel(rank.device(), LAYERS, LAYER, place, Variant.PLAIN);
                    Strategy strategy = DataParallel.of(model.parameters, mesh.along(MeshDimension.REPLICATE));
                    PipelineParallel stages =
                            PipelineParallel.of(model.stages(), model.parameters, PipelineModel.HIDDEN, mesh);
                    AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard())) {
                body.run(
                        strategy,
                        others -> pipeline > 1
                                ? RunState.of(strategy)
                                        .stages(stages)
                                        .optimizer(optimizer)
                                        .with(others)
                                : RunState.of(strategy)
                                        .over(mesh)
                                        .optimizer(optimizer)
                                        .with(others));
            }
        }
    }

    /** Saves first weights, or those of a file. */
    private static void save(Rank rank, MeshShape shape, long seed, Path loaded, Path file) {
        run(rank, shape, seed, (_, states) -> {
            RunState state = states.apply(new State[0]);
            if (seed != 7) {
                state.load(loaded);
            }
            state.save(file, Map.of());
        });
    }

    /** Rank 0 would save its own scales as those of all. */
    @ParameterizedTest
    @EnumSource(names = {"PIPELINE", "TENSOR"})
    void scalesOfOneRankAreRefused(MeshDimension dimension) {
        MeshShape shape = MeshShape.ofOne().with(dimension, 2);
        DevicesNeeded.assume(shape.ranks());
        Ranks.local(shape.ranks())
                .each(rank -> run(rank, shape, 7, (strategy, state) -> {
                    Quantizers quantizers = Quantizers.allocate(strategy.parameters(), DelayedScaling.standard());
                    State[] others = {quantizers.state()};
                    assertThrown(
                            IllegalStateException.class,
                            "state: expected scales reduced over all ranks, got those of only this rank; call"
                                    + " reduceAmax(quantizers) of the strategy before the first step",
                            () -> state.apply(others).specs());
                    strategy.reduceAmax(quantizers);
                    var _ = state.apply(others).specs();
                }));
    }

    @ParameterizedTest
    @CsvSource({"PIPELINE, 1", "TENSOR, 1", "PIPELINE, 2"})
    void ranksSaveAndLoadTheFileOfOne(MeshDimension dimension, int tensor, @TempDir Path folder) throws IOException {
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.TENSOR, tensor).with(dimension, 2);
        DevicesNeeded.assume(shape.ranks());
        Path one = folder.resolve("one");
        Path several = folder.resolve("several");
        Path again = folder.resolve("again");
        saveOne(one);
        Ranks.local(shape.ranks()).each(rank -> save(rank, shape, 7, one, several));
        assertArrayEquals(Files.readAllBytes(one), Files.readAllBytes(several));
        Ranks.local(shape.ranks()).each(rank -> save(rank, shape, 8, one, again));
        assertArrayEquals(Files.readAllBytes(one), Files.readAllBytes(again));
        try (SafetensorsFile file = SafetensorsFile.open(one)) {
            assertEquals(DType.FLOAT32, file.entry("layers.1.mlp.fc1.weight").dtype());
            assertEquals(DType.BFLOAT16, file.entry("embedding.weight").dtype());
        }
    }
}
