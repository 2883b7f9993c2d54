package dev.chagres.witness;

import dev.chagres.attention.AttentionConfig;
import dev.chagres.attention.AttentionMask;
import java.util.List;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.apache.commons.math3.util.FastMath;

/**
 * {@code o = (keep * softmax(scale q k^T + mask)) v} for each head of each sequence. Matrices are [tokens, h d]; a sequence is
 * the list of its rows, and rows of no sequence stay zero.
 */
public final class AttentionWitness {
    /** The factor of attention weight (query, key) of one head of one sequence: 1, or what dropout makes of it. */
    @FunctionalInterface
    public interface Keep {
        /** Keeps everything. */
        Keep ALL = (sequence, head, query, key) -> 1;

        /** Returns 0 for a dropped weight, 1 over the probability of keeping for another. */
        double factor(int sequence, int head, int query, int key);
    }

    private final AttentionConfig config;
    private final List<int[]> sequences;
    private final Keep keep;
    private RealMatrix q;
    private RealMatrix k;
    private RealMatrix v;
    private RealMatrix o;
    private RealMatrix logSumExp;
    private RealMatrix dq;
    private RealMatrix dk;
    private RealMatrix dv;

    /** Attends within {@code sequences}, each a list of rows in the order of positions. */
    public AttentionWitness(AttentionConfig config, List<int[]> sequences, Keep keep) {
        this.config = config;
        this.sequences = sequences;
        this.keep = keep;
    }

    /** Returns the output, like q. */
    public RealMatrix forward(RealMatrix query, RealMatrix key, RealMatrix value) {
        q = query;
        k = key;
        v = value;
        o = MatrixUtils.createRealMatrix(q.getRowDimension(), q.getColumnDimension());
        logSumExp = MatrixUtils.createRealMatrix(q.getRowDimension(), config.heads());
        forEachHead((sequence, head) -> {
            int[] rows = sequences.get(sequence);
            RealMatrix weights = weights(rows, sequence, head);
            store(weights.multiply(load(v, rows, head)), o, rows, head);
        });
        return o;
    }

    /** Computes the gradients of the last forward pass. */
    public void backward(RealMatrix dO) {
        dq = MatrixUtils.createRealMatrix(q.getRowDimension(), q.getColumnDimension());
        dk = dq.copy();
        dv = dq.copy();
        forEachHead((sequence, head) -> {
            int[] rows = sequences.get(sequence);
            RealMatrix kept = weights(rows, sequence, head);
            RealMatrix gradient = load(dO, rows, head);
            store(kept.transpose().multiply(gradient), dv, rows, head);
            RealMatrix dkept = gradient.multiply(load(v, rows, head).transpose());
            RealMatrix dscores = scoreGradient(rows, sequence, head, kept, dkept);
            store(dscores.multiply(load(k, rows, head)), dq, rows, head);
            store(dscores.transpose().multiply(load(q, rows, head)), dk, rows, head);
        });
    }

    /** Returns scale * p (keep * dkept - sum over keys of kept * dkept). */
    private RealMatrix scoreGradient(int[] rows, int sequence, int head, RealMatrix kept, RealMatrix dkept) {
        RealMatrix probabilities = probabilities(rows, head);
        RealMatrix gradient = MatrixUtils.createRealMatrix(rows.length, rows.length);
        for (int i = 0; i < rows.length; i++) {
            double sum = kept.getRowVector(i).dotProduct(dkept.getRowVector(i));
            for (int j = 0; j < rows.length; j++) {
                double factor = keep.factor(sequence, head, i, j);
                gradient.setEntry(
                        i, j, config.scale() * probabilities.getEntry(i, j) * (factor * dkept.getEntry(i, j) - sum));
            }
        }
        return gradient;
    }

    private RealMatrix weights(int[] rows, int sequence, int head) {
        RealMatrix weights = probabilities(rows, head);
        for (int i = 0; i < rows.length; i++) {
            for (int j = 0; j < rows.length; j++) {
                weights.multiplyEntry(i, j, keep.factor(sequence, head, i, j));
            }
        }
        return weights;
    }

    private RealMatrix probabilities(int[] rows, int head) {
        RealMatrix scores =
                load(q, rows, head).multiply(load(k, rows, head).transpose()).scalarMultiply(config.scale());
        for (int i = 0; i < rows.length; i++) {
            double largest = Double.NEGATIVE_INFINITY;
            for (int j = 0; j < rows.length; j++) {
                largest = sees(i, j) ? Math.max(largest, scores.getEntry(i, j)) : largest;
            }
            double sum = 0;
            for (int j = 0; j < rows.length; j++) {
                double weight = sees(i, j) ? FastMath.exp(scores.getEntry(i, j) - largest) : 0;
                scores.setEntry(i, j, weight);
                sum += weight;
            }
            for (int j = 0; j < rows.length; j++) {
                scores.setEntry(i, j, scores.getEntry(i, j) / sum);
            }
            logSumExp.setEntry(rows[i], head, largest + FastMath.log(sum));
        }
        return scores;
    }

    private boolean sees(int query, int key) {
        AttentionMask mask = config.mask();
        boolean triangle = mask.kind() == AttentionMask.Kind.NONE || key <= query;
        boolean left = mask.windowLeft() < 0 || key >= query - mask.windowLeft();
        boolean right = mask.windowRight() < 0 || key <= query + mask.windowRight();
        return triangle && left && right;
    }

    @FunctionalInterface
    private interface HeadLoop {
        void run(int sequence, int head);
    }

    private void forEachHead(HeadLoop loop) {
        for (int sequence = 0; sequence < sequences.size(); sequence++) {
            for (int head = 0; head < config.heads() && sequences.get(sequence).length > 0; head++) {
                loop.run(sequence, head);
            }
        }
    }

    private RealMatrix load(RealMatrix from, int[] rows, int head) {
        int[] columns = new int[config.headDim()];
        for (int i = 0; i < columns.length; i++) {
            columns[i] = head * config.headDim() + i;
        }
        return from.getSubMatrix(rows, columns);
    }

    private void store(RealMatrix block, RealMatrix to, int[] rows, int head) {
        for (int i = 0; i < rows.length; i++) {
            for (int c = 0; c < config.headDim(); c++) {
                to.setEntry(rows[i], head * config.headDim() + c, block.getEntry(i, c));
            }
        }
    }

    /** Returns the log-sum-exp of each query's scores: [tokens, h]. */
    public RealMatrix logSumExp() {
        return logSumExp;
    }

    /** Returns the gradient of the query. */
    public RealMatrix dq() {
        return dq;
    }

    /** Returns the gradient of the key. */
    public RealMatrix dk() {
        return dk;
    }

    /** Returns the gradient of the value. */
    public RealMatrix dv() {
        return dv;
    }
}
