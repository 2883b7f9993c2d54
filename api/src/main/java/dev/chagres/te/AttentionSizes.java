package dev.chagres.te;

/**
 * The sizes of an attention, to ask the library about before there are tensors.
 *
 * <p>Threading: immutable.
 *
 * @param sequences B
 * @param heads of queries and outputs, a multiple of {@code keyHeads}
 * @param keyHeads of keys and values
 * @param headDim size of a head of queries and keys
 * @param valueDim size of a head of values and outputs
 * @param queryLength padded length of queries, or the longest that packed ones may have
 * @param keyLength the same of keys
 * @param queryTokens all tokens of queries
 * @param keyTokens all tokens of keys
 * @param biasSequences first size of the bias: 1 if all sequences share it, else B; 0 without bias
 * @param biasHeads second size of the bias: 1 if all heads share it, else h; 0 without bias
 */
public record AttentionSizes(
        long sequences,
        long heads,
        long keyHeads,
        long headDim,
        long valueDim,
        long queryLength,
        long keyLength,
        long queryTokens,
        long keyTokens,
        long biasSequences,
        long biasHeads) {
    /**
     * Checks that no size is negative.
     *
     * @throws IllegalArgumentException when one is
     */
    public AttentionSizes {
        long least = Math.min(Math.min(Math.min(sequences, heads), Math.min(keyHeads, headDim)), valueDim);
        least = Math.min(Math.min(least, Math.min(queryLength, keyLength)), Math.min(queryTokens, keyTokens));
        least = Math.min(least, Math.min(biasSequences, biasHeads));
        if (least < 0) {
            throw new IllegalArgumentException("sizes: expected no negative size, got " + least);
        }
    }

    /** Queries and keys of the same {@code sequences} of {@code length}, with {@code heads} of {@code headDim} each. */
    public static AttentionSizes of(long sequences, long length, long heads, long headDim) {
        long tokens = sequences * length;
        return new AttentionSizes(sequences, heads, heads, headDim, headDim, length, length, tokens, tokens, 0, 0);
    }

    private AttentionSizes with(
            long keyHead, long valueSize, long keys, long queryCount, long keyCount, long biased, long biasedHeads) {
        return new AttentionSizes(
                sequences,
                heads,
                keyHead,
                headDim,
                valueSize,
                queryLength,
                keys,
                queryCount,
                keyCount,
                biased,
                biasedHeads);
    }

    /** Returns these sizes with {@code newHeads} of keys and values. */
    public AttentionSizes withKeyHeads(long newHeads) {
        return with(newHeads, valueDim, keyLength, queryTokens, keyTokens, biasSequences, biasHeads);
    }

    /** Returns these sizes with heads of values and outputs of another size. */
    public AttentionSizes withValueDim(long newDim) {
        return with(keyHeads, newDim, keyLength, queryTokens, keyTokens, biasSequences, biasHeads);
    }

    /** Returns these sizes with keys and values of another length, {@code tokens} in all. */
    public AttentionSizes withKeys(long length, long tokens) {
        return with(keyHeads, valueDim, length, queryTokens, tokens, biasSequences, biasHeads);
    }

    /** Returns these sizes with {@code tokens} of queries and of keys in all, as packed sequences have them. */
    public AttentionSizes withTokens(long tokens) {
        return with(keyHeads, valueDim, keyLength, tokens, tokens, biasSequences, biasHeads);
    }

    /** Returns these sizes with a bias [{@code newSequences}, {@code newHeads}, S, S']. */
    public AttentionSizes withBias(long newSequences, long newHeads) {
        return with(keyHeads, valueDim, keyLength, queryTokens, keyTokens, newSequences, newHeads);
    }
}
