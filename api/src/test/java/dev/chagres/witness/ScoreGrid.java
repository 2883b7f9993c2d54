package dev.chagres.witness;

/**
 * Numbers of scores: a bias, its gradient, a mask.
 *
 * @param sequences with numbers of their own, or 1: all have the same
 * @param heads with numbers of their own, or 1: all have the same
 * @param queries of the longest sequence at least
 * @param keys of the longest sequence at least
 * @param values of [sequences, heads, queries, keys]
 */
public record ScoreGrid(int sequences, int heads, int queries, int keys, double[] values) {
    /** Returns zeros of the same sizes. */
    public ScoreGrid zeros() {
        return new ScoreGrid(sequences, heads, queries, keys, new double[values.length]);
    }

    /** Returns the number of one score. */
    public double at(int sequence, int head, int query, int key) {
        return values[index(sequence, head, query, key)];
    }

    void add(double summand, int sequence, int head, int query, int key) {
        values[index(sequence, head, query, key)] += summand;
    }

    private int index(int sequence, int head, int query, int key) {
        int ofSequence = (sequences == 1 ? 0 : sequence) * heads + (heads == 1 ? 0 : head);
        return (ofSequence * queries + query) * keys + key;
    }
}
