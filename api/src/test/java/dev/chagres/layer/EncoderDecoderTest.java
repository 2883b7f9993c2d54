package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import dev.chagres.pass.SharedInput;
import dev.chagres.te.Activation;
import dev.chagres.te.QkvFormat;
import dev.chagres.witness.CrossAttentionWitness;
import dev.chagres.witness.GeluWitness;
import dev.chagres.witness.LinearWitness;
import dev.chagres.witness.NormWitness;
import dev.chagres.witness.TransformerLayerWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import java.util.function.UnaryOperator;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** An encoder whose output a decoder of another length and width reads, and a head. */
@Tag("L0")
@Tag("L1")
class EncoderDecoderTest {
    private static final int HIDDEN = 64;
    private static final int MEMORY = 48;
    private static final int CLASSES = 11;
    private static final UnaryOperator<Layer> PLAIN = UnaryOperator.identity();

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, NormConfig.Kind norm, int keyHeads, TokenRows queries, TokenRows keys) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        NormConfig.Kind layerNorm = NormConfig.Kind.LAYER_NORM;
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            TokenRows queries = TokenRows.packed(4, 2, 17, 1);
            TokenRows keys = TokenRows.packed(5, 65, 3, 1);
            for (int keyHeads : new int[] {4, 2, 1}) {
                cases.add(new Case(dtype, layerNorm, keyHeads, queries, keys));
            }
            cases.add(new Case(dtype, NormConfig.Kind.RMS_NORM, 2, keys, queries));
            for (QkvFormat format : new QkvFormat[] {QkvFormat.BSHD, QkvFormat.SBHD}) {
                cases.add(new Case(
                        dtype,
                        layerNorm,
                        2,
                        TokenRows.padded(format, 7, 7, 7, 7),
                        TokenRows.padded(format, 33, 33, 33, 33)));
            }
        }
        return cases;
    }

    /** Encoder, decoder and head, and what goes in. */
    private static final class Model implements AutoCloseable {
        private final Case c;
        private final ModelPlan plan = new ModelPlan();
        private final SharedInput memory = new SharedInput("memory");
        private final TransformerLayerConfig encoderConfig;
        private final TransformerLayerConfig decoderConfig;
        private final Layer encoder;
        private final Layer decoder;
        private final Layer head;
        private final Parameters parameters;
        private final Weights weights;
        private final Sequences keys;
        private final Sequences both;

        Model(Case c, Dropout dropout, UnaryOperator<Layer> wrapper, String... frozen) {
            this.c = c;
            encoderConfig = TransformerLayerConfig.encoder(MEMORY, AttentionConfig.of(3, 16, AttentionMask.none()))
                    .withHiddenDropout(dropout);
            encoder = wrapper.apply(new TransformerLayer(encoderConfig, plan));
            decoderConfig = decoderConfig(c, dropout);
            decoder = wrapper.apply(new TransformerLayer(decoderConfig, memory, plan.child("decoder")));
            head = wrapper.apply(new Linear(MEMORY, CLASSES, Initializer.zeros(), plan.child("head")));
            for (String name : frozen) {
                plan.child(name).freeze();
            }
            parameters = Parameters.allocate(open.device(), plan, c.dtype, 1);
            weights = open.draw(parameters);
            keys = c.keys.sequences(open.scope());
            both = c.queries.sequences(open.scope()).withKeys(keys);
        }

        private static TransformerLayerConfig decoderConfig(Case c, Dropout dropout) {
            AttentionConfig cross =
                    AttentionConfig.of(4, 16, AttentionMask.none()).withKeyHeads(c.keyHeads);
            return TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(4, 16, AttentionMask.causal()))
                    .withCrossAttention(CrossAttentionConfig.of(HIDDEN, cross).withMemoryColumns(MEMORY))
                    .withMlp(MlpConfig.gelu(HIDDEN).withInner(96))
                    .withNorm(new NormConfig(c.norm, HIDDEN, 1e-5f))
                    .withHiddenDropout(dropout)
                    .withDropPath(dropout);
        }

        Tensor encode(Tensor x, Pass pass) {
            pass.sequences(keys);
            Tensor m = memory.forward(encoder.forward(x, pass), pass);
            pass.sequences(both);
            return m;
        }

        /** Returns the gradients of the decoder's input and of the encoder's. */
        Tensor[] backward(Tensor dy, Tensor dz, Pass pass) {
            Tensor dx = decoder.backward(dy, pass);
            memory.backward(head, dz, pass);
            return new Tensor[] {dx, encoder.backward(memory.backward(pass), pass)};
        }

        List<float[]> gradients() {
            parameters.completeGradients();
            List<float[]> all = new ArrayList<>();
            for (Parameter parameter : parameters.all()) {
                all.add(parameter.isFrozen() ? new float[0] : open.read(parameter.gradient()));
            }
            return all;
        }

        @Override
        public void close() {
            parameters.close();
        }
    }

    private static RealMatrix normal(Case c, TokenRows tokens, int columns) {
        return open.normal(c.dtype, tokens.tokens(), columns, 1);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void encoderDecoderAndHeadAgainstDoublePrecision(Case c) {
        try (Model model = new Model(c, Dropout.none(), PLAIN)) {
            RealMatrix source = normal(c, c.keys, MEMORY);
            RealMatrix target = normal(c, c.queries, HIDDEN);
            RealMatrix dy = normal(c, c.queries, HIDDEN);
            RealMatrix dz = normal(c, c.keys, CLASSES);
            Pass pass = open.pass().begin();
            Tensor m = model.encode(open.tensor(c.dtype, source), pass);
            Tensor z = model.head.forward(m, pass);
            Tensor y = model.decoder.forward(open.tensor(c.dtype, target), pass);

            List<int[]> queries = c.queries.rows();
            List<int[]> keys = c.keys.rows();
            Weights weights = model.weights;
            TransformerLayerWitness encoder = new TransformerLayerWitness(model.encoderConfig, weights, keys, null);
            LinearWitness head = new LinearWitness(weights, "head.");
            TransformerLayerWitness decoder =
                    new TransformerLayerWitness(model.decoderConfig, weights, "decoder.", queries, keys, null);
            CrossAttentionWitness over = decoder.crossAttention();

            RealMatrix memory = encoder.forward(source);
            assertClose(c, "m", memory, m);
            assertClose(c, "z", head.forward(memory), z);
            assertClose(c, "y", decoder.forward(target, memory), y);

            RealMatrix dtarget = decoder.backward(dy);
            RealMatrix dsource = encoder.backward(head.backward(dz).add(over.memoryGradient()));
            Tensor[] dx = model.backward(open.tensor(c.dtype, dy), open.tensor(c.dtype, dz), pass);
            assertClose(c, "gradient of the decoder's input", dtarget, dx[0]);
            assertClose(c, "gradient of the encoder's input", dsource, dx[1]);
            for (Parameter parameter : model.parameters.all()) {
                open.assertClose(
                        "gradient of " + parameter.name(),
                        Comparison.entries(weights.gradient(parameter.name())),
                        open.read(parameter.gradient()),
                        0.1,
                        tolerance(c));
            }
        }
    }

    /** An encoder layer and three branches of a decoder, the gradients of two attentions among them. */
    private static Tolerance tolerance(Case c) {
        return Tolerances.layers(c.dtype, 3);
    }

    private static void assertClose(Case c, String what, RealMatrix expected, Tensor actual) {
        open.assertClose(what, expected, actual, tolerance(c));
    }

    /** What a run of the model gives: both outputs, both inputs' gradients, all parameters'. */
    private static List<float[]> run(Model model, Pass pass, long seed) {
        Tensor[] outputs = forward(model, pass, seed);
        return results(model, pass, outputs);
    }

    private static Tensor[] forward(Model model, Pass pass, long seed) {
        pass.begin();
        pass.seed(seed, 0, 0);
        Tensor m = model.encode(input(model.c.keys, MEMORY, model.c, pass, seed), pass);
        Tensor z = model.head.forward(m, pass);
        return new Tensor[] {m, z, model.decoder.forward(input(model.c.queries, HIDDEN, model.c, pass, -seed), pass)};
    }

    private static Tensor input(TokenRows tokens, int columns, Case c, Pass pass, long seed) {
        Tensor tensor = pass.scope().tensor(c.dtype, tokens.tokens(), columns);
        float[] values = new float[(int) tensor.count()];
        java.util.SplittableRandom random = new java.util.SplittableRandom(seed);
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        tensor.set(open.stream(), values);
        return tensor;
    }

    private static List<float[]> results(Model model, Pass pass, Tensor... outputs) {
        List<float[]> all = new ArrayList<>();
        for (Tensor output : outputs) {
            all.add(open.read(output));
        }
        model.parameters.forgetGradients();
        Tensor dy = input(model.c.queries, HIDDEN, model.c, pass, 5);
        Tensor dz = input(model.c.keys, CLASSES, model.c, pass, 6);
        for (Tensor dx : model.backward(dy, dz, pass)) {
            all.add(open.read(dx));
        }
        all.addAll(model.gradients());
        return all;
    }

    private static void assertSameBits(List<float[]> expected, List<float[]> actual) {
        assertEquals(expected.size(), actual.size());
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), actual.get(i), "result " + i);
        }
    }

    private static final List<UnaryOperator<Layer>> WRAPPERS =
            List.of(Recomputed::new, layer -> new Recomputed(new Sequential(layer.name(), new Recomputed(layer))));

    @ParameterizedTest
    @MethodSource("cases")
    void recomputationChangesNoBit(Case c) {
        for (Dropout dropout : List.of(Dropout.none(), Dropout.of(0.2f))) {
            List<float[]> expected;
            Weights weights;
            try (Model plain = new Model(c, dropout, PLAIN);
                    Pass pass = Pass.training(open.device())) {
                weights = plain.weights;
                expected = run(plain, pass, 1);
            }
            for (UnaryOperator<Layer> wrapper : WRAPPERS) {
                try (Model wrapped = new Model(c, dropout, wrapper);
                        Pass pass = Pass.training(open.device())) {
                    wrapped.parameters.all().forEach(p -> open.set(p.weight(), weights.get(p.name())));
                    assertSameBits(expected, run(wrapped, pass, 1));
                }
            }
        }
    }

    /** What TE calls {@code return_layernorm_output}: a product reads the norm's output, and something else does, too. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void aNormsOutputHasTwoReaders(DType dtype) {
        ModelPlan plan = new ModelPlan();
        SharedInput normed = new SharedInput("normed");
        LayerNorm norm = new LayerNorm(NormConfig.layerNorm(48), plan.child("norm"));
        Linear linear = new Linear(48, 24, Initializer.zeros(), plan.child("linear"));
        ActivationLayer gelu = new ActivationLayer("gelu", Activation.GELU);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, dtype, 1)) {
            Weights weights = open.draw(parameters);
            RealMatrix x = open.normal(dtype, 33, 48, 1);
            RealMatrix dy = open.normal(dtype, 33, 24, 1);
            RealMatrix dz = open.normal(dtype, 33, 48, 1);
            Pass pass = open.pass().begin();
            Tensor n = normed.forward(norm.forward(open.tensor(dtype, x), pass), pass);
            Tensor y = linear.forward(n, pass);
            Tensor z = gelu.forward(n, pass);
            NormWitness first = new NormWitness(norm.config(), weights, "norm.");
            LinearWitness second = new LinearWitness(weights, "linear.");
            GeluWitness third = new GeluWitness();
            RealMatrix expected = first.forward(x);
            open.assertClose("n", expected, n, Tolerances.layer(dtype));
            open.assertClose("y", second.forward(expected), y, Tolerances.layer(dtype));
            open.assertClose("z", third.forward(expected), z, Tolerances.layer(dtype));
            normed.backward(gelu, open.tensor(dtype, dz), pass);
            normed.backward(linear, open.tensor(dtype, dy), pass);
            Tensor dx = norm.backward(normed.backward(pass), pass);
            RealMatrix sum = second.backward(dy).add(third.backward(dz));
            open.assertClose("dx", first.backward(sum), dx, Tolerances.layer(dtype));
            open.assertGradients(parameters, weights, Tolerances.layer(dtype), Tolerances.layer(dtype));
        }
    }

    /** Two passes over one model, call by call: each reads its own memory. */
    @Test
    void passesThatAreInterleavedReadTheirOwnMemory() {
        Case c = cases().getFirst();
        for (UnaryOperator<Layer> wrapper : List.of(PLAIN, WRAPPERS.getFirst())) {
            try (Model model = new Model(c, Dropout.of(0.1f), wrapper);
                    Pass one = Pass.training(open.device());
                    Pass other = Pass.training(open.device())) {
                List<float[]> first = run(model, one, 1);
                List<float[]> second = run(model, one, 2);
                Tensor[] a = forward(model, one, 1);
                Tensor[] b = forward(model, other, 2);
                assertSameBits(first, results(model, one, a));
                assertSameBits(second, results(model, other, b));
            }
        }
    }

    @Test
    void evaluationsThatAreInterleavedReadTheirOwnMemory() {
        Case c = cases().getFirst();
        try (Model model = new Model(c, Dropout.of(0.1f), PLAIN);
                Pass one = Pass.evaluation(open.device());
                Pass other = Pass.evaluation(open.device())) {
            float[] expected = open.read(forward(model, one, 1)[2]);
            float[] expectedOther = open.read(forward(model, one, 2)[2]);
            one.begin();
            other.begin();
            model.encode(input(c.keys, MEMORY, c, one, 1), one);
            model.encode(input(c.keys, MEMORY, c, other, 2), other);
            assertArrayEquals(expected, open.read(model.decoder.forward(input(c.queries, HIDDEN, c, one, -1), one)));
            assertArrayEquals(
                    expectedOther, open.read(model.decoder.forward(input(c.queries, HIDDEN, c, other, -2), other)));
            one.begin();
            one.sequences(model.both);
            assertThrown(
                    IllegalStateException.class,
                    "the tensor with several readers has lost its memory since forward: its scope was restarted or"
                            + " closed; run forward again",
                    () -> model.decoder.forward(input(c.queries, HIDDEN, c, one, -1), one));
        }
    }

    /** A frozen encoder wants no gradient: none is computed, and the decoder's stay as they were. */
    @Test
    void aFrozenEncoderGetsNoGradient() {
        Case c = cases().get(1);
        List<float[]> expected;
        Weights weights;
        List<String> names = new ArrayList<>();
        try (Model model = new Model(c, Dropout.none(), PLAIN);
                Pass pass = Pass.training(open.device())) {
            weights = model.weights;
            model.parameters.all().forEach(p -> names.add(p.name()));
            expected = run(model, pass, 1);
        }
        try (Model model = new Model(c, Dropout.none(), PLAIN, "attention", "mlp");
                Pass pass = Pass.training(open.device())) {
            model.parameters.all().forEach(p -> open.set(p.weight(), weights.get(p.name())));
            pass.begin();
            Tensor x = input(c.keys, MEMORY, c, pass, 1);
            x.stopGradient();
            Tensor m = model.encode(x, pass);
            assertFalse(m.requiresGradient());
            Tensor z = model.head.forward(m, pass);
            Tensor y = model.decoder.forward(input(c.queries, HIDDEN, c, pass, -1), pass);
            assertArrayEquals(expected.get(1), open.read(z));
            assertArrayEquals(expected.get(2), open.read(y));
            Tensor dy = input(c.queries, HIDDEN, c, pass, 5);
            Tensor dz = input(c.keys, CLASSES, c, pass, 6);
            Tensor dx = model.decoder.backward(dy, pass);
            model.memory.backward(model.head, dz, pass);
            Tensor dm = model.memory.backward(pass);
            assertArrayEquals(expected.get(3), open.read(dx));
            assertArrayEquals(new float[(int) dm.count()], open.read(dm));
            assertArrayEquals(new float[(int) x.count()], open.read(model.encoder.backward(dm, pass)));
            List<float[]> gradients = model.gradients();
            for (int i = 0; i < names.size(); i++) {
                boolean frozen = model.parameters.all().get(i).isFrozen();
                assertEquals(names.get(i).startsWith("decoder") || names.get(i).startsWith("head"), !frozen);
                assertArrayEquals(frozen ? new float[0] : expected.get(5 + i), gradients.get(i), names.get(i));
            }
        }
    }
}
