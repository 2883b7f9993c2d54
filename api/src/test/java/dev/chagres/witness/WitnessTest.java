package dev.chagres.witness;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.attention.AttentionMask;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.te.Activation;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.UnaryOperator;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.apache.commons.math3.special.Erf;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The witnesses' gradients against finite differences, their values against closed forms. */
@Tag("L0")
class WitnessTest {
    private final SplittableRandom random = new SplittableRandom(20_260_101);

    /** A forward and a backward pass over the same weights. */
    private interface Module {
        RealMatrix forward(RealMatrix x);

        RealMatrix backward(RealMatrix dy);
    }

    private static Module module(UnaryOperator<RealMatrix> forward, UnaryOperator<RealMatrix> backward) {
        return new Module() {
            @Override
            public RealMatrix forward(RealMatrix x) {
                return forward.apply(x);
            }

            @Override
            public RealMatrix backward(RealMatrix dy) {
                return backward.apply(dy);
            }
        };
    }

    private RealMatrix normal(int rows, int columns) {
        return Rows.map(new BlockRealMatrix(rows, columns), zero -> random.nextGaussian());
    }

    private Weights draw(Object... namesAndSizes) {
        Weights weights = new Weights();
        for (int i = 0; i < namesAndSizes.length; i += 3) {
            weights.put((String) namesAndSizes[i], normal((int) namesAndSizes[i + 1], (int) namesAndSizes[i + 2]));
        }
        return weights;
    }

    /** Checks the gradients of the input and of every weight. */
    private void check(Module module, Weights weights, RealMatrix x) {
        RealMatrix y = module.forward(x);
        RealMatrix dy = normal(y.getRowDimension(), y.getColumnDimension());
        RealMatrix dx = module.backward(dy);
        FiniteDifferences.check("dx", at -> weighted(module.forward(at), dy), x, dx);
        for (String name : weights.names()) {
            RealMatrix value = weights.get(name);
            RealMatrix gradient = weights.gradient(name);
            FiniteDifferences.check(
                    name,
                    at -> {
                        weights.put(name, at);
                        return weighted(module.forward(x), dy);
                    },
                    value,
                    gradient);
            weights.put(name, value);
        }
    }

    private static double weighted(RealMatrix y, RealMatrix dy) {
        double sum = 0;
        for (double element : Rows.sum(Rows.combine(y, dy, (a, b) -> a * b))) {
            sum += element;
        }
        return sum;
    }

    @Test
    void linear() {
        Weights weights = draw("weight", 4, 3, "bias", 1, 4);
        LinearWitness linear = new LinearWitness(weights, "");
        check(module(linear::forward, linear::backward), weights, normal(5, 3));
    }

    @Test
    void layerNorm() {
        Weights weights = draw("weight", 1, 6, "bias", 1, 6);
        NormWitness norm = new NormWitness(NormConfig.layerNorm(6), weights, "");
        check(module(norm::forward, norm::backward), weights, normal(4, 6));
    }

    @Test
    void rmsNorm() {
        Weights weights = draw("weight", 1, 6);
        NormWitness norm = new NormWitness(NormConfig.rmsNorm(6), weights, "");
        check(module(norm::forward, norm::backward), weights, normal(4, 6));
    }

    @Test
    void gelu() {
        GeluWitness gelu = new GeluWitness();
        check(module(gelu::forward, gelu::backward), new Weights(), normal(3, 7));
    }

    /** At 0 and where the clamped one stops there is no derivative; normal numbers do not meet these places. */
    @ParameterizedTest
    @EnumSource
    void everyActivation(Activation activation) {
        ActivationWitness witness = new ActivationWitness(activation);
        RealMatrix x = normal(5, 8).scalarMultiply(4);
        check(module(witness::forward, witness::backward), new Weights(), x);
        assertEquals(activation.isGated() ? 4 : 8, witness.forward(x).getColumnDimension());
    }

    @Test
    void gatedMlp() {
        Weights weights =
                draw("norm.weight", 1, 4, "fc1.weight", 6, 4, "fc1.bias", 1, 6, "fc2.weight", 4, 3, "fc2.bias", 1, 4);
        MlpWitness mlp = new MlpWitness(NormConfig.rmsNorm(4), Activation.SWIGLU, weights, "");
        check(module(mlp::forward, mlp::backward), weights, normal(3, 4));
    }

