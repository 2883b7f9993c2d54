package dev.chagres.batch;

import dev.chagres.internal.Checks;

/**
 * The maximum size of the batch of a training step, and its number of micro-batches.
 *
 * <p>The token budget belongs to the whole step, and each micro-batch has an equal share of it. Micro-batches hold whole sequences, so a
 * share must be at least as large as the longest one.
 *
 * <p>Threading: immutable.
 *
 * @param layout how sequences are laid out in a micro-batch
 * @param tokensPerStep the most tokens of all micro-batches of a step, padding included: a multiple of
 *     {@link #TOKEN_MULTIPLE} for each micro-batch
 * @param context the most tokens of a sequence
 * @param microBatches how many micro-batches a step has: 1 unless gradients are accumulated
 */
public record BatchShape(BatchLayout layout, int tokensPerStep, int context, int microBatches) {
    /** Token counts are multiples of this, as FP8 products need. */
    public static final int TOKEN_MULTIPLE = 16;

    /**
     * Checks the sizes.
     *
     * @throws IllegalArgumentException when a size is too small, or a token count would be no multiple of
     *     {@link #TOKEN_MULTIPLE}
     */
    public BatchShape {
        Checks.given("layout", layout);
        if (context < 1) {
            throw new IllegalArgumentException("context: expected at least 1 token, got " + context);
        }
        Checks.atLeastOne("microBatches", microBatches);
        checkBudget(tokensPerStep, context, microBatches);
        if (layout == BatchLayout.PADDED && context % TOKEN_MULTIPLE != 0) {
            throw new IllegalArgumentException(
                    "context: expected a multiple of " + TOKEN_MULTIPLE + " without packing, got " + context);
        }
    }

    /**
     * A step of one micro-batch.
     *
     * @throws IllegalArgumentException when a size is too small, or a token count would be no multiple of
     *     {@link #TOKEN_MULTIPLE}
     */
    public BatchShape(BatchLayout layout, int tokensPerStep, int context) {
        this(layout, tokensPerStep, context, 1);
    }

    private static void checkBudget(int tokensPerStep, int context, int microBatches) {
        boolean one = microBatches == 1;
        long multiple = (long) TOKEN_MULTIPLE * microBatches;
        if (tokensPerStep < 1 || tokensPerStep % multiple != 0) {
            throw new IllegalArgumentException((one ? "tokensPerStep" : "tokensPerStep, microBatches")
                    + ": expected a positive multiple of " + TOKEN_MULTIPLE
                    + (one ? "" : " tokens for each of " + microBatches + " micro-batches, " + multiple + " in all")
                    + ", got " + tokensPerStep);
        }
        if (tokensPerStep / microBatches < context) {
            throw new IllegalArgumentException(
                    one
                            ? "tokensPerStep: expected at least the context, " + context
                                    + ", so that the longest sequence fits; got " + tokensPerStep
                            : "tokensPerStep, microBatches: expected at least the context, " + context
                                    + ", in each micro-batch, so that the longest sequence fits; got " + tokensPerStep
                                    + " tokens in " + microBatches + ", " + tokensPerStep / microBatches + " each");
        }
    }

    /** Returns the most tokens of a micro-batch, padding included: its share of the step's. */
    public int tokensPerMicroBatch() {
        return tokensPerStep / microBatches;
    }

    /** Returns the most sequences that a micro-batch may hold, including those of padding. */
    public int maxSequences() {
        return switch (layout) {
            case PACKED -> tokensPerMicroBatch();
            case PADDED -> tokensPerMicroBatch() / context;
        };
    }
}
