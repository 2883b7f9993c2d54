package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import dev.chagres.witness.AttentionWitness;
import java.util.Arrays;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;

/** One attention of drawn numbers: its tensors in the layout of a case, and its results against double precision. */
public final class AttentionRun {
    /** What computes it. */
    public interface Kernels {
        /** Writes output and statistics. */
        void forward(AttentionProblem problem, AttentionTensors tensors, Stream stream);

        /** Writes the gradients of query, key and value. */
        void backward(AttentionProblem problem, AttentionTensors tensors, Stream stream);
    }

    /** What the kernels leave in rows of padding. */
    public enum Padding {
        /** Zeros. */
        ZERO,
        /** Anything. */
        ANY
    }

    /** Sizes, layout and mask of an attention. */
    public record Case(
            DType dtype,
            QkvLayout layout,
            MaskType mask,
            long left,
            long right,
            int heads,
            int keyHeads,
            int headDim,
            int valueDim,
            TokenRows queries,
            TokenRows keys) {
        /** Queries and keys of the same tokens, in equal heads, without a mask but the padding's. */
        public static Case of(DType dtype, QkvLayout layout, int heads, int headDim, TokenRows tokens) {
            boolean full = tokens.lengths().stream().allMatch(length -> length == tokens.padded());
            MaskType mask = full ? MaskType.NO_MASK : MaskType.PADDING;
            return new Case(dtype, layout, mask, -1, -1, heads, heads, headDim, headDim, tokens, tokens);
        }

        /** Returns this case with another mask; sequences of full length take no mask of padding. */
        public Case with(MaskType newMask, long newLeft, long newRight) {
            return new Case(
                    dtype, layout, newMask, newLeft, newRight, heads, keyHeads, headDim, valueDim, queries, keys);
        }

        /** Returns this case with other keys. */
        public Case withKeys(int newHeads, int newValueDim, TokenRows newKeys) {
            return new Case(dtype, layout, mask, left, right, heads, newHeads, headDim, newValueDim, queries, newKeys);
        }

        /** Returns the problem, with 1 / sqrt(d) as the scale. */
        public AttentionProblem problem() {
            return AttentionProblem.of(layout, (float) (1 / Math.sqrt(headDim)))
                    .withMask(mask)
                    .withWindow(left, right);
        }
    }

    private final OpenDevice open;
    private final Case c;
    private final AttentionProblem problem;
    private final AttentionTensors tensors = new AttentionTensors();
    private final RealMatrix q;
    private final RealMatrix k;
    private final RealMatrix v;
    private final RealMatrix dO;

    /** Draws the inputs, and makes room for the results. */
    public AttentionRun(OpenDevice open, Case c, AttentionProblem problem) {
        this(
                open,
                c,
                problem,
                open.normal(c.dtype, c.queries.tokens(), c.heads * c.headDim, 1),
                open.normal(c.dtype, c.keys.tokens(), c.keyHeads * c.headDim, 1),
                open.normal(c.dtype, c.keys.tokens(), c.keyHeads * c.valueDim, 1));
    }

    /** Takes these inputs, and makes room for the results. */
    public AttentionRun(OpenDevice open, Case c, AttentionProblem problem, RealMatrix q, RealMatrix k, RealMatrix v) {
        this.open = open;
        this.c = c;
        this.problem = problem;
        this.q = q;
        this.k = k;
        this.v = v;
        dO = open.normal(c.dtype, c.queries.tokens(), c.heads * c.valueDim, 1);
        Tensor[] inputs = buffers(q, k, v);
        Tensor[] gradients = buffers(nan(q), nan(k), nan(v));
        tensors.query(inputs[0]).key(inputs[1]).value(inputs[2]);
        tensors.queryGradient(gradients[0]).keyGradient(gradients[1]).valueGradient(gradients[2]);
        tensors.queryLengths(cumulative(c.queries), length(c.queries)).keyLengths(cumulative(c.keys), length(c.keys));
        tensors.output(heads(nan(dO), c.queries, c.heads)).outputGradient(heads(dO, c.queries, c.heads));
        Tensor statistics = FusedAttention.statistics(problem, tensors, open.scope());
        statistics.set(open.stream(), new float[(int) statistics.count()]);
        tensors.statistics(statistics);
    }

    /** Returns the tensors. */
    public AttentionTensors tensors() {
        return tensors;
    }

    /** Runs both directions, and checks all results. */
    public void check(Kernels kernels, AttentionWitness.Keep keep, Padding padding) {
        AttentionWitness witness =
                new AttentionWitness(problem, c.heads, c.keyHeads, c.queries.rows(), c.keys.rows(), keep);
        kernels.forward(problem, tensors, open.stream());
        assertRows("output", witness.forward(q, k, v), c.queries, rows(tensors.output()), padding);
        assertStatistics(witness.logSumExp());
        kernels.backward(problem, tensors, open.stream());
        witness.backward(dO);
        assertRows("dq", witness.dq(), c.queries, part(tensors.queryGradient(), 0), padding);
        assertRows("dk", witness.dk(), c.keys, part(tensors.keyGradient(), 1), padding);
        assertRows("dv", witness.dv(), c.keys, part(tensors.valueGradient(), 2), padding);
    }

