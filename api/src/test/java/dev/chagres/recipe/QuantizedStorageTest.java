package dev.chagres.recipe;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.io.Safetensors;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.te.Activation;
import dev.chagres.witness.AdamWWitness;
import dev.chagres.witness.Float8Witness;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Weights of products in eight bits, of FP32 masters, without a copy in the model's type. */
@Tag("L0")
@Tag("L1")
class QuantizedStorageTest {
    private static final int HIDDEN = 32;
    private static final int TOKENS = 21;
    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.1f);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** A transformer layer with a gated MLP, its parameters and a recipe. */
    private static final class Model implements AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final Layer layer;
        private final Parameters parameters;
        private final Quantizers quantizers;

        Model(Recipe recipe, DType dtype, WeightStorage storage) {
            TransformerLayerConfig config = TransformerLayerConfig.encoder(
                            HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()))
                    .withMlp(MlpConfig.gelu(HIDDEN).withActivation(Activation.SWIGLU));
            layer = new TransformerLayer(config, plan.group("layers.0"));
            parameters = Parameters.allocate(open.device(), plan, dtype, 5, storage);
            quantizers = Quantizers.allocate(parameters, recipe);
        }

        private Pass begin(Pass pass) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 9, 1, 11));
            pass.autocast(quantizers);
            return pass;
        }

        /** Returns output and gradient of the input of a step without an update. */
        private List<float[]> step(Tensor x) {
            Tensor y = layer.forward(x, begin(open.pass()));
            List<float[]> results = new ArrayList<>();
            results.add(open.read(y));
            results.add(open.read(layer.backward(y, open.pass())));
            return results;
        }

        private List<float[]> gradients() {
            parameters.completeGradients();
            return plan.parameters().stream()
                    .map(parameter -> open.read(parameter.gradient()))
                    .toList();
        }

        @Override
        public void close() {
            parameters.close();
        }
    }

    private static Tensor input(DType dtype) {
        return open.tensor(dtype, open.normal(dtype, TOKENS, HIDDEN, 1));
    }

    private static double[] doubles(Tensor tensor) {
        float[] values = open.read(tensor);
        double[] doubles = new double[values.length];
        Arrays.setAll(doubles, i -> values[i]);
        return doubles;
    }

    /** Masters that are numbers of the model's type give the bits of weights that are. */
    @ParameterizedTest
    @MethodSource("dev.chagres.recipe.RecipeLinearConformance#recipes")
    void theSameBitsAsWeightsOfTheModelsType(Recipe recipe) {
        for (DType dtype : List.of(DType.BFLOAT16, DType.FLOAT16)) {
            try (Model plain = new Model(recipe, dtype, WeightStorage.MODEL_TYPE);
                    Model quantized = new Model(recipe, dtype, WeightStorage.QUANTIZED)) {
                for (Parameter parameter : quantized.parameters.all()) {
                    Tensor weight = plain.parameters.get(parameter.name()).weight();
                    open.set(parameter.weight(), doubles(weight));
                    boolean matrix = parameter.shape().rank() == 2;
                    assertEquals(
                            matrix ? WeightStorage.QUANTIZED : WeightStorage.MODEL_TYPE,
                            parameter.storage(),
                            parameter.name());
                    assertEquals(
                            matrix ? DType.FLOAT32 : dtype, parameter.weight().dtype());
                }
                Tensor x = input(dtype);
                for (int step = 0; step < 3; step++) {
                    assertSame(plain.step(x), quantized.step(x));
                    assertSame(plain.gradients(), quantized.gradients());
                    plain.parameters.nextStep();
                    quantized.parameters.nextStep();
                }
                try (Pass evaluation = Pass.evaluation(open.device())) {
                    float[] expected = open.read(plain.layer.forward(x, plain.begin(evaluation)));
                    assertArrayEquals(expected, open.read(quantized.layer.forward(x, quantized.begin(evaluation))));
                }
            }
        }
    }

    private static void assertSame(List<float[]> expected, List<float[]> actual) {
        assertEquals(expected.size(), actual.size());
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), actual.get(i), "result " + i);
        }
    }

    /** Masters begin as they were drawn, follow the formula of AdamW, and what products read is their nearest number. */
    @ParameterizedTest
    @MethodSource("dev.chagres.recipe.RecipeLinearConformance#recipes")
    void adamUpdatesMasters(Recipe recipe) {
        try (Model model = new Model(recipe, DType.BFLOAT16, WeightStorage.QUANTIZED);
                AdamW adam = new AdamW(model.parameters, ADAM)) {
            Tensor x = input(DType.BFLOAT16);
            Map<Parameter, AdamWWitness> witnesses = new LinkedHashMap<>();
            for (Parameter parameter : model.parameters.all()) {
                if (parameter.storage() == WeightStorage.QUANTIZED) {
                    double[] decay = new double[(int) parameter.shape().count()];
                    Arrays.fill(decay, ADAM.weightDecay());
                    witnesses.put(
                            parameter,
                            new AdamWWitness(
                                    ADAM.beta1(), ADAM.beta2(), ADAM.epsilon(), decay, doubles(parameter.weight())));
                }
            }
            for (int step = 0; step < 3; step++) {
                model.step(x);
                Map<Parameter, double[]> gradients = new LinkedHashMap<>();
                witnesses.keySet().forEach(parameter -> gradients.put(parameter, doubles(parameter.gradient())));
                adam.step(1e-2f);
                witnesses.forEach((parameter, witness) -> open.assertClose(
                        parameter.name(),
                        witness.step(1e-2f, Objects.requireNonNull(gradients.get(parameter)), 1),
                        open.read(parameter.weight()),
                        0,
                        new Tolerance("Adam, 3 steps in FP32", 2e-6, 2e-5)));
            }
            assertNearest(model);
        }
    }

    private static void assertNearest(Model model) {
        for (QuantizerSite site : model.parameters.quantizers()) {
            if (site.role() != QuantizerSite.Role.WEIGHT) {
                continue;
            }
            QuantizedTensor copies = model.quantizers.weight(
                    site, Recipe.Product.FORWARD, AmaxRecording.OFF, open.scope(), open.stream());
            float[] inverse = open.read(Objects.requireNonNull(copies.rowwiseScaleInverse()));
            double[] stored = Float8Witness.values(
                    Objects.requireNonNull(copies.rowwise()).toBytes(open.stream()), copies.dtype());
            float[] master = open.read(site.weight().weight());
            for (int i = 0; i < stored.length; i++) {
                double exact = master[i] / inverse[scaleIndex(copies, i)];
                double low = Float8Witness.nearest(exact * (1 - 3e-7), copies.dtype());
                double high = Float8Witness.nearest(exact * (1 + 3e-7), copies.dtype());
                assertTrue(
                        stored[i] >= Math.min(low, high) && stored[i] <= Math.max(low, high),
                        site + "[" + i + "]: " + exact + " is stored as " + stored[i]);
            }
        }
    }

    /** Returns where the inverse scale of an element is; rows of scales are filled up to four. */
    private static int scaleIndex(QuantizedTensor copies, int element) {
        int row = element / (int) copies.columns();
        int column = element % (int) copies.columns();
        int scales = (int)
                Objects.requireNonNull(copies.rowwiseScaleInverse()).size(copies.scaling() == Scaling.TENSOR ? 0 : 1);
        return switch (copies.scaling()) {
            case TENSOR -> 0;
            case BLOCK_1D -> column / 128 * scales + row;
            case BLOCK_2D -> row / 128 * scales + column / 128;
        };
    }

    @ParameterizedTest
    @MethodSource("dev.chagres.recipe.RecipeLinearConformance#recipes")
    void aResumedRunHasTheSameBits(Recipe recipe, @TempDir Path folder) {
        Tensor x = input(DType.BFLOAT16);
        List<float[]> expected;
        try (Model model = new Model(recipe, DType.BFLOAT16, WeightStorage.QUANTIZED);
                AdamW adam = new AdamW(model.parameters, ADAM)) {
            train(model, adam, x, 2);
            Safetensors.save(folder.resolve("a"), model.parameters.state(), open.stream(), Map.of());
            Safetensors.save(folder.resolve("b"), model.quantizers.state(), open.stream(), Map.of());
            Safetensors.save(folder.resolve("c"), adam.state(), open.stream(), Map.of());
            train(model, adam, x, 2);
            expected = model.step(x);
        }
        try (Model model = new Model(recipe, DType.BFLOAT16, WeightStorage.QUANTIZED);
                AdamW adam = new AdamW(model.parameters, ADAM)) {
            train(model, adam, x, 1);
            Safetensors.load(folder.resolve("a"), model.parameters.state(), open.stream());
            Safetensors.load(folder.resolve("b"), model.quantizers.state(), open.stream());
            Safetensors.load(folder.resolve("c"), adam.state(), open.stream());
            train(model, adam, x, 2);
            assertSame(expected, model.step(x));
        }
    }

    private static void train(Model model, AdamW adam, Tensor x, int steps) {
        for (int i = 0; i < steps; i++) {
            model.step(x);
            adam.step(1e-2f);
        }
    }

    /** A weight of two bytes less for each weight, in all that training holds; the table says which. */
    @Test
    void twoBytesAWeightLess() {
        long[] bytes = new long[2];
        long products = 0;
        for (WeightStorage storage : List.of(WeightStorage.MODEL_TYPE, WeightStorage.QUANTIZED)) {
            try (Model model = new Model(Float8CurrentScaling.standard(), DType.BFLOAT16, storage);
                    AdamW adam = new AdamW(model.parameters, ADAM.withMasters(AdamW.Masters.FLOAT32))) {
                products = model.parameters.all().stream()
                        .filter(parameter -> parameter.shape().rank() == 2)
                        .mapToLong(parameter -> parameter.shape().count())
                        .sum();
                long masters = adam.state().tensors().entrySet().stream()
                        .filter(entry -> entry.getKey().endsWith(".master"))
                        .mapToLong(entry -> entry.getValue().byteSize())
                        .sum();
                bytes[storage.ordinal()] = model.parameters.byteSize() + masters;
                String line = model.parameters
                        .toString()
                        .lines()
                        .filter(text -> text.startsWith("layers.0.mlp.fc1.weight"))
                        .findFirst()
                        .orElseThrow();
                assertEquals(storage == WeightStorage.QUANTIZED, line.endsWith("  quantized"), line);
            }
        }
        assertEquals(2 * products, bytes[0] - bytes[1]);
    }

    /** Frozen weights have masters that nothing updates, and the layer's input its gradient. */
    @ParameterizedTest
    @EnumSource(names = "QUANTIZED")
    void frozen(WeightStorage storage) {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(HIDDEN, 48, Initializer.normal(0.2f), plan.child("a"));
        linear.weight().freeze();
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1, storage);
                AdamW adam = new AdamW(parameters, ADAM)) {
            float[] before = open.read(linear.weight().weight());
            Pass pass = open.pass();
            pass.begin();
            pass.autocast(Quantizers.allocate(parameters, Float8BlockScaling.standard()));
            Tensor y = linear.forward(input(DType.BFLOAT16), pass);
            float[] dx = open.read(linear.backward(y, pass));
            adam.step(1);
            assertArrayEquals(before, open.read(linear.weight().weight()));
            assertTrue(dx[0] != 0);
            assertTrue(linear.bias().hasGradient() || parameters.step() == 1);
        }
    }

    @Test
    void whatKeepsTheModelsType() {
        ModelPlan plan = new ModelPlan();
        Embedding embedding = new Embedding(64, HIDDEN, Initializer.normal(1), plan.child("embedding"));
        Linear tied = Linear.tied(embedding.weight(), plan.child("decoder"));
        Linear head = new Linear(HIDDEN, 48, Initializer.normal(0.2f), plan.child("head"));
        Linear odd = new Linear(HIDDEN, 40, Initializer.normal(0.2f), plan.child("odd"));
        Linear quantized = new Linear(HIDDEN, 48, Initializer.normal(0.2f), plan.child("even"));
        try (Parameters parameters =
                Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1, WeightStorage.QUANTIZED)) {
            for (Linear linear : List.of(tied, head, odd)) {
                assertEquals(WeightStorage.MODEL_TYPE, linear.weight().storage(), linear.name());
                assertEquals(DType.BFLOAT16, linear.weight().weight().dtype(), linear.name());
            }
            assertEquals(WeightStorage.QUANTIZED, quantized.weight().storage());
            assertEquals(DType.BFLOAT16, parameters.dtype());
        }
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            assertEquals(WeightStorage.MODEL_TYPE, quantized.weight().storage());
            assertEquals(parameters, quantized.weight().owner());
        }
    }

    @Test
    void withoutTokens() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(HIDDEN, 48, Initializer.normal(0.2f), plan.child("a"));
        try (Parameters parameters =
                Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1, WeightStorage.QUANTIZED)) {
            Pass pass = open.pass();
            pass.begin();
            pass.autocast(Quantizers.allocate(parameters, Float8CurrentScaling.standard()));
            Tensor y = linear.forward(open.scope().tensor(DType.BFLOAT16, 0, HIDDEN), pass);
            linear.backward(y, pass);
            assertArrayEquals(new float[48 * HIDDEN], open.read(linear.weight().gradient()));
        }
    }

    @Test
    void refusals() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(HIDDEN, 48, Initializer.normal(0.2f), plan.group("a"));
        new Linear(HIDDEN, 48, Initializer.normal(0.2f), plan.group("b"));
        assertThrown(
                IllegalArgumentException.class,
                "dtype: expected BFLOAT16 or FLOAT16 where weights are QUANTIZED, for products in eight bits give"
                        + " results of 16, got FLOAT32",
                () -> Parameters.allocate(open.device(), plan, DType.FLOAT32, 1, WeightStorage.QUANTIZED));
        try (Parameters parameters =
                Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1, WeightStorage.QUANTIZED)) {
            assertThrown(
                    IllegalArgumentException.class,
                    "parameters: a.weight is kept QUANTIZED, so that it has no copy in the model's type, but group a of"
                            + " a.weight is to keep that type; cover it, or allocate with WeightStorage.MODEL_TYPE",
                    () -> Quantizers.allocate(parameters, Float8CurrentScaling.standard(), Set.of("a")));
            Tensor x = input(DType.BFLOAT16);
            Pass pass = open.pass();
            pass.begin();
            pass.noAutocast();
            String text =
                    "a.weight is kept in eight bits, beside a master (QUANTIZED), so its products need a recipe, but"
                            + " the pass %s; call pass.autocast, or allocate with WeightStorage.MODEL_TYPE";
            assertThrown(IllegalStateException.class, String.format(text, "has none"), () -> linear.forward(x, pass));
            Quantizers quantizers = Quantizers.allocate(parameters, DelayedScaling.standard());
            pass.begin();
            pass.calibrate(quantizers);
            assertThrown(IllegalStateException.class, String.format(text, "calibrates"), () -> linear.forward(x, pass));
            pass.begin();
            pass.autocast(quantizers);
            assertTrue(
                    linear.explain(x, pass).endsWith("cast from its FP32 master, without a copy of 16 bits"),
                    linear.explain(x, pass));
            assertThrown(
                    IllegalArgumentException.class,
                    "x: a expected BFLOAT16[T, 32], got FLOAT32[21, 32]",
                    () -> linear.forward(input(DType.FLOAT32), pass));
        }
    }
}