    /** Two key heads for four query heads, sequences of other lengths, one without keys. */
    @Test
    void crossAttention() {
        AttentionConfig config = AttentionConfig.of(4, 8, AttentionMask.none()).withKeyHeads(2);
        Weights weights = draw(
                "query.weight",
                32,
                5,
                "query.bias",
                1,
                32,
                "key_value.weight",
                32,
                3,
                "key_value.bias",
                1,
                32,
                "projection.weight",
                5,
                32,
                "projection.bias",
                1,
                5);
        CrossAttentionWitness attention = new CrossAttentionWitness(
                config, weights, "", List.of(new int[] {0, 1, 2}, new int[] {3}), List.of(new int[] {0, 1}, new int[] {
                    2, 3, 4
                }));
        RealMatrix x = normal(4, 5);
        RealMatrix memory = normal(5, 3);
        check(module(at -> attention.forward(at, memory), attention::backward), weights, x);
        RealMatrix dy = normal(4, 5);
        attention.forward(x, memory);
        attention.backward(dy);
        RealMatrix gradient = attention.memoryGradient();
        FiniteDifferences.check("dm", at -> weighted(attention.forward(x, at), dy), memory, gradient);
    }

    @Test
    void geluIsWithinAThousandthOfTheExactOne() {
        for (double x = -12; x <= 12; x += 1.0 / 128) {
            double exact = x / 2 * (1 + Erf.erf(x / Math.sqrt(2)));
            assertEquals(exact, GeluWitness.value(x), 1e-3);
        }
    }

    @Test
    void mlp() {
        Weights weights = draw(
                "norm.weight",
                1,
                4,
                "norm.bias",
                1,
                4,
                "fc1.weight",
                6,
                4,
                "fc1.bias",
                1,
                6,
                "fc2.weight",
                4,
                6,
                "fc2.bias",
                1,
                4);
        MlpWitness mlp = new MlpWitness(NormConfig.layerNorm(4), weights, "");
        check(module(mlp::forward, mlp::backward), weights, normal(3, 4));
    }

    @Test
    void attentionOfEveryMask() {
        List<int[]> sequences = List.of(new int[] {0, 1, 2, 3, 4}, new int[] {}, new int[] {6});
        for (AttentionMask mask : List.of(
                AttentionMask.none(),
                AttentionMask.causal(),
                AttentionMask.none().withWindow(1, 2),
                AttentionMask.causal().withWindow(2, 0))) {
            AttentionConfig config = AttentionConfig.of(2, 8, mask);
            AttentionWitness.Keep keep = (sequence, head, query, key) -> (query + key + head) % 3 == 0 ? 0 : 1.5;
            AttentionWitness attention = new AttentionWitness(config, sequences, keep);
            RealMatrix q = normal(7, 16);
            RealMatrix k = normal(7, 16);
            RealMatrix v = normal(7, 16);
            RealMatrix dO = normal(7, 16);
            attention.forward(q, k, v);
            attention.backward(dO);
            RealMatrix dq = attention.dq();
            RealMatrix dk = attention.dk();
            RealMatrix dv = attention.dv();
            FiniteDifferences.check("dq " + mask, at -> weighted(attention.forward(at, k, v), dO), q, dq);
            FiniteDifferences.check("dk " + mask, at -> weighted(attention.forward(q, at, v), dO), k, dk);
            FiniteDifferences.check("dv " + mask, at -> weighted(attention.forward(q, k, at), dO), v, dv);
        }
    }

    @Test
    void attentionOfOneTokenIsItsValue() {
        AttentionConfig config = AttentionConfig.of(1, 8, AttentionMask.none());
        AttentionWitness attention = new AttentionWitness(config, List.of(new int[] {0}), AttentionWitness.Keep.ALL);
        RealMatrix v = normal(1, 8);
        assertEquals(v, attention.forward(normal(1, 8), normal(1, 8), v));
    }