    private void assertRows(String what, RealMatrix expected, TokenRows tokens, float[] actual, Padding padding) {
        int columns = expected.getColumnDimension();
        // In short sequences gradients nearly cancel, in one of one token they do: what is left of 0.5 over n keys is
        // noise.
        double magnitude = 0.5 / Math.sqrt(Math.max(1, Math.max(c.queries.longest(), c.keys.longest())));
        open.assertClose(
                what,
                tokens.entries(expected),
                tokens.entries(actual, columns),
                magnitude,
                Tolerances.attention(c.dtype));
        if (padding == Padding.ZERO) {
            for (int row : tokens.paddingRows()) {
                float[] values = Arrays.copyOfRange(actual, row * columns, (row + 1) * columns);
                assertArrayEquals(new float[columns], values, what + ", row of padding " + row);
            }
        }
    }

    /** Statistics are [T, h, 1] packed and [B, h, S, 1] dense. */
    private void assertStatistics(RealMatrix expected) {
        float[] values = open.read(tensors.statistics());
        List<int[]> rows = c.queries.rows();
        for (int sequence = 0; sequence < rows.size(); sequence++) {
            for (int position = 0; position < rows.get(sequence).length; position++) {
                int row = rows.get(sequence)[position];
                for (int head = 0; head < c.heads; head++) {
                    int index = c.queries.format() == QkvFormat.THD
                            ? row * c.heads + head
                            : (sequence * c.heads + head) * c.queries.padded() + position;
                    assertEquals(expected.getEntry(row, head), values[index], 1e-3, "log-sum-exp of row " + row);
                }
            }
        }
    }

    /** Returns the tensors of query, key and value, or of their gradients, as the layout has them. */
    private Tensor[] buffers(RealMatrix query, RealMatrix key, RealMatrix value) {
        return switch (c.layout.packing()) {
            case NONE ->
                new Tensor[] {
                    heads(query, c.queries, c.heads), heads(key, c.keys, c.keyHeads), heads(value, c.keys, c.keyHeads)
                };
            case KEY_VALUE -> {
                Tensor both = open.tensor(c.dtype, sideBySide(key, value));
                yield new Tensor[] {
                    heads(query, c.queries, c.heads),
                    view(both, 0, c.keys, c.keyHeads, c.headDim),
                    view(both, key.getColumnDimension(), c.keys, c.keyHeads, c.headDim)
                };
            }
            case ALL -> {
                Tensor all = open.tensor(c.dtype, sideBySide(query, key, value));
                int width = query.getColumnDimension();
                yield new Tensor[] {
                    view(all, 0, c.queries, c.heads, c.headDim),
                    view(all, width, c.queries, c.heads, c.headDim),
                    view(all, 2L * width, c.queries, c.heads, c.headDim)
                };
            }
        };
    }

    private Tensor heads(RealMatrix matrix, TokenRows tokens, int count) {
        return view(open.tensor(c.dtype, matrix), 0, tokens, count, matrix.getColumnDimension() / count);
    }

    private Tensor view(Tensor matrix, long offset, TokenRows tokens, long count, long dim) {
        long batch = tokens.lengths().size();
        long length = tokens.padded();
        return switch (tokens.format()) {
            case THD -> open.scope().view(matrix, offset, tokens.tokens(), count, dim);
            case BSHD -> open.scope().view(matrix, offset, batch, length, count, dim);
            case SBHD -> open.scope().view(matrix, offset, length, batch, count, dim);
        };
    }

    /** Returns the rows of a tensor that lies alone. */
    private float[] rows(Tensor tensor) {
        return open.read(tensor);
    }

    /** Returns the rows of a gradient; {@code index} is 0 for the query, 1 for the key, 2 for the value. */
    private float[] part(Tensor gradient, int index) {
        int parts = index == 0
                ? c.layout.packing().queryParts()
                : c.layout.packing().keyParts();
        if (parts == 1) {
            return open.read(gradient);
        }
        int place = parts == 3 ? index : index - 1;
        int width = (int) (gradient.size(gradient.rank() - 2) * gradient.size(gradient.rank() - 1));
        int tokens = (int) gradient.count() / width;
        Tensor first = parts == 3 ? tensors.queryGradient() : tensors.keyGradient();
        float[] all = open.read(whole(first, (long) parts * width * tokens));
        float[] own = new float[tokens * width];
        for (int row = 0; row < tokens; row++) {
            System.arraycopy(all, (parts * row + place) * width, own, row * width, width);
        }
        return own;
    }

    private Tensor whole(Tensor first, long count) {
        return open.scope().view(Inside.root(first), 0, count);
    }

    private Tensor cumulative(TokenRows tokens) {
        int[] offsets = new int[tokens.lengths().size() + 1];
        for (int i = 0; i + 1 < offsets.length; i++) {
            offsets[i + 1] = offsets[i] + tokens.lengths().get(i);
        }
        return open.ints(offsets);
    }

    private static long length(TokenRows tokens) {
        return tokens.format() == QkvFormat.THD ? tokens.longest() : tokens.padded();
    }

    private static RealMatrix nan(RealMatrix like) {
        return like.scalarMultiply(0).scalarAdd(Double.NaN);
    }

    private static RealMatrix sideBySide(RealMatrix... parts) {
        int columns = parts[0].getColumnDimension();
        RealMatrix all = new BlockRealMatrix(parts[0].getRowDimension(), parts.length * columns);
        for (int part = 0; part < parts.length; part++) {
            all.setSubMatrix(parts[part].getData(), 0, part * columns);
        }
        return all;
    }
}
