package dev.chagres.witness;

import dev.chagres.conformance.TokenRows;
import dev.chagres.te.MaskType;
import dev.chagres.te.SoftmaxType;
import java.util.function.IntPredicate;
import org.jspecify.annotations.Nullable;

/**
 * Attention over changed scores in double precision, by plain loops: the numbers are the arguments' own arrays, so that a test
 * may change one and look at the difference.
 */
public final class ScoredAttention {
    private final TokenRows queries;
    private final TokenRows keys;
    private final int heads;
    private final int keyHeads;
    private final int dim;
    private final MaskType maskType;
    private final double scale;
    /** Soft cap; 0: none. */
    public double cap;
    /** Of ALiBi, of heads, or of sequences by heads; none: no ALiBi. */
    public double[] slopes = new double[0];
    /** Where ALiBi counts from. */
    public boolean bottomRight;
    /** Elements of biasShape; none: no bias. */
    public double[] bias = new double[0];
    /** Whether the bias is added before the scale. */
    public boolean preScale;
    /** Sequences, heads, queries, keys. */
    public int[] biasShape = {1, 1, 0, 0};
    /** Elements of maskShape; none: no mask. */
    public byte[] mask = new byte[0];
    /** Sequences, heads, queries, keys. */
    public int[] maskShape = {1, 1, 0, 0};
    /** The softmax. */
    public SoftmaxType softmax = SoftmaxType.VANILLA;
    /** Keys before its own that a query sees; -1: all. */
    public long windowLeft = -1;
    /** Factors of the weights. */
    public AttentionWitness.Keep keep = AttentionWitness.Keep.ALL;
    /** Of heads, for a learnable softmax. */
    public double[] sinks = new double[0];
    /** Rows of tokens by heads by columns. */
    public final double[] q;

    /** Like q, of the keys. */
    public final double[] k;
    /** Like q, of the values. */
    public final double[] v;

    /** Attends from queries to keys; of the mask type its triangle matters. */
    public ScoredAttention(
            TokenRows queries,
            TokenRows keys,
            int heads,
            int keyHeads,
            MaskType maskType,
            double scale,
            double[] q,
            double[] k,
            double[] v) {
        this.queries = queries;
        this.keys = keys;
        this.heads = heads;
        this.keyHeads = keyHeads;
        this.maskType = maskType;
        this.scale = scale;
        this.q = q;
        this.k = k;
        this.v = v;
        dim = q.length / (queries.tokens() * heads);
    }

    /** Returns the output, rows of tokens by heads by columns; the log-sum-exp of [tokens, heads] goes to {@code sums}. */
    public double[] output(double @Nullable [] sums) {
        double[] output = new double[q.length];
        for (int sequence = 0; sequence < queries.lengths().size(); sequence++) {
            for (int head = 0; head < heads; head++) {
                int[] rows = queries.rows().get(sequence);
                for (int query = 0; query < rows.length; query++) {
                    double sum = attend(sequence, head, query, rows[query], output);
                    if (sums != null) {
                        sums[rows[query] * heads + head] = sum;
                    }
                }
            }
        }
        return output;
    }

    /** Returns the sum of output times {@code dO}. */
    public double loss(double[] dO) {
        double[] output = output(null);
        double sum = 0;
        for (int i = 0; i < output.length; i++) {
            sum += output[i] * dO[i];
        }
        return sum;
    }

    private double attend(int sequence, int head, int query, int row, double[] output) {
        int[] keyRows = keys.rows().get(sequence);
        double[] weights = new double[keyRows.length];
        double total = switch (softmax) {
            case VANILLA -> 0;
            case OFF_BY_ONE -> 1;
            case LEARNABLE -> Math.exp(sinks[head]);
        };
        for (int key = 0; key < keyRows.length; key++) {
            weights[key] = Math.exp(score(sequence, head, query, key, row, keyRows[key]));
            total += weights[key];
        }
        for (int key = 0; key < keyRows.length && total > 0; key++) {
            weights[key] *= keep.factor(sequence, head, query, key);
            for (int c = 0; c < dim; c++) {
                output[(row * heads + head) * dim + c] +=
                        weights[key] / total * v[(keyRows[key] * keyHeads + keyHead(head)) * dim + c];
            }
        }
        return Math.log(total);
    }

    private int keyHead(int head) {
        return head / (heads / keyHeads);
    }

    private double score(int sequence, int head, int query, int key, int row, int keyRow) {
        int shift = keys.lengths().get(sequence) - queries.lengths().get(sequence);
        IntPredicate hidden = last -> maskType.isCausal() && key > last;
        int diagonal = query + (maskType.isBottomRight() ? shift : 0);
        if (hidden.test(diagonal) || (windowLeft >= 0 && key < diagonal - windowLeft)) {
            return Double.NEGATIVE_INFINITY;
        }
        if (mask.length > 0 && mask[at(maskShape, sequence, head, query, key)] != 0) {
            return Double.NEGATIVE_INFINITY;
        }
        double score = 0;
        for (int c = 0; c < dim; c++) {
            score += scale * q[(row * heads + head) * dim + c] * k[(keyRow * keyHeads + keyHead(head)) * dim + c];
        }
        double added = bias.length > 0 ? bias[at(biasShape, sequence, head, query, key)] : 0;
        score += preScale ? scale * added : 0;
        score = cap > 0 ? cap * Math.tanh(score / cap) : score;
        if (slopes.length > 0) {
            double slope = slopes[slopes.length == heads ? head : sequence * heads + head];
            score -= slope * Math.abs(query + (bottomRight ? shift : 0) - key);
        }
        return preScale ? score : score + added;
    }

    private static int at(int[] shape, int sequence, int head, int query, int key) {
        int b = shape[0] == 1 ? 0 : sequence;
        int h = shape[1] == 1 ? 0 : head;
        return ((b * shape[1] + h) * shape[2] + query) * shape[3] + key;
    }
}
