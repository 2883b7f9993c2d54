package dev.chagres.conformance;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.MultiheadAttention;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.NormConfig.Kind;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.layer.TransformerLayerConfig.ResidualSource;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import dev.chagres.te.Activation;
import dev.chagres.witness.AttentionLayerWitness;
import dev.chagres.witness.TransformerLayerWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.UnaryOperator;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** The options of {@code TransformerLayer} against double precision, and the text of what they refuse. */
@Tag("L0")
@Tag("L1")
class TransformerLayerOptionsConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static final int MEMORY = 40;

    enum Option {
        PARALLEL(config -> config.withBranchOrder(BranchOrder.PARALLEL)),
        ADDS_TO_NORM(config -> config.withResidual(ResidualSource.NORM)),
        NORMS_OUTPUT(config -> config.withNormPlacement(NormPlacement.OUTPUT)),
        NORMS_OUTPUT_AND_ADDS_TO_NORM(
                config -> config.withNormPlacement(NormPlacement.OUTPUT).withResidual(ResidualSource.NORM)),
        DECODER(TransformerLayerOptionsConformance::decoder),
        DECODER_WITHOUT_BIAS(config -> decoder(config)
                .withBias(Bias.ABSENT)
                .withMlp(config.mlp().withActivation(Activation.SWIGLU).withBias(Bias.ABSENT))),
        DECODER_THAT_ADDS_TO_NORM(config -> decoder(config).withResidual(ResidualSource.NORM)),
        DECODER_THAT_NORMS_OUTPUT(config -> decoder(config).withNormPlacement(NormPlacement.OUTPUT));

        private final UnaryOperator<TransformerLayerConfig> change;

        Option(UnaryOperator<TransformerLayerConfig> change) {
            this.change = change;
        }
    }

    private static TransformerLayerConfig decoder(TransformerLayerConfig config) {
        AttentionConfig cross = AttentionConfig.of(4, config.attention().headDim(), AttentionMask.none())
                .withKeyHeads(2);
        return config.withCrossAttention(CrossAttentionConfig.of(config.hidden(), cross)
                .withMemoryColumns(MEMORY)
                .withNorm(config.norm()));
    }

    record Case(Option option, DType dtype, Kind kind, int hidden, int headDim, Dropout values, Dropout paths) {
        TransformerLayerConfig config() {
            return option.change.apply(
                    TransformerLayerConfig.encoder(hidden, AttentionConfig.of(3, headDim, AttentionMask.causal()))
                            .withMlp(MlpConfig.gelu(hidden).withInner(2L * hidden))
                            .withNorm(new NormConfig(kind, hidden, 1e-5f))
                            .withHiddenDropout(values)
                            .withDropPath(paths)
                            .withInitializer(Initializer.zeros()));
        }
    }

    static List<Case> cases() {
        Dropout none = Dropout.none();
        List<Case> cases = new ArrayList<>();
        for (Option option : Option.values()) {
            for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
                cases.add(new Case(option, dtype, Kind.LAYER_NORM, 48, 16, none, none));
                // Rows of no multiple of 16 bytes: the sums are not fused with the norms.
                cases.add(new Case(option, dtype, Kind.LAYER_NORM, 35, 8, none, none));
                cases.add(new Case(option, dtype, Kind.RMS_NORM, 48, 16, none, none));
                cases.add(new Case(option, dtype, Kind.LAYER_NORM, 48, 16, Dropout.of(0.2f), Dropout.of(0.4f)));
            }
        }
        return cases;
    }

    private static final TokenRows QUERIES = TokenRows.packed(17, 1, 5, 33);
    private static final TokenRows KEYS = TokenRows.packed(3, 9, 40, 2);

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        TransformerLayerConfig config = c.config();
        boolean decodes = config.crossAttention() != null;
        ModelPlan plan = new ModelPlan();
        SharedInput memory = new SharedInput("memory");
        TransformerLayer layer =
                decodes ? new TransformerLayer(config, memory, plan) : new TransformerLayer(config, plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            Weights weights = open.draw(parameters);
            TransformerLayerWitness witness =
                    new TransformerLayerWitness(config, weights, "", QUERIES.rows(), KEYS.rows(), null);
            RealMatrix x = open.normal(c.dtype, QUERIES.tokens(), c.hidden, 1);
            RealMatrix dy = open.normal(c.dtype, QUERIES.tokens(), c.hidden, 1);
            RealMatrix m = open.normal(c.dtype, KEYS.tokens(), MEMORY, 1);
            Tensor memoryTensor = open.tensor(c.dtype, m);
            Sequences sequences = QUERIES.sequences(open.scope()).withKeys(KEYS.sequences(open.scope()));
            Pass pass = open.pass().begin(sequences);
            keep(c, witness, pass);
            pass.begin(sequences);
            pass.seed(11, 5, 2);
            memory.forward(memoryTensor, pass);
            Tensor y = layer.forward(open.tensor(c.dtype, x), pass);
            Tolerance tolerance = Tolerances.layers(c.dtype, decodes ? 2 : 1);
            open.assertClose("y", decodes ? witness.forward(x, m) : witness.forward(x), y, tolerance);
            RealMatrix dx = witness.backward(dy);
            open.assertClose("dx", dx, layer.backward(open.tensor(c.dtype, dy), pass), tolerance);
            Tensor dmemory = memory.backward(pass);
            if (decodes) {
                open.assertClose(
                        "gradient of the memory", witness.crossAttention().memoryGradient(), dmemory, tolerance);
            }
            assertGradients(parameters, weights, tolerance);
        }
    }

    /** Gives the witness what the layer will leave out, sum by sum. */
    private static void keep(Case c, TransformerLayerWitness witness, Pass pass) {
        if (c.values.isNone()) {
            return;
        }
        pass.seed(11, 5, 2);
        RealMatrix[] factors = new RealMatrix[witness.sums()];
        for (int i = 0; i < factors.length; i++) {
            factors[i] = ResidualFactors.draw(pass, QUERIES, c.hidden, c.values, c.paths);
        }
        witness.keep(factors);
    }

    private static void assertGradients(Parameters parameters, Weights weights, Tolerance tolerance) {
        for (Parameter parameter : parameters.all()) {
            open.assertClose(
                    "gradient of " + parameter.name(),
                    Comparison.entries(weights.gradient(parameter.name())),
                    open.read(parameter.gradient()),
                    0.1,
                    tolerance);
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16"})
    void attentionWithoutNorm(DType dtype) {
        AttentionConfig config = AttentionConfig.of(3, 16, AttentionMask.none());
        ModelPlan plan = new ModelPlan();
        MultiheadAttention layer =
                MultiheadAttention.withoutNorm(40, config, Bias.PRESENT, Initializer.zeros(), plan.child("bare"));
        assertFalse(layer.hasNorm());
        assertThrown(IllegalStateException.class, "bare was made without a norm; ask hasNorm() first", layer::norm);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, dtype, 1)) {
            Weights weights = open.draw(parameters);
            AttentionLayerWitness witness = new AttentionLayerWitness(config, weights, "bare.", QUERIES.rows(), null);
            RealMatrix x = open.normal(dtype, QUERIES.tokens(), 40, 1);
            RealMatrix dy = open.normal(dtype, QUERIES.tokens(), 40, 1);
            Pass pass = open.pass().begin(QUERIES.sequences(open.scope()));
            Tensor y = layer.forward(open.tensor(dtype, x), pass);
            open.assertClose("y", witness.forward(x), y, Tolerances.layer(dtype));
            Tensor dx = layer.backward(open.tensor(dtype, dy), pass);
            open.assertClose("dx", witness.backward(dy), dx, Tolerances.layer(dtype));
            assertGradients(parameters, weights, Tolerances.layer(dtype));
        }
    }

    private static TransformerLayerConfig encoder() {
        return TransformerLayerConfig.encoder(32, AttentionConfig.of(2, 16, AttentionMask.none()));
    }

    @Test
    void refusesWhatDoesNotGoTogether() {
        Class<IllegalArgumentException> argument = IllegalArgumentException.class;
        AttentionConfig cross = AttentionConfig.of(2, 8, AttentionMask.none());
        TransformerLayerConfig decoder =
                TransformerLayerConfig.decoder(32, encoder().attention(), cross);
        assertThrown(
                argument,
                "config: has cross-attention, which needs a SharedInput; call new TransformerLayer(config, memory, plan)",
                () -> new TransformerLayer(decoder, new ModelPlan()));
        assertThrown(
                argument,
                "config: expected one with cross-attention, such as TransformerLayerConfig.decoder(…), got one without",
                () -> new TransformerLayer(encoder(), new SharedInput("memory"), new ModelPlan()));
        assertThrown(
                argument,
                "crossAttention: expected 32 columns as the norm, got 48",
                () -> encoder().withCrossAttention(CrossAttentionConfig.of(48, cross)));
        assertThrown(
                argument,
                "memoryColumns: expected at least 1, got 0",
                () -> CrossAttentionConfig.of(48, cross).withMemoryColumns(0));
        String parallel =
                "branchOrder: PARALLEL expects no cross-attention, ResidualSource.INPUT and NormPlacement.INPUT,"
                        + " got ";
        assertThrown(
                argument,
                parallel + "cross-attention, INPUT and INPUT",
                () -> decoder.withBranchOrder(BranchOrder.PARALLEL));
        assertThrown(
                argument,
                parallel + "no cross-attention, NORM and INPUT",
                () -> encoder().withBranchOrder(BranchOrder.PARALLEL).withResidual(ResidualSource.NORM));
        assertThrown(
                argument,
                parallel + "no cross-attention, INPUT and OUTPUT",
                () -> encoder().withNormPlacement(NormPlacement.OUTPUT).withBranchOrder(BranchOrder.PARALLEL));
    }

    @Test
    void namesItsPartsAndSaysWhichThereAreNot() {
        TransformerLayer plain = new TransformerLayer(encoder(), new ModelPlan().child("layer"));
        assertThrown(
                IllegalStateException.class,
                "layer has no cross-attention; TransformerLayerConfig.decoder(…) makes a layer that has",
                plain::crossAttention);
        assertThrown(
                IllegalStateException.class, "layer has no output norm; use NormPlacement.OUTPUT", plain::outputNorm);
        ModelPlan plan = new ModelPlan();
        AttentionConfig cross = AttentionConfig.of(2, 8, AttentionMask.none());
        TransformerLayerConfig config = TransformerLayerConfig.decoder(
                        32, encoder().attention(), cross)
                .withNormPlacement(NormPlacement.OUTPUT)
                .withNorm(NormConfig.rmsNorm(32))
                .withBias(Bias.ABSENT);
        TransformerLayer layer = new TransformerLayer(config, new SharedInput("memory"), plan);
        assertEquals(
                List.of(
                        "attention.qkv.linear.weight",
                        "attention.projection.weight",
                        "cross_attention.norm.weight",
                        "cross_attention.query.weight",
                        "cross_attention.key_value.weight",
                        "cross_attention.projection.weight",
                        "mlp.norm.weight",
                        "mlp.fc1.weight",
                        "mlp.fc2.weight",
                        "norm.weight"),
                plan.parameters().stream().map(Parameter::name).toList());
        assertSame(config.norm(), layer.outputNorm().config());
        assertEquals("cross_attention", layer.crossAttention().name());
        assertTrue(layer.crossAttention().hasNorm());
    }

    @Test
    void explainsItsSums() {
        String biases = "\n  layer: residual sums add the biases of the last products";
        assertEquals(biases, sums(encoder()));
        assertEquals("", sums(encoder().withBias(Bias.ABSENT)));
        assertEquals("", sums(encoder().withHiddenDropout(Dropout.of(0.1f))));
        assertEquals(
                "\n  layer: both branches read one input, and ops_add sums their outputs",
                sums(encoder().withBranchOrder(BranchOrder.PARALLEL)));
        assertEquals(
                "\n  layer: residual sums take the norms' outputs, and ops_add sums their two gradients" + biases,
                sums(encoder().withResidual(ResidualSource.NORM)));
        String normed = sums(encoder().withNormPlacement(NormPlacement.OUTPUT));
        assertEquals(
                biases
                        + "\n  layer.norm: layer norm, forward by ops_residual_norm_forward, which sums first; backward by"
                        + " te_layernorm_bwd",
                normed);
    }

    /** The first norm reads what no sum comes before; dropout forms sums itself; what norms give is summed by ops_add. */
    @Test
    void explainsItsNorms() {
        String sums = "ops_residual_norm_forward, which sums first";
        String own = "te_layernorm_fwd";
        String summed = "ops_residual_norm_backward, which adds the gradient of the sum";
        assertEquals(List.of(own, summed, sums, summed), norms(encoder()));
        assertEquals(List.of(own, summed, own, summed), norms(encoder().withHiddenDropout(Dropout.of(0.1f))));
        assertEquals(
                List.of(own, "te_layernorm_bwd", sums, "te_layernorm_bwd"),
                norms(encoder().withResidual(ResidualSource.NORM)));
        assertEquals(
                List.of(own, "te_layernorm_bwd", own, "te_layernorm_bwd"),
                norms(encoder().withBranchOrder(BranchOrder.PARALLEL)));
        assertEquals(
                List.of(sums, summed, sums, "te_layernorm_bwd"),
                norms(encoder().withNormPlacement(NormPlacement.OUTPUT)));
        assertEquals(
                List.of("te_rmsnorm_fwd", summed, sums, summed), norms(encoder().withNorm(NormConfig.rmsNorm(32))));
    }

    /** By what each norm computes forward and backward. */
    private static List<String> norms(TransformerLayerConfig config) {
        return explained(config)
                .lines()
                .filter(line -> line.contains(" norm, forward by "))
                .flatMap(line -> Arrays.stream(line.substring(line.indexOf("forward by ") + "forward by ".length())
                        .split("; backward by ")))
                .toList();
    }

    private static String explained(TransformerLayerConfig config) {
        ModelPlan plan = new ModelPlan();
        TransformerLayer layer = new TransformerLayer(config, plan.child("layer"));
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            Pass pass = open.pass().begin(QUERIES.sequences(open.scope()));
            return layer.explain(open.scope().tensor(parameters.dtype(), QUERIES.tokens(), 32), pass);
        }
    }

    /** What is said behind the MLP's last product. */
    private static String sums(TransformerLayerConfig config) {
        String text = explained(config);
        int last = text.indexOf('\n', text.indexOf("layer.mlp.fc2:"));
        return last < 0 ? "" : text.substring(last);
    }
}
