package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.witness.Float8Witness;

/**
 * An attention in eight bits over drawn tensors, and its result in double precision, rounded where kernels round.
 *
 * @param layout of query, key and value
 * @param lengths valid tokens of each sequence
 * @param padded tokens that each has room for
 */
record ScaledAttentionCase(
        QkvLayout layout, MaskType mask, int heads, int keyHeads, int headDim, int padded, int... lengths) {
    private static final DType E4M3 = DType.FLOAT8_E4M3;

    AttentionProblem problem() {
        return AttentionProblem.of(layout, 1 / (float) Math.sqrt(headDim)).withMask(mask);
    }

    /** One of the tensors [B, S, h, d] in a buffer of its own or a shared one: numbers in units of its type. */
    static final class Heads {
        final double[] values;
        final Tensor buffer;
        final Tensor view;
        private final int offset;
        private final int token;
        private final int sequence;
        private final int headDim;

        private Heads(Tensor buffer, double[] values, Tensor view, int offset, int token, int sequence, int headDim) {
            this.buffer = buffer;
            this.values = values;
            this.view = view;
            this.offset = offset;
            this.token = token;
            this.sequence = sequence;
            this.headDim = headDim;
        }

        int at(int b, int row, int head) {
            return offset + b * sequence + row * token + head * headDim;
        }
    }

    /** Makes query, key and value, or their gradients, of the layout; random numbers of this deviation, in units of the type. */
    Heads[] triple(OpenDevice open, DType dtype, double deviation) {
        boolean one = layout.packing() == QkvLayout.Packing.ALL;
        if (!one) {
            return new Heads[] {
                single(open, dtype, heads, deviation),
                single(open, dtype, keyHeads, deviation),
                single(open, dtype, keyHeads, deviation)
            };
        }
        int width = heads * headDim;
        double[] values = draw(open, dtype, lengths.length * padded * 3 * width, deviation);
        Tensor buffer = open.scope().tensor(dtype, (long) lengths.length * padded, 3L * width);
        buffer.set(open.stream(), bytes(values, dtype));
        Heads[] three = new Heads[3];
        for (int i = 0; i < 3; i++) {
            three[i] = heads(open, buffer, values, i * width, 3 * width, heads);
        }
        return three;
    }

    /** Makes one tensor alone. */
    Heads single(OpenDevice open, DType dtype, int count, double deviation) {
        int width = count * headDim;
        double[] values = draw(open, dtype, lengths.length * padded * width, deviation);
        Tensor buffer = open.scope().tensor(dtype, (long) lengths.length * padded, width);
        buffer.set(open.stream(), bytes(values, dtype));
        return heads(open, buffer, values, 0, width, count);
    }

    private Heads heads(OpenDevice open, Tensor buffer, double[] values, int offset, int token, int count) {
        int batch = lengths.length;
        boolean sequenceFirst = layout.format() == QkvFormat.BSHD;
        Tensor view = sequenceFirst
                ? open.scope().view(buffer, offset, batch, padded, count, headDim)
                : open.scope().view(buffer, offset, padded, batch, count, headDim);
        return sequenceFirst
                ? new Heads(buffer, values, view, offset, token, padded * token, headDim)
                : new Heads(buffer, values, view, offset, batch * token, token, headDim);
    }

    private static double[] draw(OpenDevice open, DType dtype, int count, double deviation) {
        double[] values = new double[count];
        for (int i = 0; deviation > 0 && i < count; i++) {
            values[i] = Float8Witness.nearest(open.random().nextDouble(-2, 2) * deviation, dtype);
        }
        return values;
    }

    /** Returns the bits of numbers that {@code dtype} has. */
    private static byte[] bytes(double[] values, DType dtype) {
        byte[] bytes = new byte[values.length];
        for (int i = 0; i < values.length; i++) {
            int low = 0;
            int high = dtype == E4M3 ? 0x7e : 0x7b;
            while (low < high) { // Magnitudes grow with their bits.
                int middle = (low + high) / 2;
                if (Float8Witness.value((byte) middle, dtype) < Math.abs(values[i])) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            bytes[i] = (byte) (values[i] < 0 ? low | 0x80 : low);
        }
        return bytes;
    }

    /** Weights [i][j] of a head, 0 where a query does not see a key. */
    double[][] weights(Heads q, Heads k, double factor, int b, int head) {
        int length = lengths[b];
        double[][] weights = new double[length][length];
        for (int i = 0; i < length; i++) {
            int last = mask.isCausal() ? i + 1 : length;
            double largest = Double.NEGATIVE_INFINITY;
            for (int j = 0; j < last; j++) {
                weights[i][j] = factor * dot(q, q.at(b, i, head), k, k.at(b, j, keyHead(head)));
                largest = Math.max(largest, weights[i][j]);
            }
            double sum = 0;
            for (int j = 0; j < last; j++) {
                weights[i][j] = Math.exp(weights[i][j] - largest);
                sum += weights[i][j];
            }
            for (int j = 0; j < last; j++) {
                weights[i][j] /= sum;
            }
        }
        return weights;
    }

    int keyHead(int head) {
        return head / (heads / keyHeads);
    }

    double dot(Heads a, int atA, Heads b, int atB) {
        double sum = 0;
        for (int c = 0; c < headDim; c++) {
            sum += a.values[atA + c] * b.values[atB + c];
        }
        return sum;
    }
}
