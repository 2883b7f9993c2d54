package dev.chagres.batch;

import java.util.Arrays;

/**
 * Tokens, labels and sequence lengths that go through a model at once.
 *
 * <p>The packer writes into these arrays: they are longer than their contents, and reused for later steps.
 *
 * <p>Threading: one thread at a time, with the batch that it belongs to.
 */
public final class MicroBatch {
    private final BatchShape shape;
    private final int[] ids;
    private final int[] labels;
    private final int[] cuSeqlens;
    private int sequences;
    private int realSequences;
    private int tokens;
    private int paddedTokens;
    private int labelled;
    private int longest;
    private long attendedPairs;

    MicroBatch(BatchShape shape) {
        this.shape = shape;
        ids = new int[shape.tokensPerMicroBatch()];
        labels = new int[shape.tokensPerMicroBatch()];
        cuSeqlens = new int[shape.maxSequences() + 1];
    }

    /** Returns the token ids, {@code [paddedTokens]}; in a padded micro-batch row after row. */
    public int[] ids() {
        return ids;
    }

    /** Returns per token the id to predict, or {@link Batch#IGNORED}; {@code [paddedTokens]}. */
    public int[] labels() {
        return labels;
    }

    /**
     * Returns the running sum of the sequences' lengths, {@code [sequences + 1]}, beginning with 0. In a packed micro-batch these are the
     * offsets of the sequences, including those of padding; in a padded micro-batch padding is not counted.
     */
    public int[] cuSeqlens() {
        return cuSeqlens;
    }

    /** Returns the number of sequences, including those of padding of a packed micro-batch. */
    public int sequences() {
        return sequences;
    }

    /** Returns the number of sequences that came from the data. */
    public int realSequences() {
        return realSequences;
    }

    /** Returns the number of tokens that came from the data. */
    public int tokens() {
        return tokens;
    }

    /** Returns the number of tokens that are computed, padding included. */
    public int paddedTokens() {
        return paddedTokens;
    }

    /** Returns the number of tokens with a label. */
    public int labelled() {
        return labelled;
    }

    /** Returns the tokens of the longest sequence. */
    public int longest() {
        return longest;
    }

    /** Returns the sum of the squared lengths of the sequences that came from the data: the work of attention. */
    public long attendedPairs() {
        return attendedPairs;
    }

    void clear() {
        sequences = 0;
        realSequences = 0;
        tokens = 0;
        paddedTokens = 0;
        labelled = 0;
        longest = 0;
        attendedPairs = 0;
        cuSeqlens[0] = 0;
    }

    /** Returns the length of the longest sequence that still fits. */
    int room() {
        return switch (shape.layout()) {
            case PACKED -> shape.tokensPerMicroBatch() - tokens;
            case PADDED -> sequences < shape.maxSequences() ? shape.context() : 0;
        };
    }

    /** Appends a sequence, which must fit. */
    void append(SequenceWindow.Copy sequence, int padding) {
        boolean packed = shape.layout() == BatchLayout.PACKED;
        int start = packed ? tokens : sequences * shape.context();
        int length = sequence.length();
        labelled += sequence.write(ids, labels, start);
        if (!packed) {
            fill(start + length, start + shape.context(), padding);
        }
        tokens += length;
        attendedPairs += (long) length * length;
        realSequences++;
        close(length);
    }

    /**
     * Adds the padding of the layout: a packed micro-batch is padded to a multiple of 16 tokens, by a sequence, or by several where the context
     * is shorter.
     */
    void pad(int padding) {
        if (shape.layout() == BatchLayout.PADDED) {
            paddedTokens = sequences * shape.context();
            return;
        }
        int multiple = BatchShape.TOKEN_MULTIPLE;
        paddedTokens = (tokens + multiple - 1) / multiple * multiple;
        if (paddedTokens > tokens) {
            fill(tokens, paddedTokens, padding);
            for (int left = paddedTokens - tokens; left > 0; left -= shape.context()) {
                close(Math.min(left, shape.context()));
            }
        }
    }

    private void fill(int from, int to, int padding) {
        Arrays.fill(ids, from, to, padding);
        Arrays.fill(labels, from, to, Batch.IGNORED);
    }

    private void close(int length) {
        cuSeqlens[sequences + 1] = cuSeqlens[sequences] + length;
        longest = Math.max(longest, length);
        sequences++;
    }
}
