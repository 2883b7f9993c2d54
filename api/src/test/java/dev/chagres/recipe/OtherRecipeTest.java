package dev.chagres.recipe;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.io.Safetensors;
import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.MlpConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.Strategy;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** A run goes on under another recipe: everything but scales and histories is loaded, bit by bit. */
@Tag("L0")
class OtherRecipeTest {
    private static final int TOKENS = 48;
    private static final long SIZE = 32;
    private static final int STEPS = 3;

    @TempDir
    private Path folder;

    /** The recipes of runs with BF16 weights. */
    private enum Run {
        BF16(null),
        DELAYED(DelayedScaling.standard()),
        DELAYED_E4M3(DelayedScaling.standard().withFormat(Format.E4M3)),
        DELAYED_SHORT(DelayedScaling.standard().withAmaxHistoryLength(5)),
        CURRENT(Float8CurrentScaling.standard()),
        BLOCK(Float8BlockScaling.standard());

        private final @Nullable Recipe recipe;

        Run(@Nullable Recipe recipe) {
            this.recipe = recipe;
        }

        private boolean isDelayed() {
            return recipe instanceof DelayedScaling;
        }
    }

    /** A small MLP with its optimizer. */
    private static final class Training implements AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final LayerNormMlp layer = new LayerNormMlp(MlpConfig.gelu(SIZE), plan);
        private final Device device;
        private final Parameters parameters;
        private final AdamW optimizer;
        private final @Nullable Quantizers quantizers;
        private final Pass pass;
        private final Scope inputs;

        Training(Run run, long seed, Device device) {
            this.device = device;
            parameters = Parameters.allocate(device, plan, DType.BFLOAT16, seed);
            optimizer = new AdamW(parameters, AdamW.Config.standard().withMasters(AdamW.Masters.REMAINDER));
            quantizers = run.recipe == null ? null : Quantizers.allocate(parameters, run.recipe);
            pass = Pass.training(device);
            if (quantizers != null) {
                pass.autocast(quantizers);
            }
            inputs = device.openScope();
        }

        Stream stream() {
            return device.stream();
        }

        State recipeState() {
            return quantizers == null ? new State.Builder().build() : quantizers.state();
        }

        State state() {
            return State.of(parameters.state(), optimizer.state(), recipeState());
        }

