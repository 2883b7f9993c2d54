package dev.chagres.drawn;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.ResidualFactors;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.drawn.DrawnLayer.Precision;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.FanOut;
import dev.chagres.layer.Pass;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.model.Parameters;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.witness.RotaryWitness;
import dev.chagres.witness.TransformerLayerWitness;
import dev.chagres.witness.Weights;
import java.util.Arrays;
import java.util.List;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.EdgeCasesMode;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.Provide;
import net.jqwik.api.lifecycle.AfterContainer;
import net.jqwik.api.lifecycle.BeforeContainer;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;

/**
 * Forward and every gradient of drawn layers against double precision. A failure prints the layer that was drawn and the plainest
 * that fails like it.
 */
class DrawnLayersTest {
    private static final String SEED = "2026";
    private static final OpenDevice open = new OpenDevice();

    @BeforeContainer
    static void openDevice() {
        open.open();
    }

    @AfterContainer
    static void closeDevice() {
        open.close();
    }

    @Provide
    static Arbitrary<DrawnLayer> inFloat32() {
        return DrawnLayers.of(Precision.FLOAT32);
    }

    @Provide
    static Arbitrary<DrawnLayer> inBfloat16() {
        return DrawnLayers.of(Precision.BFLOAT16);
    }

    @Provide
    static Arbitrary<DrawnLayer> inFloat16() {
        return DrawnLayers.of(Precision.FLOAT16);
    }

    @Provide
    static Arbitrary<DrawnLayer> withDelayedScaling() {
        return DrawnLayers.of(Precision.DELAYED);
    }

    @Provide
    static Arbitrary<DrawnLayer> withCurrentScaling() {
        return DrawnLayers.of(Precision.CURRENT);
    }

    @Provide
    static Arbitrary<DrawnLayer> withBlockScaling() {
        return DrawnLayers.of(Precision.BLOCK);
    }

