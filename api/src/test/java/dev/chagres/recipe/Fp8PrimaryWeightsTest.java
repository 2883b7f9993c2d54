package dev.chagres.recipe;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.io.Safetensors;
import dev.chagres.io.SafetensorsException;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Linear;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.te.Activation;
import dev.chagres.te.Cast;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Weights in eight bits alone: no master, no copy in the model's type, no gradient. */
@Tag("L0")
@Tag("L1")
class Fp8PrimaryWeightsTest {
    private static final int HIDDEN = 144; // two blocks, the second one short
    private static final int TOKENS = 21;
    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.1f);

    /** Those whose scales of a weight serve its transpose, too. */
    static List<Recipe> recipes() {
        return RecipeLinearConformance.recipes().stream()
                .filter(recipe -> !(recipe instanceof Float8BlockScaling blocks)
                        || blocks.blocks().weight() == Scaling.BLOCK_2D)
                .toList();
    }

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** What of a model is frozen. */
    private enum Frozen {
        NOTHING,
        WEIGHTS,
        ALL
    }

    /** A transformer layer with a gated MLP, its parameters and a recipe. */
    private static final class Model implements AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final Layer layer;
        private final Parameters parameters;
        private final Quantizers quantizers;

        Model(Recipe recipe, WeightStorage storage, Frozen frozen) {
            TransformerLayerConfig config = TransformerLayerConfig.encoder(
                            HIDDEN, AttentionConfig.of(9, 16, AttentionMask.none()))
                    .withMlp(MlpConfig.gelu(HIDDEN).withActivation(Activation.SWIGLU));
            layer = new TransformerLayer(config, plan.group("layers.0"));
            plan.parameters().stream()
                    .filter(parameter -> frozen == Frozen.ALL
                            || (frozen == Frozen.WEIGHTS && parameter.shape().rank() == 2))
                    .forEach(Parameter::freeze);
            parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 5, storage);
            quantizers = Quantizers.allocate(parameters, recipe);
        }

        private Pass begin(Pass pass) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 9, 1, 11));
            pass.autocast(quantizers);
            return pass;
        }

        private float[] evaluate(Tensor x) {
            try (Pass pass = Pass.evaluation(open.device())) {
                return open.read(layer.forward(x, begin(pass)));
            }
        }

        /** Returns output and gradient of the input. */
        private List<float[]> step(Tensor x) {
            Tensor y = layer.forward(x, begin(open.pass()));
            List<float[]> results = new ArrayList<>();
            results.add(open.read(y));
            results.add(open.read(layer.backward(y, open.pass())));
            return results;
        }

        private State state() {
            return State.of(parameters.state(), quantizers.state());
        }

        @Override
        public void close() {
            parameters.close();
        }
    }

    private static Tensor input() {
        return open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, TOKENS, HIDDEN, 1));
    }

    private static void assertSame(List<float[]> expected, List<float[]> actual) {
        IntStream.range(0, expected.size())
                .forEach(i -> assertArrayEquals(expected.get(i), actual.get(i), "result " + i));
    }

    /** They begin as masters that were drawn from the same seed, without ever being that. */
    @ParameterizedTest
    @MethodSource("recipes")
    void evaluationHasTheBitsOfAModelWithMasters(Recipe recipe) {
        Tensor x = input();
        try (Model masters = new Model(recipe, WeightStorage.QUANTIZED, Frozen.ALL);
                Model alone = new Model(recipe, WeightStorage.QUANTIZED_ONLY, Frozen.ALL)) {
            assertArrayEquals(masters.evaluate(x), alone.evaluate(x));
            for (Parameter parameter : alone.parameters.all()) {
                boolean matrix = parameter.shape().rank() == 2;
                assertEquals(
                        matrix ? WeightStorage.QUANTIZED_ONLY : WeightStorage.MODEL_TYPE,
                        parameter.storage(),
                        parameter.name());
                if (matrix) {
                    assertNull(parameter.quantized().copies().columnwise(), "only backward needs a transpose");
                }
            }
        }
    }

    /** Frozen weights pass the gradient on, by a transpose that is made of the matrix, and what is not frozen is trained. */
    @ParameterizedTest
    @MethodSource("recipes")
    void frozenWeightsBesideTrainedParameters(Recipe recipe) {
        Tensor x = input();
        boolean dequantizes = recipe.backwardOverride() == BackwardOverride.HIGH_PRECISION;
        try (Model masters = new Model(recipe, WeightStorage.QUANTIZED, Frozen.WEIGHTS);
                Model alone = new Model(recipe, WeightStorage.QUANTIZED_ONLY, Frozen.WEIGHTS);
                AdamW expected = new AdamW(masters.parameters, ADAM);
                AdamW adam = new AdamW(alone.parameters, ADAM)) {
            GradientNorm expectedNorm = new GradientNorm(masters.parameters, 1);
            GradientNorm norm = new GradientNorm(alone.parameters, 1);
            // A master is cast with a new scale in the second step of delayed scaling: only the first has the same
            // scales.
            for (int step = 0; step < (recipe instanceof DelayedScaling ? 1 : 3); step++) {
                List<float[]> theirs = masters.step(x);
                List<float[]> ours = alone.step(x);
                if (dequantizes) {
                    // Backward reads what the eight bits stand for, and the model with masters reads the masters.
                    assertArrayEquals(theirs.getFirst(), ours.getFirst());
                    return;
                }
                assertSame(theirs, ours);
                expectedNorm.compute();
                norm.compute();
                expected.step(1e-2f, expectedNorm);
                adam.step(1e-2f, norm);
            }
            for (Parameter parameter : alone.parameters.all()) {
                if (parameter.isTrained()) {
                    assertArrayEquals(
                            open.read(masters.parameters.get(parameter.name()).weight()),
                            open.read(parameter.weight()),
                            parameter.name());
                } else {
                    assertEquals(
                            recipe.backwardOverride() == BackwardOverride.NONE,
                            parameter.quantized().copies().columnwise() != null,
                            parameter.name());
                }
            }
            int trained = (int)
                    alone.parameters.all().stream().filter(Parameter::isTrained).count();
            assertEquals(3 * trained, adam.state().tensors().size());
        }
    }

    /** A trained run's masters and scales are cast while they are loaded; what is saved then loads into weights of 16 bits. */
    @ParameterizedTest
    @MethodSource("recipes")
    void loadsATrainedRunAndSaves(Recipe recipe, @TempDir Path folder) {
        if (recipe.backwardOverride() != BackwardOverride.NONE) {
            return; // forward is the same
        }
        Tensor x = input();
        float[] expected;
        try (Model trained = new Model(recipe, WeightStorage.QUANTIZED, Frozen.NOTHING);
                AdamW adam = new AdamW(trained.parameters, ADAM)) {
            for (int i = 0; i < 3; i++) {
                trained.step(x);
                adam.step(1e-2f);
            }
            expected = trained.evaluate(x);
            Safetensors.save(folder.resolve("trained"), trained.state(), open.stream(), Map.of());
        }
        float[] rounded;
        try (Model alone = new Model(recipe, WeightStorage.QUANTIZED_ONLY, Frozen.ALL)) {
            Safetensors.load(folder.resolve("trained"), alone.state(), open.stream());
            assertArrayEquals(expected, alone.evaluate(x));
            assertEquals(3, alone.parameters.step());
            Safetensors.save(folder.resolve("saved"), alone.state(), open.stream(), Map.of());
            Safetensors.load(folder.resolve("saved"), alone.state(), open.stream());
            rounded = alone.evaluate(x);
            if (recipe instanceof DelayedScaling) { // Whose scale does not follow the rounded values.
                assertArrayEquals(expected, rounded);
            }
        }
        try (Model plain = new Model(recipe, WeightStorage.MODEL_TYPE, Frozen.ALL)) {
            Safetensors.load(folder.resolve("saved"), plain.state(), open.stream());
            assertArrayEquals(rounded, plain.evaluate(x));
        }
    }

    /** What a file gets of eight bits is what the device makes of them, to the last bit, for one scale a tensor. */
    @Test
    void savedValuesAreThoseOfTheEightBits(@TempDir Path folder) {
        try (Model alone = new Model(Float8CurrentScaling.standard(), WeightStorage.QUANTIZED_ONLY, Frozen.ALL);
                Model plain = new Model(Float8CurrentScaling.standard(), WeightStorage.MODEL_TYPE, Frozen.ALL)) {
            Safetensors.save(folder.resolve("a"), alone.parameters.state(), open.stream(), Map.of());
            Safetensors.load(folder.resolve("a"), plain.parameters.state(), open.stream());
            for (Parameter parameter : alone.parameters.all()) {
                if (parameter.isQuantizedOnly()) {
                    QuantizedTensor copies = parameter.quantized().copies();
                    Tensor device = open.scope().tensor(DType.BFLOAT16, copies.rows(), copies.columns());
                    Cast.dequantize(copies, device, open.stream());
                    assertArrayEquals(
                            open.read(device),
                            open.read(plain.parameters.get(parameter.name()).weight()));
                }
            }
        }
    }

    /** A block's values are within half a step of E4M3 of what they were cast from. */
    @Test
    void savedBlocksAreNearTheirMasters(@TempDir Path folder) {
        try (Model alone = new Model(Float8BlockScaling.standard(), WeightStorage.QUANTIZED_ONLY, Frozen.ALL);
                Model masters = new Model(Float8BlockScaling.standard(), WeightStorage.QUANTIZED, Frozen.ALL);
                Model plain = new Model(Float8BlockScaling.standard(), WeightStorage.MODEL_TYPE, Frozen.ALL)) {
            Safetensors.save(folder.resolve("a"), alone.parameters.state(), open.stream(), Map.of());
            Safetensors.load(folder.resolve("a"), plain.parameters.state(), open.stream());
            for (Parameter parameter : masters.parameters.all()) {
                if (parameter.storage() == WeightStorage.QUANTIZED) {
                    float[] exact = open.read(parameter.weight());
                    double[] wanted = new double[exact.length];
                    for (int i = 0; i < wanted.length; i++) {
                        wanted[i] = exact[i];
                    }
                    open.assertClose(
                            parameter.name(),
                            wanted,
                            open.read(plain.parameters.get(parameter.name()).weight()),
                            0,
                            new Tolerance("E4M3 and BF16", 0.03, 0.0625 + 0.004));
                }
            }
        }
    }

    /** What the device holds, at the most and after: a byte an element, and never the masters of all. */
    @Test
    void aByteAnElement() {
        int hidden = 2048;
        int layers = 12;
        long elements = (long) hidden * hidden * layers;
        long[] peaks = new long[WeightStorage.values().length];
        for (WeightStorage storage : WeightStorage.values()) {
            try (Device device = Device.open(0)) {
                ModelPlan plan = new ModelPlan();
                for (int i = 0; i < layers; i++) {
                    new Linear(hidden, hidden, Initializer.zeros(), plan.group("layers." + i));
                }
                plan.parameters().forEach(Parameter::freeze);
                long before = device.peakHeldBytes();
                try (Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1, storage)) {
                    Quantizers quantizers = Quantizers.allocate(parameters, Float8CurrentScaling.standard());
                    peaks[storage.ordinal()] = device.peakHeldBytes() - before;
                    if (storage == WeightStorage.QUANTIZED_ONLY) {
                        long biases = (long) hidden * layers * 2;
                        assertEquals(biases, parameters.byteSize());
                        assertTrue(quantizers.byteSize() >= elements, quantizers.byteSize() + " bytes");
                        assertTrue(quantizers.byteSize() < 1.01 * elements, quantizers.byteSize() + " bytes");
                    }
                }
            }
        }
        long oneMaster = 4L * hidden * hidden;
        long most = elements + oneMaster + (12L << 20); // and the chunks that scopes take memory in
        assertTrue(
                peaks[WeightStorage.QUANTIZED_ONLY.ordinal()] < most,
                peaks[WeightStorage.QUANTIZED_ONLY.ordinal()] + " of at most " + most);
        assertTrue(peaks[WeightStorage.QUANTIZED.ordinal()] >= 6 * elements);
        assertTrue(peaks[WeightStorage.MODEL_TYPE.ordinal()] >= 4 * elements);
    }

    @Test
    void castsOtherValuesAndRefusesShapes() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(HIDDEN, 48, Initializer.normal(0.2f), plan.group("a"));
        plan.parameters().forEach(Parameter::freeze);
        try (Parameters parameters =
                        Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1, WeightStorage.QUANTIZED_ONLY);
                Pass pass = Pass.training(open.device())) {
            assertThrown(
                    IllegalStateException.class,
                    "parameter a.weight has no memory yet: it is kept QUANTIZED_ONLY, so call Quantizers.allocate,"
                            + " which says how it is cast",
                    parameters::state);
            Float8BlockScaling rows = Float8BlockScaling.standard()
                    .withBlocks(new Float8BlockScaling.Blocks(Scaling.BLOCK_1D, Scaling.BLOCK_1D, Scaling.BLOCK_1D));
            assertThrown(
                    IllegalArgumentException.class,
                    "recipe: expected weights in blocks of BLOCK_2D, for a.weight is kept QUANTIZED_ONLY, so that its"
                            + " transpose is made of its bytes, got BLOCK_1D; allocate with WeightStorage.QUANTIZED, or leave"
                            + " Blocks.weight as it is",
                    () -> Quantizers.allocate(parameters, rows));
            Quantizers quantizers = Quantizers.allocate(parameters, Float8BlockScaling.standard());
            Tensor x = open.scope().tensor(DType.BFLOAT16, 16, HIDDEN);
            x.zero(open.stream());
            pass.begin();
            pass.autocast(quantizers);
            assertTrue(linear.explain(x, pass).endsWith("the weight is kept only in eight bits"));
            try (Scope room = open.device().openScope()) {
                Tensor ones = room.tensor(DType.FLOAT16, 48, HIDDEN);
                float[] values = new float[48 * HIDDEN];
                Arrays.fill(values, 0.5f);
                ones.set(open.stream(), values);
                linear.weight().quantized().cast(ones);
                assertThrown(
                        IllegalArgumentException.class,
                        "x: expected FLOAT32, BFLOAT16 or FLOAT16[48, 144] for a.weight, got FLOAT16[12, 144]",
                        () -> linear.weight().quantized().cast(room.tensor(DType.FLOAT16, 12, HIDDEN)));
            }
            x.set(open.stream(), ramp(16 * HIDDEN));
            float[] y = open.read(linear.forward(x, pass));
            assertEquals(0.5f * HIDDEN, y[0], 1e-3f * HIDDEN);
            assertTrue(parameters.toString().contains("a.weight"), parameters.toString());
            assertTrue(parameters.toString().contains("8 bits"), parameters.toString());
            quantizers.close();
            assertThrown(
                    IllegalStateException.class,
                    "parameters: a.weight is kept QUANTIZED_ONLY, in the memory of the quantizers that were allocated"
                            + " first, and nothing is left to cast it from again; close these parameters and allocate"
                            + " others for another recipe",
                    () -> Quantizers.allocate(parameters, Float8CurrentScaling.standard()));
        }
    }

    private static float[] ramp(int count) {
        float[] values = new float[count];
        Arrays.fill(values, 1);
        return values;
    }

    @Test
    void refusals(@TempDir Path folder) {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(HIDDEN, 48, Initializer.normal(0.2f), plan.group("a"));
        assertThrown(
                IllegalArgumentException.class,
                "dtype: expected BFLOAT16 or FLOAT16 where weights are QUANTIZED_ONLY, for products in eight bits give"
                        + " results of 16, got FLOAT32",
                () -> Parameters.allocate(open.device(), plan, DType.FLOAT32, 1, WeightStorage.QUANTIZED_ONLY));
        try (Parameters parameters =
                Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1, WeightStorage.QUANTIZED_ONLY)) {
            assertThrown(
                    IllegalArgumentException.class,
                    "parameters: expected weights that can be updated, or are frozen, got a.weight that is kept"
                            + " QUANTIZED_ONLY and is not frozen; freeze it before Parameters.allocate, or allocate with"
                            + " WeightStorage.QUANTIZED",
                    () -> new AdamW(parameters, ADAM).close());
            Quantizers quantizers = Quantizers.allocate(parameters, Float8CurrentScaling.standard());
            Tensor x = open.scope().tensor(DType.BFLOAT16, 16, HIDDEN);
            x.zero(open.stream());
            Pass pass = open.pass();
            pass.begin();
            pass.autocast(quantizers);
            String training = "a.weight is kept only in eight bits (QUANTIZED_ONLY), so it cannot be trained, but it is"
                    + " not frozen and the pass trains; freeze it before Parameters.allocate, use Pass.evaluation, or"
                    + " allocate with WeightStorage.QUANTIZED";
            assertThrown(IllegalStateException.class, training, () -> linear.forward(x, pass));
            pass.begin();
            Recomputed recomputed = new Recomputed(linear);
            Tensor y = recomputed.forward(x, pass);
            assertThrown(IllegalStateException.class, training, () -> recomputed.backward(y, pass));
            pass.begin();
            pass.noAutocast();
            try (var _ = pass.withoutSaving()) {
                assertThrown(
                        IllegalStateException.class,
                        "a.weight is kept only in eight bits (QUANTIZED_ONLY), so its products need a recipe, but the"
                                + " pass has none; call pass.autocast, or allocate with WeightStorage.MODEL_TYPE",
                        () -> linear.forward(x, pass));
            }
            String alone = "parameter a.weight is kept only in eight bits (QUANTIZED_ONLY), so it has ";
            assertThrown(
                    IllegalStateException.class,
                    alone + "no weight of 16 or 32 bits; use Parameter.quantized",
                    () -> linear.weight().weight());
            assertThrown(
                    IllegalStateException.class,
                    alone + "no gradient; freeze it, or allocate with WeightStorage.QUANTIZED",
                    () -> linear.weight().gradient());
            assertThrown(
                    IllegalStateException.class,
                    "parameter a.bias is kept MODEL_TYPE, not QUANTIZED_ONLY; use Parameter.weight",
                    () -> linear.bias().quantized());
            assertThrown(
                    IllegalArgumentException.class,
                    "state: expected weights that have tensors, which ranks exchange, got a.weight that is kept"
                            + " QUANTIZED_ONLY; allocate with another WeightStorage, or save it by Safetensors.save",
                    () -> parameters.state().ensureNoneQuantized());
            ofAnotherShape(folder, parameters);
        }
    }

    private static void ofAnotherShape(Path folder, Parameters parameters) {
        ModelPlan plan = new ModelPlan();
        new Linear(HIDDEN, 32, Initializer.normal(0.2f), plan.group("a"));
        try (Parameters other = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            Safetensors.save(folder.resolve("a"), other.state(), open.stream(), Map.of());
        }
        SafetensorsException thrown = assertThrows(
                SafetensorsException.class,
                () -> Safetensors.load(folder.resolve("a"), parameters.state(), open.stream()));
        assertTrue(Objects.requireNonNull(thrown.getMessage()).contains("[48, 144]"), thrown.getMessage());
    }
}
