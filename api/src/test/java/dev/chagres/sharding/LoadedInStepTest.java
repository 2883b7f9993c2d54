package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.Safetensors;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Ranks load weights while a step accumulates gradients: the next step is the one that a rank alone makes of these weights. */
@Tag("L0")
@Tag("L2")
class LoadedInStepTest {
    private static final int SIZE = 8;
    private static final int LAYERS = 3;
    private static final int RANKS = 2;
    private static final long SEED = 7;
    private static final float RATE = 1e-2f;

    @TempDir
    private Path folder;

    /** Where in a step the weights are loaded. */
    private enum Place {
        BEFORE_LAST,
        LAST_ANNOUNCED,
        LAST_COMPUTED,
        SUMMED
    }

    /** Which call loads the weights. */
    private enum Loading {
        PARAMETERS,
        WEIGHTS,
        STRATEGY
    }

    private static Sequential layers(ModelPlan plan) {
        return Sequential.of(LAYERS, i -> new Linear(SIZE, SIZE, Initializer.normal(0.5f), plan.group("layers." + i)));
    }

    private static void microBatch(Layer layers, Pass pass, int number) {
        pass.begin();
        Tensor x = pass.scope().tensor(DType.FLOAT32, 2, SIZE);
        float[] values = new float[2 * SIZE];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(i + 10 * number);
        }
        x.set(pass.stream(), values);
        layers.backward(layers.forward(x, pass), pass);
    }

    /** Returns the weights after a step over one micro-batch of each rank, computed by one rank. */
    private static float[] expected() {
        ModelPlan plan = new ModelPlan();
        Sequential layers = layers(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, SEED);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Pass pass = Pass.training(device)) {
            for (int rank = 0; rank < RANKS; rank++) {
                microBatch(layers, pass, rank);
            }
            optimizer.step(RATE);
            return parameters.weights().toFloats(device.stream());
        }
    }

    private static Strategy share(String kind, ModelPlan plan, Rank rank) {
        return kind.equals("DDP")
                ? DataParallel.of(Parameters.allocate(rank.device(), plan, DType.FLOAT32, SEED), rank.communicator())
                : FullySharded.allocate(plan, DType.FLOAT32, SEED, ZeroStage.valueOf(kind), rank.communicator());
    }

    private static void interrupt(Place place, Strategy strategy, Layer layers, Pass pass) {
        microBatch(layers, pass, 5);
        if (place != Place.BEFORE_LAST) {
            strategy.lastMicroBatch();
        }
        if (place.compareTo(Place.LAST_COMPUTED) >= 0) {
            microBatch(layers, pass, 6);
        }
        if (place == Place.SUMMED) {
            strategy.sumGradients();
        }
        pass.begin();
    }

    private static void load(Loading by, Path file, Strategy strategy, AdamW optimizer) {
        Parameters parameters = strategy.parameters();
        switch (by) {
            case PARAMETERS -> Safetensors.load(file, parameters.state(), parameters.scope().stream());
            case WEIGHTS -> Safetensors.load(file, parameters.weightState(), parameters.scope().stream());
            case STRATEGY -> RunState.of(strategy).optimizer(optimizer).load(file);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "DDP, BEFORE_LAST, PARAMETERS",
        "DDP, LAST_COMPUTED, PARAMETERS",
        "DDP, SUMMED, WEIGHTS",
        "ONE, BEFORE_LAST, WEIGHTS",
        "ONE, LAST_ANNOUNCED, PARAMETERS",
        "ONE, LAST_COMPUTED, PARAMETERS",
        "ONE, SUMMED, PARAMETERS",
        "TWO, BEFORE_LAST, PARAMETERS",
        "TWO, LAST_COMPUTED, WEIGHTS",
        "TWO, SUMMED, PARAMETERS",
        "DDP, SUMMED, STRATEGY",
        "ONE, LAST_COMPUTED, STRATEGY",
        "TWO, SUMMED, STRATEGY",
        "THREE, LAST_COMPUTED, STRATEGY"
    })
    void theStepBeginsAnew(String kind, Place place, Loading by) {
        DevicesNeeded.assume(RANKS);
        float[] expected = expected();
        Path file = folder.resolve("first.safetensors");
        Ranks.local(RANKS).each(rank -> {
            ModelPlan plan = new ModelPlan();
            Sequential layers = layers(plan);
            try (Strategy strategy = share(kind, plan, rank);
                    AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard());
                    Pass pass = Pass.training(rank.device())) {
                strategy.follow(pass);
                RunState.of(strategy).optimizer(optimizer).save(file, Map.of());
                Path own = by == Loading.PARAMETERS ? folder.resolve("rank" + rank.index()) : file;
                if (by == Loading.PARAMETERS) {
                    Safetensors.save(own, strategy.parameters().state(), pass.stream(), Map.of());
                }
                interrupt(place, strategy, layers, pass);
                load(by, own, strategy, optimizer);
                strategy.lastMicroBatch();
                microBatch(layers, pass, rank.index());
                strategy.sumGradients();
                optimizer.step(RATE);
                RunState.of(strategy).save(folder.resolve("trained.safetensors"), Map.of());
            }
        });
        assertArrayEquals(expected, trained(), 1e-6f);
    }

    private float[] trained() {
        ModelPlan plan = new ModelPlan();
        layers(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1)) {
            Safetensors.load(folder.resolve("trained.safetensors"), parameters.weightState(), device.stream());
            return parameters.weights().toFloats(device.stream());
        }
    }
}