        /** Makes a step and returns the output. */
        float[] step() {
            float[] values = new float[Math.toIntExact(TOKENS * SIZE)];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) Math.sin(i * i);
            }
            Tensor x = inputs.tensor(DType.BFLOAT16, TOKENS, SIZE);
            x.set(stream(), values);
            pass.begin(Sequences.packed(inputs, TOKENS));
            Tensor y = layer.forward(x, pass);
            float[] output = y.toFloats(stream());
            layer.backward(y, pass);
            optimizer.step(1e-2f);
            return output;
        }

        void steps(int count) {
            for (int i = 0; i < count; i++) {
                step();
            }
        }

        @Override
        public void close() {
            inputs.close();
            pass.close();
            optimizer.close();
            parameters.close();
        }
    }

    private static List<Arguments> pairs() {
        List<Arguments> pairs = new ArrayList<>();
        for (Run from : Run.values()) {
            for (Run to : Run.values()) {
                if (from != to) {
                    pairs.add(Arguments.of(from, to));
                }
            }
        }
        return pairs;
    }

    private Path saved(Run run, Device device) {
        Path file = folder.resolve(run + ".safetensors");
        try (Training training = new Training(run, 5, device)) {
            training.steps(STEPS);
            Safetensors.save(file, training.state(), training.stream(), Map.of());
        }
        return file;
    }

    /** Returns the bytes of a file's tensors by name, of those whose names are of a recipe or of the others. */
    private static Map<String, byte[]> tensors(Path path, boolean ofRecipe) {
        Map<String, byte[]> tensors = new LinkedHashMap<>();
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            file.entries().forEach((name, entry) -> {
                if ((name.endsWith(".scale") || name.startsWith("quantizers.")) == ofRecipe) {
                    tensors.put(name, entry.bytes().toArray(JAVA_BYTE));
                }
            });
        }
        return tensors;
    }

    @ParameterizedTest
    @MethodSource("pairs")
    void everythingElseIsLoaded(Run from, Run to) {
        try (Device device = Device.open()) {
            Path file = saved(from, device);
            Path again = folder.resolve("again");
            try (Training training = new Training(to, 6, device)) {
                if (from.isDelayed() || to.isDelayed()) {
                    assertThrows(
                            SafetensorsException.class,
                            () -> Safetensors.load(file, training.state(), training.stream()));
                }
                // @start region="otherRecipe"
                State state = State.of(training.parameters.state(), training.optimizer.state(), training.recipeState());
                RecipeDifferences differences = Safetensors.loadUnderOtherRecipe(file, state, training.stream());
                System.Logger log = System.getLogger("training");
                log.log(System.Logger.Level.INFO, differences.ignored().size() + " scales and histories are ignored");
                // @end
                Safetensors.save(again, training.state(), training.stream(), Map.of());
                assertEquals(tensors(file, true).keySet(), new TreeSet<>(differences.ignored()));
                assertEquals(tensors(again, true).keySet(), new TreeSet<>(differences.missing()));
                assertEquals(from.isDelayed(), !differences.ignored().isEmpty());
                assertEquals(to.isDelayed(), !differences.missing().isEmpty());
                assertEquals(STEPS, training.parameters.step());
                Map<String, byte[]> expected = tensors(file, false);
                Map<String, byte[]> actual = tensors(again, false);
                assertEquals(expected.keySet(), actual.keySet());
                expected.forEach((name, bytes) -> assertArrayEquals(bytes, actual.get(name), name));
                for (float value : training.step()) {
                    assertTrue(Float.isFinite(value));
                }
            }
        }
    }

    @Test
    void theSameRecipeLosesNothing() {
        try (Device device = Device.open()) {
            for (Run run : Run.values()) {
                Path file = saved(run, device);
                Path again = folder.resolve("again");
                try (Training training = new Training(run, 6, device)) {
                    assertTrue(Safetensors.loadUnderOtherRecipe(file, training.state(), training.stream())
                            .isEmpty());
                    Safetensors.save(again, training.state(), training.stream(), Map.of());
                    tensors(file, true)
                            .forEach((name, bytes) -> assertArrayEquals(
                                    bytes, tensors(again, true).get(name), name));
                }
            }
        }
    }

    /** Scales that a program has by then stay. */
    @Test
    void whatIsMissingStays() {
        try (Device device = Device.open();
                Training training = new Training(Run.DELAYED, 6, device)) {
            Path file = saved(Run.CURRENT, device);
            training.steps(2);
            float[] before = scales(training);
            Safetensors.loadUnderOtherRecipe(file, training.state(), training.stream());
            assertArrayEquals(before, scales(training));
        }
    }

    private static float[] scales(Training training) {
        List<Tensor> scales = training.recipeState().tensors().entrySet().stream()
                .filter(entry -> entry.getKey().endsWith(".scale"))
                .map(Map.Entry::getValue)
                .toList();
        float[] values = new float[scales.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = scales.get(i).toFloats(training.stream())[0];
        }
        return values;
    }

    @Test
    void onlyWhatRecipesKeepMayDiffer() {
        try (Device device = Device.open();
                Training other = new Training(Run.CURRENT, 6, device)) {
            Path file = saved(Run.DELAYED, device);
            Path weights = folder.resolve("weights");
            Safetensors.save(weights, other.parameters.weightState(), other.stream(), Map.of());
            assertRefused(other, weights, " missing, 0 unexpected");
            Tensor stranger = other.inputs.tensor(DType.FLOAT32, 1);
            stranger.set(other.stream(), 1f);
            State more = State.of(
                    other.state(),
                    new State.Builder().tensor("stranger.scale", stranger).build());
            Path strange = folder.resolve("strange");
            Safetensors.save(strange, more, other.stream(), Map.of());
            assertRefused(other, strange, "0 missing, 1 unexpected, 0 of another type");
            float[] before = other.parameters.all().getFirst().weight().toFloats(other.stream());
            State fewer = State.of(other.parameters.state(), other.recipeState());
            assertThrows(
                    SafetensorsException.class,
                    () -> Safetensors.loadUnderOtherRecipe(file, fewer, other.stream()),
                    "moments");
            assertArrayEquals(before, other.parameters.all().getFirst().weight().toFloats(other.stream()));
        }
    }

    private static void assertRefused(Training training, Path file, String text) {
        String actual = assertThrows(
                        SafetensorsException.class,
                        () -> Safetensors.loadUnderOtherRecipe(file, training.state(), training.stream()))
                .getMessage();
        assertTrue(actual.contains(text), actual);
    }

    /** Weights alone are loaded with the scales of their run, or, of another recipe, without. */
    @Test
    void weightsAloneWithoutTheScalesOfAnotherRecipe() {
        try (Device device = Device.open();
                Training other = new Training(Run.DELAYED_E4M3, 6, device)) {
            Path file = saved(Run.DELAYED, device);
            State state = State.of(other.parameters.weightState(), other.recipeState());
            RecipeDifferences differences = Safetensors.loadUnderOtherRecipe(file, state, other.stream());
            assertEquals(tensors(file, true).keySet(), new TreeSet<>(differences.ignored()));
            Path again = folder.resolve("again");
            Safetensors.save(again, other.parameters.weightState(), other.stream(), Map.of());
            Map<String, byte[]> expected = tensors(file, false);
            Map<String, byte[]> weights = tensors(again, false);
            assertEquals(other.parameters.all().size(), weights.size());
            weights.forEach((name, bytes) -> assertArrayEquals(expected.get(name), bytes, name));
        }
    }

    @Test
    void ranksAreToldTheSame() {
        DevicesNeeded.assume(2);
        Path file;
        RecipeDifferences expected;
        try (Device device = Device.open();
                Training one = new Training(Run.DELAYED, 6, device)) {
            file = saved(Run.DELAYED_E4M3, device);
            expected = Safetensors.loadUnderOtherRecipe(file, one.state(), one.stream());
        }
        List<RecipeDifferences> told = Ranks.local(2).run(rank -> {
            try (Training training = new Training(Run.DELAYED, 6, rank.device());
                    Strategy strategy = DataParallel.of(training.parameters, rank.communicator())) {
                strategy.reduceAmax(training.quantizers);
                return RunState.of(strategy)
                        .optimizer(training.optimizer)
                        .with(training.recipeState())
                        .loadUnderOtherRecipe(file);
            }
        });
        assertEquals(List.of(expected, expected), told);
    }
}
