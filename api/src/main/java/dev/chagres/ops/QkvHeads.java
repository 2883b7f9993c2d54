package dev.chagres.ops;

import dev.chagres.internal.Numbers;

/**
 * The heads of a buffer [T, (h + 2 g) d], whose rows hold h heads of the query, then g of the key, then g of the value.
 *
 * <p>Threading: immutable.
 *
 * @param heads h of the query, from 1 to 65,535
 * @param keyHeads g of key and value, from 0 to 65,535; 0: the buffer holds queries alone
 * @param headDim size d of a head, even, from 2 to 8,192
 */
public record QkvHeads(int heads, int keyHeads, int headDim) {
    private static final int MOST_HEADS = 65_535;
    private static final int MOST_HEAD_DIM = 8192;

    /**
     * Checks the sizes.
     *
     * @throws IllegalArgumentException when one is out of its range
     */
    public QkvHeads {
        Numbers.within("heads", heads, 1, MOST_HEADS);
        if (keyHeads < 0 || keyHeads > MOST_HEADS) {
            throw new IllegalArgumentException("keyHeads: expected 0 to " + MOST_HEADS + ", got " + keyHeads);
        }
        if (headDim < 2 || headDim > MOST_HEAD_DIM || headDim % 2 != 0) {
            throw new IllegalArgumentException(
                    "headDim: expected an even number from 2 to " + MOST_HEAD_DIM + ", got " + headDim);
        }
    }

    /** Returns the columns (h + 2 g) d of the buffer. */
    public long columns() {
        return (heads + 2L * keyHeads) * headDim;
    }
}
