package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.DotProductAttention;
import dev.chagres.layer.Dropout;
import dev.chagres.ops.Attention;
import dev.chagres.pass.Pass;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import dev.chagres.witness.AttentionWitness;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code DotProductAttention} against double precision: every arrangement, mask and type, packed and separate. */
@Tag("L0")
@Tag("L1")
class AttentionConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int heads, int headDim, AttentionMask mask, TokenRows tokens) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (TokenRows tokens : arrangements()) {
                cases.add(new Case(dtype, 2, 16, AttentionMask.none(), tokens));
            }
            if (dtype == DType.FLOAT16) {
                continue;
            }
            for (AttentionMask mask : masks()) {
                cases.add(new Case(dtype, 2, 32, mask, TokenRows.packed(33, 0, 65, 1, 128)));
                cases.add(new Case(dtype, 2, 32, mask, TokenRows.padded(QkvFormat.BSHD, 65, 65, 65)));
                cases.add(new Case(dtype, 2, 32, mask, TokenRows.padded(QkvFormat.SBHD, 65, 17, 65)));
            }
            for (int headDim : new int[] {8, 24, 64, 128, 256}) {
                cases.add(new Case(dtype, 1, headDim, AttentionMask.none(), TokenRows.packed(17, 40)));
            }
            cases.add(new Case(dtype, 5, 8, AttentionMask.causal(), TokenRows.padded(QkvFormat.BSHD, 16, 16, 3, 1)));
        }
        // Sizes round the tiles of our own kernels, and heads of every kernel.
        for (int headDim : new int[] {8, 16, 40, 64, 128, 256}) {
            cases.add(new Case(DType.FLOAT32, 2, headDim, AttentionMask.causal(), TokenRows.packed(1, 63, 64, 65, 0)));
            cases.add(new Case(
                    DType.FLOAT32, 1, headDim, AttentionMask.none().withWindow(5, 64), TokenRows.packed(200, 0, 70)));
        }
        return cases;
    }

    private static List<TokenRows> arrangements() {
        List<TokenRows> all = new ArrayList<>();
        all.add(TokenRows.packed(1));
        all.add(TokenRows.packed(0, 1, 0, 2, 0));
        all.add(TokenRows.packed(15, 16, 17, 63, 64, 65));
        all.add(TokenRows.packed(127, 128, 129));
        SplittableRandom random = new SplittableRandom(OpenDevice.seed());
        for (int i = 0; i < 3; i++) {
            all.add(TokenRows.packed(
                    random.ints(1 + random.nextInt(6), 0, 70).boxed().toArray(Integer[]::new)));
        }
        for (QkvFormat format : new QkvFormat[] {QkvFormat.BSHD, QkvFormat.SBHD}) {
            all.add(TokenRows.padded(format, 1, 1));
            all.add(TokenRows.padded(format, 1, 1, 0, 1));
            all.add(TokenRows.padded(format, 64, 64, 64, 64));
            all.add(TokenRows.padded(format, 129, 129));
            all.add(TokenRows.padded(format, 65, 1, 65, 16, 64));
            all.add(TokenRows.padded(format, 17, 5, 3));
        }
        all.removeIf(tokens -> tokens.tokens() == 0);
        return all;
    }

    private static List<AttentionMask> masks() {
        return List.of(
                AttentionMask.causal(),
                AttentionMask.causalBottomRight(),
                AttentionMask.causal().withWindow(7, 0),
                AttentionMask.none().withWindow(3, 5));
    }

    @ParameterizedTest
    @MethodSource("cases")
    void separateBuffers(Case c) {
        Inputs in = new Inputs(c);
        AttentionConfig config = AttentionConfig.of(c.heads, c.headDim, c.mask);
        DotProductAttention attention = new DotProductAttention(config);
        Sequences sequences = c.tokens.sequences(open.scope());
        AttentionWitness witness = new AttentionWitness(config, c.tokens.rows(), AttentionWitness.Keep.ALL);
        Tensor q = heads(c, in.q);
        Tensor k = heads(c, in.k);
        Tensor v = heads(c, in.v);
        Pass pass = open.pass().begin(sequences);
        Tensor o = attention.forward(q, k, v, pass);
        assertRows(c, "o", witness.forward(in.q, in.k, in.v), o);
        assertStatistics(c, witness.logSumExp(), statistics(config, sequences, q, k, v, o));
        Tensor dq = open.scope().like(q);
        Tensor dk = open.scope().like(q);
        Tensor dv = open.scope().like(q);
        attention.backward(heads(c, in.dO), dq, dk, dv, pass);
        witness.backward(in.dO);
        assertRows(c, "dq", witness.dq(), dq);
        assertRows(c, "dk", witness.dk(), dk);
        assertRows(c, "dv", witness.dv(), dv);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void oneBuffer(Case c) {
        Inputs in = new Inputs(c);
        AttentionConfig config = AttentionConfig.of(c.heads, c.headDim, c.mask);
        DotProductAttention attention = new DotProductAttention(config);
        Sequences sequences = c.tokens.sequences(open.scope());
        AttentionWitness witness = new AttentionWitness(config, c.tokens.rows(), AttentionWitness.Keep.ALL);
        Tensor qkv = open.tensor(c.dtype, sideBySide(in.q, in.k, in.v));
        Pass pass = open.pass().begin(sequences);
        assertRows(c, "o", witness.forward(in.q, in.k, in.v), attention.forwardPacked(qkv, pass));
        Tensor dqkv = open.scope().like(qkv);
        attention.backwardPacked(open.tensor(c.dtype, in.dO), dqkv, pass);
        witness.backward(in.dO);
        int width = c.heads * c.headDim;
        float[] gradients = open.read(dqkv);
        RealMatrix[] expected = {witness.dq(), witness.dk(), witness.dv()};
        for (int part = 0; part < 3; part++) {
            float[] own = new float[gradients.length / 3];
            for (int row = 0; row < c.tokens.tokens(); row++) {
                System.arraycopy(gradients, (3 * row + part) * width, own, row * width, width);
            }
            assertRows(c, "dqkv part " + part, expected[part], own);
        }
    }

    private static final class Inputs {
        private final RealMatrix q;
        private final RealMatrix k;
        private final RealMatrix v;
        private final RealMatrix dO;

        Inputs(Case c) {
            q = draw(c);
            k = draw(c);
            v = draw(c);
            dO = draw(c);
        }

        private static RealMatrix draw(Case c) {
            return open.normal(c.dtype, c.tokens.tokens(), c.heads * c.headDim, 1);
        }
    }

    private static RealMatrix sideBySide(RealMatrix... parts) {
        int columns = parts[0].getColumnDimension();
        RealMatrix all = new BlockRealMatrix(parts[0].getRowDimension(), parts.length * columns);
        for (int part = 0; part < parts.length; part++) {
            all.setSubMatrix(parts[part].getData(), 0, part * columns);
        }
        return all;
    }

    /** Returns a tensor of the rank that the arrangement asks for. */
    private static Tensor heads(Case c, RealMatrix matrix) {
        Scope scope = open.scope();
        int batch = c.tokens.lengths().size();
        int length = c.tokens.padded();
        Tensor tensor = switch (c.tokens.format()) {
            case THD -> scope.tensor(c.dtype, c.tokens.tokens(), c.heads, c.headDim);
            case BSHD -> scope.tensor(c.dtype, batch, length, c.heads, c.headDim);
            case SBHD -> scope.tensor(c.dtype, length, batch, c.heads, c.headDim);
        };
        open.set(tensor, matrix);
        return tensor;
    }

    private static void assertRows(Case c, String what, RealMatrix expected, Tensor actual) {
        assertRows(c, what, expected, open.read(actual));
    }

    private static void assertRows(Case c, String what, RealMatrix expected, float[] actual) {
        int columns = expected.getColumnDimension();
        // In short sequences gradients nearly cancel, in one of one token they do: what is left of 0.5 over n keys is
        // noise.
        open.assertClose(
                what,
                c.tokens.entries(expected),
                c.tokens.entries(actual, columns),
                0.5 / Math.sqrt(c.tokens.longest()),
                Tolerances.attention(c.dtype));
        boolean tiled = c.dtype == DType.FLOAT32 || c.tokens.padded() == 1;
        if (tiled || Provider.current() == Provider.REFERENCE) {
            // The reference and our own kernels write zeros for padding; what cuDNN leaves there is nobody's business.
            for (int row : c.tokens.paddingRows()) {
                assertArrayEquals(
                        new float[columns], Arrays.copyOfRange(actual, row * columns, (row + 1) * columns), what);
            }
        }
    }

    /** The log-sum-exp that attention keeps for backward, from the call that it makes. */
    private static Tensor statistics(
            AttentionConfig config, Sequences sequences, Tensor q, Tensor k, Tensor v, Tensor o) {
        AttentionProblem problem = AttentionProblem.of(QkvLayout.separate(sequences.format()), config.scale())
                .withMask(config.mask().type(sequences.padding()))
                .withWindow(config.mask().windowLeft(), config.mask().windowRight());
        boolean tiled = q.dtype() == DType.FLOAT32
                || config.headDim() <= 32
                || (sequences.format() != QkvFormat.THD && sequences.length() == 1);
        boolean rounded = sequences.format() == QkvFormat.THD && !tiled;
        long longest = rounded ? Math.max(128, (sequences.length() + 127) / 128 * 128) : sequences.length();
        Tensor offsets = sequences.cuSeqlens().offsets();
        Tensor again = open.scope().like(o);
        AttentionTensors tensors = new AttentionTensors()
                .query(q)
                .key(k)
                .value(v)
                .output(again)
                .queryLengths(offsets, longest)
                .keyLengths(offsets, longest);
        Tensor statistics = open.scope().tensor(DType.FLOAT32, FusedAttention.statisticsShape(problem, tensors));
        tensors.statistics(statistics);
        if (tiled) {
            Attention.forward(problem, tensors, open.stream());
        } else {
            FusedAttention.forward(problem, tensors, open.stream());
        }
        assertArrayEquals(open.read(o), open.read(again));
        return statistics;
    }

    /** Statistics are [T, h, 1] packed and [B, h, S, 1] dense. */
    private static void assertStatistics(Case c, RealMatrix expected, Tensor statistics) {
        float[] values = open.read(statistics);
        List<int[]> rows = c.tokens.rows();
        for (int sequence = 0; sequence < rows.size(); sequence++) {
            for (int position = 0; position < rows.get(sequence).length; position++) {
                int row = rows.get(sequence)[position];
                for (int head = 0; head < c.heads; head++) {
                    int index = c.tokens.format() == QkvFormat.THD
                            ? row * c.heads + head
                            : (sequence * c.heads + head) * c.tokens.padded() + position;
                    assertEquals(expected.getEntry(row, head), values[index], 1e-3, "log-sum-exp of row " + row);
                }
            }
        }
    }

    static List<DType> floats() {
        return List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16);
    }

    /**
     * With equal scores and values that are rows of the identity, the output shows each kept weight: the mask of dropout. The
     * same mask must then be in the outputs and gradients of any other input.
     */
    @ParameterizedTest
    @MethodSource("floats")
    void dropoutDropsTheSameWeightsForwardAndBackward(DType dtype) {
        int length = 64;
        Case c = new Case(dtype, 2, 64, AttentionMask.none(), TokenRows.packed(length, length));
        float probability = 0.25f;
        long seed = open.random().nextLong();
        AttentionConfig config = AttentionConfig.of(c.heads, c.headDim, c.mask).withDropout(Dropout.of(probability));
        DotProductAttention attention = new DotProductAttention(config);
        Sequences sequences = c.tokens.sequences(open.scope());
        Tensor zero = open.scope().tensor(dtype, 2 * length, c.heads, c.headDim);
        zero.zero(open.stream());
        RealMatrix identity = new BlockRealMatrix(2 * length, c.heads * c.headDim);
        for (int row = 0; row < 2 * length; row++) {
            identity.setEntry(row, row % length, 1);
            identity.setEntry(row, c.headDim + row % length, 1);
        }
        Pass pass = open.pass().begin(sequences);
        pass.seed(seed, 0, 0);
        float[] shown = open.read(attention.forward(zero, zero, heads(c, identity), pass));
        AttentionWitness.Keep keep = (sequence, head, query, key) ->
                shown[((sequence * length + query) * c.heads + head) * c.headDim + key] == 0
                        ? 0
                        : 1 / (1 - probability);
        long dropped = 0;
        for (float weight : shown) {
            dropped += weight == 0 ? 1 : 0;
            assertEquals(weight == 0 ? 0 : 1 / (1 - probability) / length, weight, 1e-4);
        }
        double expected = probability * shown.length;
        assertEquals(expected, dropped, 6 * Math.sqrt(expected * (1 - probability)), "six standard deviations");
        pass.begin(sequences);
        pass.seed(seed, 0, 0);
        Inputs in = new Inputs(c);
        AttentionWitness witness = new AttentionWitness(config, c.tokens.rows(), keep);
        Tensor o = attention.forward(heads(c, in.q), heads(c, in.k), heads(c, in.v), pass);
        assertRows(c, "o", witness.forward(in.q, in.k, in.v), o);
        Tensor dq = open.scope().like(zero);
        Tensor dk = open.scope().like(zero);
        Tensor dv = open.scope().like(zero);
        attention.backward(heads(c, in.dO), dq, dk, dv, pass);
        witness.backward(in.dO);
        assertRows(c, "dq", witness.dq(), dq);
        assertRows(c, "dk", witness.dk(), dk);
        assertRows(c, "dv", witness.dv(), dv);
    }

    @Test
    void dropoutOfAnotherCallDropsOtherWeights() {
        AttentionConfig config = AttentionConfig.of(1, 16, AttentionMask.none()).withDropout(Dropout.of(0.5f));
        DotProductAttention attention = new DotProductAttention(config);
        Case c = new Case(DType.BFLOAT16, 1, 16, AttentionMask.none(), TokenRows.packed(64));
        Sequences sequences = c.tokens.sequences(open.scope());
        Tensor x = heads(c, open.normal(DType.BFLOAT16, 64, 16, 1));
        Pass pass = open.pass().begin(sequences);
        pass.seed(5, 0, 0);
        float[] first = open.read(attention.forward(x, x, x, pass));
        float[] second = open.read(attention.forward(x, x, x, pass));
        assertEquals(false, Arrays.equals(first, second));
        pass.begin(sequences);
        pass.seed(5, 0, 0);
        assertArrayEquals(first, open.read(attention.forward(x, x, x, pass)));
    }

    @ParameterizedTest
    @MethodSource("floats")
    void nanStaysInItsSequence(DType dtype) {
        Case c = new Case(dtype, 2, 16, AttentionMask.none(), TokenRows.packed(17, 5, 64));
        RealMatrix q = open.normal(dtype, 86, 32, 1);
        RealMatrix k = open.normal(dtype, 86, 32, 1);
        RealMatrix v = open.normal(dtype, 86, 32, 1);
        q.setEntry(18, 3, Double.NaN);
        DotProductAttention attention = new DotProductAttention(AttentionConfig.of(2, 16, AttentionMask.none()));
        Pass pass = open.pass().begin(c.tokens.sequences(open.scope()));
        float[] o = open.read(attention.forward(heads(c, q), heads(c, k), heads(c, v), pass));
        for (int i = 0; i < o.length; i++) {
            boolean row18Head0 = i / 32 == 18 && i % 32 < 16;
            assertEquals(row18Head0, Float.isNaN(o[i]), "row " + i / 32 + ", column " + i % 32);
        }
    }

    /** Scores far from 0: the softmax must not overflow, and equal scores must share alike. */
    @ParameterizedTest
    @MethodSource("floats")
    void largeScoresDoNotOverflow(DType dtype) {
        Case c = new Case(dtype, 1, 16, AttentionMask.none(), TokenRows.packed(33));
        RealMatrix q = new BlockRealMatrix(33, 16).scalarAdd(100);
        RealMatrix k = new BlockRealMatrix(33, 16).scalarAdd(100);
        RealMatrix v = open.normal(dtype, 33, 16, 1);
        AttentionConfig config = AttentionConfig.of(1, 16, AttentionMask.none());
        AttentionWitness witness = new AttentionWitness(config, c.tokens.rows(), AttentionWitness.Keep.ALL);
        Pass pass = open.pass().begin(c.tokens.sequences(open.scope()));
        Tensor o = new DotProductAttention(config).forward(heads(c, q), heads(c, k), heads(c, v), pass);
        assertRows(c, "o", witness.forward(q, k, v), o);
    }
}
