package dev.chagres.models.decoder;

/**
 * Sizes of a decoder.
 *
 * <p>Threading: immutable.
 *
 * @param vocabulary V, the number of tokens
 * @param layers number of transformer layers
 * @param hidden hidden size H
 * @param heads query heads
 * @param keyHeads heads of key and value, a divisor of {@code heads}
 * @param headDim columns d of a head; {@code heads * headDim} may differ from H
 * @param inner columns F of gate and up
 * @param context longest sequence in tokens
 */
public record DecoderSizes(
        int vocabulary, int layers, int hidden, int heads, int keyHeads, int headDim, int inner, int context) {
    /** What products in eight bits on several ranks want. */
    private static final int ROWS = 64;

    /**
     * Checks the sizes.
     *
     * @throws IllegalArgumentException when one is not positive, or key heads do not divide the heads
     */
    public DecoderSizes {
        atLeastOne("vocabulary", vocabulary);
        atLeastOne("layers", layers);
        atLeastOne("hidden", hidden);
        atLeastOne("heads", heads);
        atLeastOne("keyHeads", keyHeads);
        atLeastOne("headDim", headDim);
        atLeastOne("inner", inner);
        atLeastOne("context", context);
        if (heads % keyHeads != 0) {
            throw new IllegalArgumentException(
                    "keyHeads: expected a divisor of the " + heads + " heads, got " + keyHeads);
        }
    }

    private static void atLeastOne(String argument, int value) {
        if (value < 1) {
            throw new IllegalArgumentException(argument + ": expected at least 1, got " + value);
        }
    }

    /** Returns the rows of the table, and the columns of the logits: the vocabulary rounded up to a multiple of 64. */
    public int paddedVocabulary() {
        return Math.multiplyExact(Math.ceilDiv(vocabulary, ROWS), ROWS);
    }

    /** Returns the same for sequences of up to {@code newContext} tokens. */
    public DecoderSizes withContext(int newContext) {
        return new DecoderSizes(vocabulary, layers, hidden, heads, keyHeads, headDim, inner, newContext);
    }
}