    @Test
    void rotaryKeepsLengthsAndTurnsBack() {
        RotaryWitness rotary = new RotaryWitness(8, List.of(new int[] {0, 1, 2}, new int[] {3, 4}));
        RealMatrix x = normal(5, 16);
        RealMatrix y = rotary.forward(x);
        assertEquals(x.getFrobeniusNorm(), y.getFrobeniusNorm(), 1e-12);
        assertEquals(x.getRowVector(3), y.getRowVector(3), "position 0 stays");
        assertTrue(rotary.backward(y).subtract(x).getFrobeniusNorm() < 1e-14);
        check(module(rotary::forward, rotary::backward), new Weights(), x);
    }

    @Test
    void transformerLayer() {
        AttentionConfig attention = AttentionConfig.of(1, 8, AttentionMask.none());
        TransformerLayerConfig config = TransformerLayerConfig.encoder(4, attention);
        Weights weights = draw(
                "attention.qkv.norm.weight",
                1,
                4,
                "attention.qkv.norm.bias",
                1,
                4,
                "attention.qkv.linear.weight",
                24,
                4,
                "attention.qkv.linear.bias",
                1,
                24,
                "attention.projection.weight",
                4,
                8,
                "attention.projection.bias",
                1,
                4,
                "mlp.norm.weight",
                1,
                4,
                "mlp.norm.bias",
                1,
                4,
                "mlp.fc1.weight",
                16,
                4,
                "mlp.fc1.bias",
                1,
                16,
                "mlp.fc2.weight",
                4,
                16,
                "mlp.fc2.bias",
                1,
                4);
        List<int[]> sequences = List.of(new int[] {0, 1, 2}, new int[] {3, 4});
        TransformerLayerWitness layer =
                new TransformerLayerWitness(config, weights, sequences, new RotaryWitness(8, sequences));
        layer.keep(normal(5, 4), normal(5, 4));
        check(module(layer::forward, layer::backward), weights, normal(5, 4));
    }

    @Test
    void crossEntropy() {
        int[] labels = {2, -100, 0, 4, 5};
        RealMatrix logits = normal(5, 7);
        RealMatrix gradient = new CrossEntropyWitness(logits, labels, 5).gradient(3);
        FiniteDifferences.check("dlogits", at -> 3 * new CrossEntropyWitness(at, labels, 5).loss(), logits, gradient);
        assertEquals(3, new CrossEntropyWitness(logits, labels, 5).counted());
        RealMatrix smooth = new CrossEntropyWitness(logits, labels, 5, 0.3).gradient(3);
        FiniteDifferences.check(
                "smoothed dlogits", at -> 3 * new CrossEntropyWitness(at, labels, 5, 0.3).loss(), logits, smooth);
        assertEquals(Math.log(4), new CrossEntropyWitness(logits.scalarMultiply(0), labels, 4).loss(), 1e-15);
    }

    /** The known answers that come with the paper's own implementation. */
    @Test
    void philoxGivesItsKnownAnswers() {
        assertArrayEquals(
                new int[] {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}, PhiloxWitness.draw(new int[4], 0, 0));
        assertArrayEquals(
                new int[] {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                PhiloxWitness.draw(new int[] {-1, -1, -1, -1}, -1, -1));
        assertArrayEquals(
                new int[] {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
                PhiloxWitness.draw(new int[] {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0));
    }

    @Test
    void roundingKnowsItsTypes() {
        assertEquals(1, Rounding.round(1 + 0x1p-8, DType.BFLOAT16), "a tie goes to even");
        assertEquals(1 + 0x1p-6, Rounding.round(1 + 3 * 0x1p-8, DType.BFLOAT16), "a tie goes to even");
        assertEquals(0x1p-133, Rounding.round(0x1p-133, DType.BFLOAT16), "least positive number");
        assertEquals(0x1p-24, Rounding.round(0x1p-24, DType.FLOAT16), "least positive number");
        assertEquals(0, Rounding.round(0x1p-25, DType.FLOAT16), "a tie goes to even");
        assertEquals(Double.POSITIVE_INFINITY, Rounding.round(65520, DType.FLOAT16));
        assertEquals((double) (float) Math.PI, Rounding.round(Math.PI, DType.FLOAT32));
    }
}
