package dev.chagres.witness;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences.Padding;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.QkvLayout;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.apache.commons.math3.util.FastMath;

/**
 * {@code o = (keep * softmax(scale q k^T + mask)) v} for each head of each sequence, where {@link ScoreWitness} may change scores. Queries are
 * [tokens, h d], keys and values [tokens, g d] with g a divisor of h: head i of the queries reads head {@code i / (h / g)}. A sequence is the list
 * of its rows, and rows of no sequence stay zero, as do queries that see no key.
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

    private final AttentionProblem problem;
    private final int heads;
    private final int keyHeads;
    private final List<int[]> queries;
    private final List<int[]> keys;
    private final ScoreWitness scores;
    private Keep keep;
    private RealMatrix q;
    private RealMatrix k;
    private RealMatrix v;
    private RealMatrix o;
    private RealMatrix logSumExp;
    private RealMatrix dq;
    private RealMatrix dk;
    private RealMatrix dv;
    private RealMatrix querySummands;
    private RealMatrix keySummands;

    /**
     * Attends from {@code queries} to {@code keys}, each a list of rows in the order of positions. Of the problem, scale, mask
     * and window matter.
     */
    public AttentionWitness(
            AttentionProblem problem, int heads, int keyHeads, List<int[]> queries, List<int[]> keys, Keep keep) {
        this(problem, ScoreWitness.plain(problem.scale()), heads, keyHeads, queries, keys);
        this.keep = keep;
    }

    /** Attends within {@code sequences}. */
    public AttentionWitness(AttentionConfig config, List<int[]> sequences, Keep keep) {
        this(config, sequences, sequences);
        this.keep = keep;
    }

    /** Attends from {@code queries} to {@code keys}, with all that {@code config} says but dropout. */
    public AttentionWitness(AttentionConfig config, List<int[]> queries, List<int[]> keys) {
        this(problem(config), ScoreWitness.of(config), config.heads(), config.keyHeads(), queries, keys);
    }

    private AttentionWitness(
            AttentionProblem problem,
            ScoreWitness scores,
            int heads,
            int keyHeads,
            List<int[]> queries,
            List<int[]> keys) {
        this.problem = problem;
        this.scores = scores;
        this.heads = heads;
        this.keyHeads = keyHeads;
        this.queries = queries;
        this.keys = keys;
        keep = Keep.ALL;
    }

    /** Returns what becomes of scores. */
    public ScoreWitness scores() {
        return scores;
    }

    /** Multiplies weights by these factors from now on. */
    public void keep(Keep newKeep) {
        keep = newKeep;
    }

    private static AttentionProblem problem(AttentionConfig config) {
        AttentionMask mask = config.mask();
        return AttentionProblem.of(QkvLayout.THD_THD_THD, config.scale())
                .withMask(mask.type(Padding.NONE))
                .withWindow(mask.windowLeft(), mask.windowRight());
    }

    /** Returns the output, like q with heads of the value's size. */
    public RealMatrix forward(RealMatrix query, RealMatrix key, RealMatrix value) {
        q = query;
        k = key;
        v = value;
        o = new BlockRealMatrix(q.getRowDimension(), heads * (v.getColumnDimension() / keyHeads));
        logSumExp = new BlockRealMatrix(q.getRowDimension(), heads).scalarAdd(Double.NEGATIVE_INFINITY);
        forEachHead((sequence, head) -> {
            RealMatrix weights = weights(sequence, head);
            add(weights.multiply(value(v, sequence, head)), o, queries.get(sequence), head, heads);
        });
        return o;
    }

    /** Computes the gradients of the last forward pass. */
    public void backward(RealMatrix dO) {
        dq = new BlockRealMatrix(q.getRowDimension(), q.getColumnDimension());
        dk = new BlockRealMatrix(k.getRowDimension(), k.getColumnDimension());
        dv = new BlockRealMatrix(v.getRowDimension(), v.getColumnDimension());
        querySummands = new BlockRealMatrix(q.getRowDimension(), q.getColumnDimension());
        keySummands = new BlockRealMatrix(k.getRowDimension(), k.getColumnDimension());
        scores.beginGradients(heads);
        forEachHead((sequence, head) -> {
            int[] keyRows = keys.get(sequence);
            RealMatrix kept = weights(sequence, head);
            RealMatrix gradient = query(dO, sequence, head);
            add(kept.transpose().multiply(gradient), dv, keyRows, keyHead(head), keyHeads);
            RealMatrix dkept = gradient.multiply(value(v, sequence, head).transpose());
            RealMatrix summands = new BlockRealMatrix(dkept.getRowDimension(), dkept.getColumnDimension());
            RealMatrix dproducts = productGradient(sequence, head, kept, dkept, summands);
            RealMatrix sizes = Rows.map(query(q, sequence, head), Math::abs);
            RealMatrix keySizes = Rows.map(value(k, sequence, head), Math::abs);
            add(summands.multiply(keySizes), querySummands, queries.get(sequence), head, heads);
            add(summands.transpose().multiply(sizes), keySummands, keyRows, keyHead(head), keyHeads);
            add(dproducts.multiply(value(k, sequence, head)), dq, queries.get(sequence), head, heads);
            add(dproducts.transpose().multiply(query(q, sequence, head)), dk, keyRows, keyHead(head), keyHeads);
        });
    }

    /** Returns the gradient of q k^T; that of the scores is p (keep * dkept - sum over keys of kept * dkept). */
    private RealMatrix productGradient(int sequence, int head, RealMatrix kept, RealMatrix dkept, RealMatrix summands) {
        RealMatrix probabilities = probabilities(sequence, head);
        RealMatrix gradient = new BlockRealMatrix(kept.getRowDimension(), kept.getColumnDimension());
        for (int i = 0; i < kept.getRowDimension(); i++) {
            double sum = kept.getRowVector(i).dotProduct(dkept.getRowVector(i));
            double other = 1;
            double magnitudes = 0;
            for (int j = 0; j < kept.getColumnDimension(); j++) {
                double probability = probabilities.getEntry(i, j);
                double factor = keep.factor(sequence, head, i, j);
                gradient.setEntry(i, j, probability * (factor * dkept.getEntry(i, j) - sum));
                summands.setEntry(i, j, probability * (Math.abs(factor * dkept.getEntry(i, j)) + Math.abs(sum)));
                other -= probability;
                magnitudes += Math.abs(kept.getEntry(i, j) * dkept.getEntry(i, j));
            }
            scores.addSinkGradient(-other * sum, other * magnitudes, head);
        }
        return scores.gradient(products(sequence, head), gradient, summands, sequence, head);
    }

    /** Leaves the gradient of the sinks, where the last backward pass had some, in {@code weights}. */
    void putSinksGradient(Weights weights, String name) {
        if (scores.hasSinks()) {
            weights.putGradient(name, scores.sinksGradient());
        }
    }

    private RealMatrix products(int sequence, int head) {
        return query(q, sequence, head).multiply(value(k, sequence, head).transpose());
    }

    private RealMatrix weights(int sequence, int head) {
        RealMatrix weights = probabilities(sequence, head);
        for (int i = 0; i < weights.getRowDimension(); i++) {
            for (int j = 0; j < weights.getColumnDimension(); j++) {
                weights.multiplyEntry(i, j, keep.factor(sequence, head, i, j));
            }
        }
        return weights;
    }

    private RealMatrix probabilities(int sequence, int head) {
        int[] queryRows = queries.get(sequence);
        int keyCount = keys.get(sequence).length;
        RealMatrix found = scores.scores(products(sequence, head), sequence, head);
        for (int i = 0; i < queryRows.length; i++) {
            double largest = scores.logOther(head);
            boolean[] seen = new boolean[keyCount];
            for (int j = 0; j < keyCount; j++) {
                seen[j] = sees(i, j, queryRows.length, keyCount) && !scores.hides(sequence, head, i, j);
                largest = seen[j] ? Math.max(largest, found.getEntry(i, j)) : largest;
            }
            boolean empty = largest == Double.NEGATIVE_INFINITY;
            double sum = empty ? 0 : FastMath.exp(scores.logOther(head) - largest);
            for (int j = 0; j < keyCount; j++) {
                double weight = seen[j] ? FastMath.exp(found.getEntry(i, j) - largest) : 0;
                found.setEntry(i, j, weight);
                sum += weight;
            }
            for (int j = 0; j < keyCount; j++) {
                found.setEntry(i, j, sum == 0 ? 0 : found.getEntry(i, j) / sum);
            }
            logSumExp.setEntry(queryRows[i], head, sum == 0 ? Double.NEGATIVE_INFINITY : largest + FastMath.log(sum));
        }
        return found;
    }

    private boolean sees(int query, int key, int queryCount, int keyCount) {
        int diagonal = problem.mask().isBottomRight() ? query + keyCount - queryCount : query;
        boolean triangle = !problem.mask().isCausal() || key <= diagonal;
        boolean left = problem.windowLeft() < 0 || key >= diagonal - problem.windowLeft();
        boolean right = problem.windowRight() < 0 || key <= diagonal + problem.windowRight();
        return triangle && left && right;
    }

    @FunctionalInterface
    private interface HeadLoop {
        void run(int sequence, int head);
    }

    private void forEachHead(HeadLoop loop) {
        for (int sequence = 0; sequence < queries.size(); sequence++) {
            boolean any = queries.get(sequence).length > 0 && keys.get(sequence).length > 0;
            for (int head = 0; head < heads && any; head++) {
                loop.run(sequence, head);
            }
        }
    }

    private int keyHead(int head) {
        return head / (heads / keyHeads);
    }

    /** Returns a head of a matrix of queries' rows. */
    private RealMatrix query(RealMatrix from, int sequence, int head) {
        return load(from, queries.get(sequence), head, heads);
    }

    /** Returns what head {@code head} of the queries reads in a matrix of keys' rows. */
    private RealMatrix value(RealMatrix from, int sequence, int head) {
        return load(from, keys.get(sequence), keyHead(head), keyHeads);
    }

    private static RealMatrix load(RealMatrix from, int[] rows, int head, int allHeads) {
        int[] columns = new int[from.getColumnDimension() / allHeads];
        for (int i = 0; i < columns.length; i++) {
            columns[i] = head * columns.length + i;
        }
        return from.getSubMatrix(rows, columns);
    }

    private static void add(RealMatrix block, RealMatrix to, int[] rows, int head, int allHeads) {
        int dim = to.getColumnDimension() / allHeads;
        for (int i = 0; i < rows.length; i++) {
            for (int c = 0; c < dim; c++) {
                to.addToEntry(rows[i], head * dim + c, block.getEntry(i, c));
            }
        }
    }

    /** Returns the log-sum-exp of each query's scores: [tokens, h]. */
    public RealMatrix logSumExp() {
        return logSumExp;
    }

    /** Returns of each element of the query's gradient the sum of the magnitudes of its summands. */
    public RealMatrix querySummands() {
        return querySummands;
    }

    /** Returns of each element of the key's gradient the sum of the magnitudes of its summands. */
    public RealMatrix keySummands() {
        return keySummands;
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
