package dev.chagres.samples.data;

import java.util.Arrays;

/**
 * Tokens, labels and sequence lengths of one training step, in arrays that are filled again for later steps.
 *
 * <p>Threading: one thread at a time; {@link BatchSource} hands a batch from its thread to the caller's and back.
 */
public final class Batch {
    /** Label of a token that the loss leaves out. */
    public static final int IGNORED = -100;

    private final BatchShape shape;
    private final int[] ids;
    private final int[] labels;
    private final int[] cuSeqlens;
    private int sequences;
    private int realSequences;
    private int tokens;
    private int paddedTokens;
    private int masked;
    private int longest;
    private long attendedPairs;

    /** Makes an empty batch that can hold what {@code shape} allows. */
    public Batch(BatchShape shape) {
        this.shape = shape;
        ids = new int[shape.tokensPerStep()];
        labels = new int[shape.tokensPerStep()];
        cuSeqlens = new int[shape.maxSequences() + 1];
    }

    /** Returns what the batch may hold at most. */
    public BatchShape shape() {
        return shape;
    }

    /** Returns the token ids, {@code [paddedTokens]}; in a padded batch row after row. */
    public int[] ids() {
        return ids;
    }

    /** Returns per token the id to predict, or {@link #IGNORED}; {@code [paddedTokens]}. */
    public int[] labels() {
        return labels;
    }

    /**
     * Returns the running sum of the sequences' lengths, {@code [sequences + 1]}, beginning with 0. In a packed batch it
     * is where each sequence begins, the dummy one included; in a padded batch padding is not counted.
     */
    public int[] cuSeqlens() {
        return cuSeqlens;
    }

    /** Returns the number of sequences, the dummy one of a packed batch included. */
    public int sequences() {
        return sequences;
    }

    /** Returns the number of sequences that came from the data. */
    public int realSequences() {
        return realSequences;
    }

    /** Returns the number of tokens that came from the data, each sequence's first and last token included. */
    public int tokens() {
        return tokens;
    }

    /** Returns the number of tokens that a step computes, padding included. */
    public int paddedTokens() {
        return paddedTokens;
    }

    /** Returns the number of tokens with a label. */
    public int masked() {
        return masked;
    }

    /** Returns the tokens of the longest sequence. */
    public int longest() {
        return longest;
    }

    /** Returns the sum of the squared lengths of the sequences that came from the data: the attention's work. */
    public long attendedPairs() {
        return attendedPairs;
    }

    void clear() {
        sequences = 0;
        realSequences = 0;
        tokens = 0;
        paddedTokens = 0;
        masked = 0;
        longest = 0;
        attendedPairs = 0;
        cuSeqlens[0] = 0;
    }

    /** Returns where the next sequence begins in {@link #ids}. */
    int nextStart() {
        return shape.layout() == BatchLayout.PACKED ? tokens : sequences * shape.context();
    }

    /** Tells whether a sequence of {@code length} tokens still fits, the dummy sequence behind it included. */
    boolean fits(int length) {
        return switch (shape.layout()) {
            case PACKED -> tokens + length <= shape.tokensPerStep();
            case PADDED -> sequences < shape.maxSequences();
        };
    }

    /** Counts a sequence whose ids and labels were written from {@link #nextStart} on. */
    void count(int length, int maskedTokens) {
        tokens += length;
        masked += maskedTokens;
        attendedPairs += (long) length * length;
        realSequences++;
        close(length);
    }

    /** Fills up what the layout needs: the last tokens to a multiple of 16, or every row to the context. */
    void pad() {
        if (shape.layout() == BatchLayout.PADDED) {
            paddedTokens = sequences * shape.context();
            return;
        }
        int multiple = BatchShape.TOKEN_MULTIPLE;
        paddedTokens = (tokens + multiple - 1) / multiple * multiple;
        if (paddedTokens > tokens) {
            fillWithPadding(tokens, paddedTokens);
            close(paddedTokens - tokens);
        }
    }

    void fillWithPadding(int from, int to) {
        Arrays.fill(ids, from, to, EsmVocabulary.PAD);
        Arrays.fill(labels, from, to, IGNORED);
    }

    private void close(int length) {
        cuSeqlens[sequences + 1] = cuSeqlens[sequences] + length;
        longest = Math.max(longest, length);
        sequences++;
    }
}
