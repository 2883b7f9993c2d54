package dev.chagres.adapter;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.Inside;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.GeluForm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** A layer with adapters against one without, whose weights are {@code W + factor B A}: outputs, and gradients by the chain rule. */
class LowRankAdapterTest {
    private static final int HIDDEN = 32;
    private static final int RANK = 4;
    private static final int TOKENS = 32;
    private static final float FACTOR = 2;
    private static final String[] ALL = {"query", "key", "value", "projection", "fc1", "fc2", "gate", "up"};

    /** What an encoder's layer does besides. */
    private enum Form {
        GELU_TANH,
        GELU_ERF,
        GATED,
        RECOMPUTED,
        NORMS,
        ACTIVATION,
        PRODUCT_AND_ACTIVATION,
        GROUPED_HEADS;

        TransformerLayerConfig config() {
            AttentionConfig attention = AttentionConfig.of(2, 16, AttentionMask.none());
            TransformerLayerConfig plain = TransformerLayerConfig.encoder(
                            HIDDEN, this == GROUPED_HEADS ? attention.withKeyHeads(1) : attention)
                    .withInitializer(Initializer.normal(0.2f));
            MlpConfig mlp = plain.mlp();
            return switch (this) {
                case GELU_ERF -> plain.withMlp(mlp.withGelu(GeluForm.ERF));
                case GATED -> plain.withMlp(mlp.withActivation(Activation.SWIGLU));
                case NORMS -> plain.withRecomputation(TransformerLayerConfig.Recomputation.NORMS);
                case ACTIVATION -> plain.withMlp(mlp.withRecomputation(MlpConfig.Recomputation.ACTIVATION));
                case PRODUCT_AND_ACTIVATION ->
                    plain.withMlp(mlp.withRecomputation(MlpConfig.Recomputation.FC1_AND_ACTIVATION));
                default -> plain;
            };
        }

        String[] targets() {
            return Stream.of(ALL)
                    .filter(target ->
                            this == GATED ? !target.equals("fc1") : !target.equals("gate") && !target.equals("up"))
                    .toArray(String[]::new);
        }
    }

    /** Output, gradient of the input, gradients and weights by name. */
    private record Step(float[] y, float[] dx, Map<String, float[]> gradients, Map<String, float[]> weights) {}

