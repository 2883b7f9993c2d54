package dev.chagres.samples.data;

/**
 * The most that a batch may hold.
 *
 * <p>Threading: immutable.
 *
 * @param layout how sequences lie in the batch
 * @param tokensPerStep the most tokens of a batch, padding included: a multiple of {@link #TOKEN_MULTIPLE}
 * @param context the most tokens of a sequence, its first and last one ({@code <cls>}, {@code <eos>}) included
 */
public record BatchShape(BatchLayout layout, int tokensPerStep, int context) {
    /** Token counts are multiples of this: FP8 products take no others. */
    public static final int TOKEN_MULTIPLE = 16;

    private static final int SHORTEST = 3;

    /**
     * Checks the sizes.
     *
     * @throws IllegalArgumentException when a size is too small, or a token count would be no multiple of
     *     {@link #TOKEN_MULTIPLE}
     */
    public BatchShape {
        if (context < SHORTEST) {
            throw new IllegalArgumentException(
                    "context: expected at least 3 (<cls>, one residue, <eos>), got " + context);
        }
        if (tokensPerStep < 1 || tokensPerStep % TOKEN_MULTIPLE != 0) {
            throw new IllegalArgumentException(
                    "tokensPerStep: expected a positive multiple of " + TOKEN_MULTIPLE + ", got " + tokensPerStep);
        }
        if (tokensPerStep < context) {
            throw new IllegalArgumentException("tokensPerStep: expected at least the context, " + context
                    + ", so that the longest sequence fits; got " + tokensPerStep);
        }
        if (layout == BatchLayout.PADDED && context % TOKEN_MULTIPLE != 0) {
            throw new IllegalArgumentException(
                    "context: expected a multiple of " + TOKEN_MULTIPLE + " without packing, got " + context);
        }
    }

    /** Returns the most sequences that a batch may hold, the dummy one included. */
    public int maxSequences() {
        return switch (layout) {
            case PACKED -> tokensPerStep / SHORTEST + 1;
            case PADDED -> tokensPerStep / context;
        };
    }
}
