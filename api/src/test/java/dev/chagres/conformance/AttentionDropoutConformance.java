package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.DotProductAttention;
import dev.chagres.layer.Dropout;
import dev.chagres.pass.Pass;
import dev.chagres.te.QkvFormat;
import dev.chagres.witness.AttentionDropoutWitness;
import dev.chagres.witness.AttentionWitness;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Dropout of our own attention, whose mask follows from its formula, against double precision. */
@Tag("L0")
@Tag("L1")
class AttentionDropoutConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static final float PROBABILITY = 0.2f;

    record Case(DType dtype, int heads, int headDim, AttentionMask mask, TokenRows tokens) {
        int width() {
            return heads * headDim;
        }
    }

    static List<Case> cases() {
        AttentionMask none = AttentionMask.none();
        return List.of(
                new Case(DType.FLOAT32, 2, 8, none, TokenRows.packed(64, 1, 0, 65)),
                new Case(DType.FLOAT32, 3, 40, AttentionMask.causal(), TokenRows.packed(63, 200)),
                new Case(DType.FLOAT32, 2, 16, none.withWindow(9, 3), TokenRows.packed(0, 130, 7)),
                new Case(DType.FLOAT32, 1, 256, none, TokenRows.packed(70)),
                new Case(DType.FLOAT32, 2, 64, none, TokenRows.padded(QkvFormat.BSHD, 65, 65, 17)),
                new Case(DType.FLOAT32, 2, 128, AttentionMask.causal(), TokenRows.padded(QkvFormat.SBHD, 66, 3, 66)),
                new Case(DType.BFLOAT16, 2, 16, none, TokenRows.padded(QkvFormat.BSHD, 1, 1, 0, 1)),
                new Case(DType.FLOAT16, 4, 16, none, TokenRows.padded(QkvFormat.SBHD, 1, 1, 1, 1)));
    }

    /** The second call, so that the offset counts. */
    @ParameterizedTest
    @MethodSource("cases")
    void outputAndGradientsFollowTheFormula(Case c) {
        long seed = open.random().nextLong();
        AttentionConfig config = AttentionConfig.of(c.heads, c.headDim, c.mask).withDropout(Dropout.of(PROBABILITY));
        DotProductAttention attention = new DotProductAttention(config);
        Sequences sequences = c.tokens.sequences(open.scope());
        RealMatrix[] in = new RealMatrix[4];
        for (int i = 0; i < in.length; i++) {
            in[i] = open.normal(c.dtype, c.tokens.tokens(), c.width(), 1);
        }
        RealMatrix qkv = open.normal(c.dtype, c.tokens.tokens(), 3 * c.width(), 1);
        for (int part = 0; part < 3; part++) {
            qkv.setSubMatrix(in[part].getData(), 0, part * c.width());
        }
        Tensor input = open.tensor(c.dtype, qkv);
        Pass pass = open.pass().begin(sequences);
        pass.seed(seed, 3, 1);
        pass.draw();
        long[] second = pass.draw().toLongs(open.stream());
        pass.begin(sequences);
        pass.seed(seed, 3, 1);
        attention.forwardPacked(input, pass);
        Tensor o = attention.forwardPacked(input, pass);
        Tensor gradient = open.scope().like(input);
        attention.backwardPacked(open.tensor(c.dtype, in[3]), gradient, pass);

        AttentionWitness witness = new AttentionWitness(
                config, c.tokens.rows(), new AttentionDropoutWitness(PROBABILITY, c.heads, second[0], second[1]));
        assertRows(c, "o", witness.forward(in[0], in[1], in[2]), open.read(o));
        witness.backward(in[3]);
        float[] gradients = open.read(gradient);
        assertRows(c, "dq", witness.dq(), part(c, gradients, 0));
        assertRows(c, "dk", witness.dk(), part(c, gradients, 1));
        assertRows(c, "dv", witness.dv(), part(c, gradients, 2));
    }

    /** Two runs of one call drop the same weights and sum in one order. */
    @Test
    void equalCallsGiveEqualBits() {
        AttentionConfig config = AttentionConfig.of(2, 32, AttentionMask.none()).withDropout(Dropout.of(PROBABILITY));
        DotProductAttention attention = new DotProductAttention(config);
        TokenRows tokens = TokenRows.packed(200, 65);
        Sequences sequences = tokens.sequences(open.scope());
        Tensor input = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 265, 192, 1));
        Tensor dO = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 265, 64, 1));
        float[][] results = new float[4][];
        for (int run = 0; run < 2; run++) {
            Pass pass = open.pass().begin(sequences);
            pass.seed(11, 0, 0);
            Tensor o = attention.forwardPacked(input, pass);
            Tensor gradient = open.scope().like(input);
            attention.backwardPacked(dO, gradient, pass);
            results[2 * run] = open.read(o);
            results[2 * run + 1] = open.read(gradient);
        }
        assertArrayEquals(results[0], results[2]);
        assertArrayEquals(results[1], results[3]);
    }

    private static float[] part(Case c, float[] all, int part) {
        float[] own = new float[all.length / 3];
        for (int row = 0; row < c.tokens.tokens(); row++) {
            System.arraycopy(all, (3 * row + part) * c.width(), own, row * c.width(), c.width());
        }
        return own;
    }

    private static void assertRows(Case c, String what, RealMatrix expected, float[] actual) {
        open.assertClose(
                what,
                c.tokens.entries(expected),
                c.tokens.entries(actual, c.width()),
                0.5 / Math.sqrt(c.tokens.longest()),
                Tolerances.attention(c.dtype));
        for (int row : c.tokens.paddingRows()) {
            for (int column = 0; column < c.width(); column++) {
                if (actual[row * c.width() + column] != 0) {
                    throw new AssertionError(what + " of padding row " + row + " is not 0");
                }
            }
        }
    }
}