    @Property(tries = 600, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void float32(@ForAll("inFloat32") DrawnLayer layer) {
        check(layer);
    }

    @Property(tries = 400, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void bfloat16(@ForAll("inBfloat16") DrawnLayer layer) {
        check(layer);
    }

    @Property(tries = 400, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void float16(@ForAll("inFloat16") DrawnLayer layer) {
        check(layer);
    }

    @Property(tries = 250, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void delayedScaling(@ForAll("withDelayedScaling") DrawnLayer layer) {
        check(layer);
    }

    @Property(tries = 250, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void currentScaling(@ForAll("withCurrentScaling") DrawnLayer layer) {
        check(layer);
    }

    @Property(tries = 250, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void blockScaling(@ForAll("withBlockScaling") DrawnLayer layer) {
        check(layer);
    }

    private static void check(DrawnLayer drawn) {
        open.begin(drawn.seed());
        try {
            compare(drawn);
        } finally {
            open.end();
        }
    }

    private static void compare(DrawnLayer drawn) {
        DType dtype = drawn.precision().dtype();
        ModelPlan plan = new ModelPlan();
        FanOut memory = new FanOut("memory");
        TransformerLayer layer = drawn.decodes()
                ? new TransformerLayer(drawn.config(), memory, plan)
                : new TransformerLayer(drawn.config(), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, dtype, 1)) {
            Weights weights = open.draw(parameters);
            TransformerLayerWitness witness = new TransformerLayerWitness(
                    drawn.config(),
                    weights,
                    "",
                    drawn.tokens().rows(),
                    drawn.keys().rows(),
                    rotate(drawn, layer));
            rotateCrossAttention(drawn, layer, witness);
            RealMatrix x = open.normal(dtype, drawn.tokens().tokens(), drawn.hidden(), 1);
            RealMatrix dy = open.normal(dtype, drawn.tokens().tokens(), drawn.hidden(), 1);
            RealMatrix m = open.normal(dtype, drawn.keys().tokens(), DrawnLayer.MEMORY, 1);
            Sequences sequences = sequences(drawn);
            Pass pass = open.pass().begin(sequences);
            keep(drawn, witness, pass);
            Recipe recipe = drawn.precision().recipe();
            try (Quantizers quantizers = recipe == null ? null : Quantizers.allocate(parameters, recipe)) {
                if (quantizers != null) {
                    pass.autocast(quantizers);
                    step(drawn, layer, memory, x, dy, m, sequences); // delayed scaling learns its scales
                    parameters.completeGradients();
                    parameters.nextStep();
                }
                Step step = step(drawn, layer, memory, x, dy, m, sequences);
                Tolerance tolerance = tolerance(drawn);
                open.assertClose("y", drawn.decodes() ? witness.forward(x, m) : witness.forward(x), step.y, tolerance);
                open.assertClose("dx", witness.backward(dy), step.dx, gradientTolerance(drawn));
                if (drawn.decodes()) {
                    open.assertClose(
                            "gradient of the memory",
                            witness.crossAttention().memoryGradient(),
                            step.dmemory,
                            gradientTolerance(drawn));
                }
                assertGradients(drawn, parameters, weights, witness);
                if (recipe != null) {
                    assertTogether(drawn, parameters, weights);
                }
            }
        }
    }

    private record Step(Tensor y, Tensor dx, Tensor dmemory) {}

    private static Step step(
            DrawnLayer drawn,
            TransformerLayer layer,
            FanOut memory,
            RealMatrix x,
            RealMatrix dy,
            RealMatrix m,
            Sequences sequences) {
        DType dtype = drawn.precision().dtype();
        Pass pass = open.pass().begin(sequences);
        pass.seed(drawn.seed(), 5, 2);
        memory.forward(open.tensor(dtype, m), pass);
        Tensor y = layer.forward(open.tensor(dtype, x), pass);
        Tensor dx = layer.backward(open.tensor(dtype, dy), pass);
        return new Step(y, dx, memory.backward(pass));
    }

    private static Sequences sequences(DrawnLayer drawn) {
        Sequences sequences = drawn.tokens().sequences(open.scope());
        if (!drawn.starts().isEmpty()) {
            sequences = sequences.startingAt(
                    open.scope(),
                    drawn.starts().stream().mapToInt(Integer::intValue).toArray());
        }
        return drawn.decodes() ? sequences.withKeys(drawn.keys().sequences(open.scope())) : sequences;
    }

    private static @Nullable RotaryWitness rotate(DrawnLayer drawn, TransformerLayer layer) {
        RotaryConfig rotary = drawn.rotary();
        if (rotary == null) {
            return null;
        }
        layer.rotate(RotaryEmbedding.of(open.scope(), 128, rotary));
        return witness(rotary, drawn.tokens(), drawn.starts());
    }

    /** Rotates cross-attention as self-attention, where its heads may have another size. */
    private static void rotateCrossAttention(
            DrawnLayer drawn, TransformerLayer layer, TransformerLayerWitness witness) {
        RotaryConfig rotary = drawn.rotary();
        CrossAttentionConfig cross = drawn.config().crossAttention();
        if (rotary != null && cross != null) {
            RotaryConfig own = RotaryConfig.of(cross.attention().headDim())
                    .withPairing(rotary.pairing())
                    .withBase(rotary.base());
            layer.crossAttention().rotate(RotaryEmbedding.of(open.scope(), 128, own));
            witness.crossAttention()
                    .rotate(witness(own, drawn.tokens(), drawn.starts()), witness(own, drawn.keys(), List.of()));
        }
    }

    private static RotaryWitness witness(RotaryConfig rotary, TokenRows tokens, List<Integer> starts) {
        double[] frequencies = Arrays.stream(RotaryWitness.ofBase(rotary.rotatedDim(), rotary.base()))
                .map(frequency -> frequency / rotary.interpolationFactor())
                .toArray();
        List<int[]> rows = tokens.rows();
        int[] first = starts.isEmpty()
                ? new int[rows.size()]
                : starts.stream().mapToInt(Integer::intValue).toArray();
        return new RotaryWitness(rotary.headDim(), frequencies, rotary.pairing(), rows, first);
    }

    /** Gives the witness what the layer will leave out, sum by sum. */
    private static void keep(DrawnLayer drawn, TransformerLayerWitness witness, Pass pass) {
        pass.seed(drawn.seed(), 5, 2);
        RealMatrix[] factors = new RealMatrix[witness.sums()];
        for (int i = 0; i < factors.length; i++) {
            factors[i] = ResidualFactors.draw(
                    pass,
                    drawn.tokens(),
                    drawn.hidden(),
                    drawn.config().hiddenDropout(),
                    drawn.config().dropPath());
        }
        witness.keep(factors);
    }

    /** Few tokens and columns average little, and the softmax of a decoder's memory carries rounding on: more than larger layers need. */
    private static Tolerance tolerance(DrawnLayer drawn) {
        return drawn.precision().recipe() == null
                ? Tolerances.layers(drawn.precision().dtype(), drawn.decodes() ? 100 : 16)
                : new Tolerance("FP8 " + drawn.precision() + ", y", 0.25, 2);
    }

    /**
     * E5M2 rounds by up to an eighth, and what cancels shows that as large as itself; all gradients together say more, see {@link
     * #assertTogether}.
     */
    private static Tolerance gradientTolerance(DrawnLayer drawn) {
        return drawn.precision().recipe() == null
                ? tolerance(drawn)
                : new Tolerance("FP8 " + drawn.precision() + ", one gradient", 1, 6);
    }

    /** Compares all gradients of the layer as one vector. */
    private static void assertTogether(DrawnLayer drawn, Parameters parameters, Weights weights) {
        int count = parameters.all().stream()
                .mapToInt(p -> Math.toIntExact(p.shape().count()))
                .sum();
        double[] expected = new double[count];
        float[] actual = new float[count];
        int next = 0;
        for (Parameter parameter : parameters.all()) {
            double[] entries = Comparison.entries(weights.gradient(parameter.name()));
            System.arraycopy(entries, 0, expected, next, entries.length);
            System.arraycopy(open.read(parameter.gradient()), 0, actual, next, entries.length);
            next += entries.length;
        }
        Tolerance tolerance = new Tolerance("FP8 " + drawn.precision() + ", all gradients", 0.3, 6);
        open.assertClose("all gradients", expected, actual, 0, tolerance);
    }

    private static void assertGradients(
            DrawnLayer drawn, Parameters parameters, Weights weights, TransformerLayerWitness witness) {
        for (Parameter parameter : parameters.all()) {
            open.assertClose(
                    "gradient of " + parameter.name(),
                    Comparison.entries(weights.gradient(parameter.name())),
                    open.read(parameter.gradient()),
                    summands(parameter.name(), weights, witness),
                    gradientTolerance(drawn));
        }
    }

    /**
     * What errors are compared with at least. A bias of keys moves all scores of a query alike: its gradient is 0, a sum of
     * numbers of the size returned.
     */
    private static double summands(String name, Weights weights, TransformerLayerWitness witness) {
        RealMatrix gradient = switch (name) {
            case "cross_attention.key.bias" -> witness.crossAttention().keyGradient();
            case "attention.k_norm.bias" -> weights.gradient("attention.k_norm.weight");
            case "cross_attention.k_norm.bias" -> weights.gradient("cross_attention.k_norm.weight");
            default -> weights.gradient(name);
        };
        boolean cancels = name.equals("cross_attention.key.bias") || name.endsWith("k_norm.bias");
        return cancels ? Math.max(0.1, gradient.getFrobeniusNorm() / Math.sqrt(gradient.getColumnDimension())) : 0.1;
    }
}