    private static Step step(
            Form form,
            DType dtype,
            @Nullable Recipe recipe,
            WeightStorage storage,
            @Nullable LoraConfig lora,
            @Nullable Step adapted) {
        ModelPlan plan = new ModelPlan();
        if (lora != null) {
            plan.adapt(lora);
        }
        TransformerLayer made = new TransformerLayer(form.config(), plan.group("layers.0"));
        Layer layer = form == Form.RECOMPUTED ? new Recomputed(made) : made;
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, dtype, 3, storage);
                Quantizers quantizers = recipe == null ? null : Quantizers.allocate(parameters, recipe);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            made.rotate(RotaryEmbedding.of(scope, 64, 16));
            parameters.all().stream()
                    .filter(parameter -> parameter.name().endsWith("lora_B"))
                    .forEach(parameter -> set(parameter, drawn(parameter.shape().count(), 7, 0.25f)));
            if (adapted != null) {
                parameters.all().stream()
                        .filter(parameter -> parameter.shape().rank() == 2)
                        .forEach(parameter -> set(parameter, merged(parameter, adapted.weights)));
            }
            parameters.changed();
            if (quantizers != null) {
                pass.autocast(quantizers);
            }
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 20, TOKENS - 20));
            Tensor x = tensor(scope, dtype, 1);
            Inside.requireGradient(x, true);
            Tensor y = layer.forward(x, pass);
            float[] output = y.toFloats(device.stream());
            Tensor dx = layer.backward(tensor(scope, dtype, 2), pass);
            float[] first = dx.toFloats(device.stream());
            pass.begin(); // a second micro-batch, which adds the same gradients
            pass.sequences(Sequences.packed(pass.scope(), 20, TOKENS - 20));
            layer.forward(x, pass);
            layer.backward(tensor(scope, dtype, 2), pass);
            Map<String, float[]> gradients = new HashMap<>();
            Map<String, float[]> weights = new HashMap<>();
            for (Parameter parameter : parameters.all()) {
                if (parameter.isTrained()) {
                    gradients.put(parameter.name(), parameter.gradient().toFloats(device.stream()));
                }
                if (!parameter.isQuantizedOnly()) {
                    weights.put(parameter.name(), parameter.weight().toFloats(device.stream()));
                }
            }
            return new Step(output, first, gradients, weights);
        }
    }

    private static Tensor tensor(Scope scope, DType dtype, long seed) {
        Tensor tensor = scope.tensor(dtype, TOKENS, HIDDEN);
        tensor.set(scope.stream(), drawn((long) TOKENS * HIDDEN, seed, 1));
        return tensor;
    }

    private static void set(Parameter parameter, float[] values) {
        parameter.weight().set(parameter.owner().scope().stream(), values);
    }

    private static float[] drawn(long count, long seed, float spread) {
        float[] values = new float[(int) count];
        for (int i = 0; i < values.length; i++) {
            values[i] = spread * (float) CounterRandom.normal(seed, i);
        }
        return values;
    }

    /** A section of a product [out, in] that has an adapter: its rows, the adapter's rows of A, rank and factor. */
    private record Section(int begin, int size, int inner, int rank, float factor) {}

    private static List<Section> sections(String product, long rows) {
        List<String> names = product.endsWith("qkv.linear")
                ? List.of(".query", ".key", ".value")
                : product.endsWith("fc1") && current.isTarget(product + ".gate")
                        ? List.of(".gate", ".up")
                        : List.of("");
        List<Section> sections = new ArrayList<>();
        int begin = 0;
        int inner = 0;
        int keys = (int) (rows - HIDDEN) / 2;
        for (String name : names) {
            int size = switch (name) {
                case "" -> (int) rows;
                case ".query" -> HIDDEN;
                case ".key", ".value" -> keys;
                default -> (int) rows / 2;
            };
            if (current.isTarget(product + name)) {
                LoraConfig own = current.of(product + name);
                sections.add(new Section(begin, size, inner, own.rank(), own.factor()));
                inner += own.rank();
            }
            begin += size;
        }
        return sections;
    }

    /** Returns {@code W + factor B A}. */
    private static float[] merged(Parameter weight, Map<String, float[]> from) {
        float[] sum = from.get(weight.name()).clone();
        String product = weight.name().substring(0, weight.name().length() - ".weight".length());
        float[] a = from.get(product + ".lora_A");
        float[] b = from.get(product + ".lora_B");
        int columns = (int) weight.shape().size(1);
        int row = 0;
        for (Section section : sections(product, weight.shape().size(0))) {
            int width = sections(product, weight.shape().size(0)).stream()
                    .mapToInt(Section::rank)
                    .max()
                    .orElseThrow();
            for (int i = 0; i < section.size; i++, row++) {
                for (int k = 0; k < section.rank; k++) {
                    for (int j = 0; j < columns; j++) {
                        sum[(section.begin + i) * columns + j] +=
                                section.factor * b[row * width + k] * a[(section.inner + k) * columns + j];
                    }
                }
            }
        }
        return sum;
    }

    private static LoraConfig current = LoraConfig.of(1, "none");

    @ParameterizedTest
    @EnumSource
    void hasTheOutputAndGradientsOfMergedWeights(Form form) {
        for (String[] chosen : List.of(form.targets(), new String[] {"value", "query"}, new String[] {"fc2"})) {
            compare(form, LoraConfig.of(RANK, chosen).withAlpha(FACTOR * RANK));
        }
    }

    private static void compare(Form form, LoraConfig lora) {
        current = lora;
        Step adapted = step(form, DType.FLOAT32, null, WeightStorage.MODEL_TYPE, lora, null);
        Step plain = step(form, DType.FLOAT32, null, WeightStorage.MODEL_TYPE, null, adapted);
        assertClose(plain.y, adapted.y, "y");
        assertClose(plain.dx, adapted.dx, "dx");
        checkGradients(adapted, plain);
    }

    @ParameterizedTest
    @EnumSource(names = {"GELU_ERF", "GATED", "RECOMPUTED", "GROUPED_HEADS"})
    void hasRanksAndFactorsOfItsOwn(Form form) {
        LoraConfig lora = LoraConfig.of(RANK, form.targets()).withAlpha(FACTOR * RANK);
        compare(form, lora.withOwn("value", RANK + 2, 3).withOwn("projection", 1, 1));
        compare(
                form,
                lora.withOwn("layers.0.attention.qkv.linear.query", RANK, 1).withOwn("query", 9, 9));
        if (form == Form.GATED) {
            compare(form, lora.withOwn("up", 1, 5).withOwn("fc2", 3, 3));
        }
    }

    @Test
    void refusesOwnRanksOfWhatHasNoAdapter() {
        ModelPlan plan = new ModelPlan();
        plan.adapt(LoraConfig.of(2, "dense").withOwn("other", 3, 3));
        new Linear(16, 16, Initializer.zeros(), plan.child("dense"));
        new Linear(16, 16, Initializer.zeros(), plan.child("other"));
        try (Device device = Device.open()) {
            assertEquals(
                    "own: expected names of products that have adapters, which are dense, got other",
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> Parameters.allocate(device, plan, DType.FLOAT32, 1))
                            .getMessage());
        }
        LoraConfig lora = LoraConfig.of(2, "dense");
        assertEquals(
                "target: expected the name of a product, got an empty one",
                assertThrows(IllegalArgumentException.class, () -> lora.withOwn(" ", 1, 1))
                        .getMessage());
        assertEquals(
                "rank: expected 1 to 65536, got 0",
                assertThrows(IllegalArgumentException.class, () -> lora.withOwn("dense", 0, 1))
                        .getMessage());
        assertEquals(
                "alpha: expected a finite number above 0, got NaN",
                assertThrows(IllegalArgumentException.class, () -> lora.withOwn("dense", 1, Float.NaN))
                        .getMessage());
    }

    /** {@code dB = factor dW A^T}, {@code dA = factor B^T dW}. */
    private static void checkGradients(Step adapted, Step plain) {
        assertTrue(adapted.gradients.keySet().stream().allMatch(name -> name.contains("lora_")), "the rest is frozen");
        for (String name : adapted.gradients.keySet()) {
            if (!name.endsWith("lora_A")) {
                continue;
            }
            String product = name.substring(0, name.length() - ".lora_A".length());
            float[] dw = plain.gradients.get(product + ".weight");
            float[] a = adapted.weights.get(name);
            float[] b = adapted.weights.get(product + ".lora_B");
            float[] da = new float[a.length];
            float[] db = new float[b.length];
            int rows = plain.gradients.get(product + ".bias").length;
            int columns = dw.length / rows;
            int row = 0;
            List<Section> sections = sections(product, rows);
            int width = sections.stream().mapToInt(Section::rank).max().orElseThrow();
            for (Section section : sections) {
                for (int i = 0; i < section.size; i++, row++) {
                    for (int k = 0; k < section.rank; k++) {
                        for (int j = 0; j < columns; j++) {
                            float d = section.factor * dw[(section.begin + i) * columns + j];
                            db[row * width + k] += d * a[(section.inner + k) * columns + j];
                            da[(section.inner + k) * columns + j] += d * b[row * width + k];
                        }
                    }
                }
            }
            assertClose(da, adapted.gradients.get(name), name);
            assertClose(db, adapted.gradients.get(product + ".lora_B"), product + ".lora_B");
        }
    }

    private static void assertClose(float[] expected, float[] actual, String what) {
        double largest = 1;
        for (float value : expected) {
            largest = Math.max(largest, Math.abs(value));
        }
        double tolerance = Provider.current() == Provider.CUDA ? 5e-3 : 2e-5; // TF32
        assertArrayEquals(expected, actual, (float) (tolerance * largest), what);
    }

    static List<Recipe> recipes() {
        return List.of(DelayedScaling.standard(), Float8CurrentScaling.standard(), Float8BlockScaling.standard());
    }

    /** The products of the adapters are those of 16 bits, with inputs that are not rounded to eight. */
    @ParameterizedTest
    @MethodSource("recipes")
    void standsBesideProductsInEightBits(Recipe recipe) {
        for (Form form : Form.values()) {
            LoraConfig lora = LoraConfig.of(RANK, form.targets()).withAlpha(FACTOR * RANK);
            Step exact = step(form, DType.BFLOAT16, null, WeightStorage.MODEL_TYPE, lora, null);
            Step cast = step(form, DType.BFLOAT16, recipe, WeightStorage.MODEL_TYPE, lora, null);
            assertNear(exact.y, cast.y, 0.12, form + " y");
            assertNear(exact.dx, cast.dx, 0.2, form + " dx");
            assertEquals(exact.gradients.keySet(), cast.gradients.keySet());
            exact.gradients.forEach(
                    (name, gradient) -> assertNear(gradient, cast.gradients.get(name), 0.25, form + " " + name));
            Step alone = step(form, DType.BFLOAT16, recipe, WeightStorage.QUANTIZED_ONLY, lora, null);
            assertNear(cast.y, alone.y, 0.1, form + " of weights in eight bits alone");
            assertEquals(exact.gradients.keySet(), alone.gradients.keySet());
        }
    }

    /** The difference is at most a part of the norm. */
    private static void assertNear(float[] expected, float[] actual, double most, String what) {
        double difference = 0;
        double norm = 0;
        for (int i = 0; i < expected.length; i++) {
            difference += (expected[i] - actual[i]) * (double) (expected[i] - actual[i]);
            norm += expected[i] * (double) expected[i];
        }
        double part = Math.sqrt(difference / norm);
        assertTrue(part < most, what + ": " + part);
    }

    /** Dropout leaves whole values of the input out: with an A of ones and a B of ones, y counts the kept ones. */
    @Test
    void dropsValuesOfTheInputInTraining() {
        LoraConfig lora = LoraConfig.of(1, "dense").withAlpha(1).withDropout(0.25f);
        ModelPlan plan = new ModelPlan();
        plan.adapt(lora);
        Linear layer = new Linear(64, 1, Bias.ABSENT, Initializer.zeros(), plan.child("dense"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 3);
                Scope scope = device.openScope()) {
            parameters.all().stream()
                    .filter(Parameter::isTrained)
                    .forEach(parameter -> set(parameter, ones(parameter.shape().count())));
            parameters.changed();
            Tensor x = scope.tensor(DType.FLOAT32, 500, 64);
            x.set(device.stream(), ones(x.count()));
            Inside.requireGradient(x, true);
            try (Pass pass = Pass.training(device)) {
                pass.begin();
                float[] y = layer.forward(x, pass).toFloats(device.stream());
                double mean = 0;
                for (float value : y) {
                    assertEquals(Math.rint(value * 0.75), value * 0.75, 1e-3, "a sum of kept values, each 1 / 0.75");
                    mean += value / y.length;
                }
                assertEquals(64, mean, 1);
                Tensor dy = scope.tensor(DType.FLOAT32, 500, 1);
                dy.set(device.stream(), ones(500));
                float[] dx = layer.backward(dy, pass).toFloats(device.stream());
                for (int row = 0; row < y.length; row++) {
                    float sum = 0;
                    for (int i = 0; i < 64; i++) {
                        sum += dx[64 * row + i];
                    }
                    assertEquals(y[row], sum, 1e-3, "the gradient passes where the value did");
                }
                float total = 0;
                for (float value : parameters.get("dense.lora_A").gradient().toFloats(device.stream())) {
                    total += value;
                }
                assertEquals(mean * 500, total, 1, "and so does that of A");
            }
            try (Pass pass = Pass.evaluation(device)) {
                pass.begin();
                for (float value : layer.forward(x, pass).toFloats(device.stream())) {
                    assertEquals(64, value);
                }
            }
        }
    }

    private static float[] ones(long count) {
        float[] ones = new float[(int) count];
        Arrays.fill(ones, 1);
        return ones;
    }

    @Test
    void beginsWithTheProductAlone() {
        LoraConfig lora = LoraConfig.of(RANK, Form.GELU_ERF.targets());
        ModelPlan plan = new ModelPlan();
        plan.adapt(lora);
        new TransformerLayer(Form.GELU_ERF.config(), plan.group("layers.0"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 3)) {
            float bound = (float) (1 / Math.sqrt(HIDDEN));
            float largest = 0;
            for (float value : parameters
                    .get("layers.0.attention.qkv.linear.lora_A")
                    .weight()
                    .toFloats(device.stream())) {
                assertTrue(Math.abs(value) <= bound);
                largest = Math.max(largest, Math.abs(value));
            }
            assertTrue(largest > 0.9 * bound);
            for (float value : parameters
                    .get("layers.0.attention.qkv.linear.lora_B")
                    .weight()
                    .toFloats(device.stream())) {
                assertEquals(0, value);
            }
        }
    }

    @Test
    void hasTheFactorOfItsScaling() {
        LoraConfig lora = LoraConfig.of(16, "query").withAlpha(32);
        assertEquals(2, lora.factor());
        assertEquals(8, lora.withScaling(LoraConfig.Scaling.ROOT_OF_RANK).factor());
        assertTrue(lora.isTarget("layers.0.attention.qkv.linear.query"));
        assertFalse(lora.isTarget("layers.0.attention.subquery"));
    }

    @Test
    void refusesTargetsThatMeanNothing() {
        ModelPlan plan = new ModelPlan();
        plan.adapt(LoraConfig.of(2, "dense", "fc3"));
        new Linear(16, 16, Initializer.zeros(), plan.child("dense"));
        try (Device device = Device.open()) {
            assertEquals(
                    "targets: expected names of products, which are dense, got fc3",
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> Parameters.allocate(device, plan, DType.FLOAT32, 1))
                            .getMessage());
        }
        assertEquals(
                "adapt: expected a plan without parameters, got one with dense.weight; call it before layers are made",
                assertThrows(IllegalStateException.class, () -> plan.adapt(LoraConfig.of(2, "dense")))
                        .getMessage());
        ModelPlan other = new ModelPlan();
        other.adapt(LoraConfig.of(2, "dense").withTrained("dense.weight"));
        assertEquals(
                "trained: expected no weight that has adapters, got dense.weight",
                assertThrows(
                                IllegalArgumentException.class,
                                () -> new Linear(16, 16, Initializer.zeros(), other.child("dense")))
                        .getMessage());
        assertEquals(
                "rank: expected 1 to 65536, got 0",
                assertThrows(IllegalArgumentException.class, () -> LoraConfig.of(0, "dense"))
                        .getMessage());
        assertEquals(
                "alpha: expected a finite number above 0, got 0.0",
                assertThrows(
                                IllegalArgumentException.class,
                                () -> LoraConfig.of(1, "dense").withAlpha(0))
                        .getMessage());
        assertEquals(
                "targets: expected at least one name of a product, such as query, none of them empty, got []",
                assertThrows(IllegalArgumentException.class, () -> LoraConfig.of(1))
                        .getMessage());
    }
}
