package dev.chagres.witness;

/**
 * Philox4x32-10: four words of 32 bits from a key of 64 and a counter of 128.
 *
 * <p>Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011).
 */
public final class PhiloxWitness {
    private static final long MULTIPLIER_0 = 0xD2511F53L;
    private static final long MULTIPLIER_1 = 0xCD9E8D57L;
    private static final int WEYL_0 = 0x9E3779B9;
    private static final int WEYL_1 = 0xBB67AE85;
    private static final int ROUNDS = 10;

    private PhiloxWitness() {}

    /** Returns word {@code index}, as an unsigned number, of the draw at counter {@code (offset, subsequence 0)}. */
    public static long word(long seed, long offset, int index) {
        return word(seed, 0, offset, index);
    }

    /** Returns word {@code index}, as an unsigned number, of the draw at counter {@code (offset, subsequence)}. */
    public static long word(long seed, long subsequence, long offset, int index) {
        int[] counter = {(int) offset, (int) (offset >>> 32), (int) subsequence, (int) (subsequence >>> 32)};
        return Integer.toUnsignedLong(draw(counter, (int) seed, (int) (seed >>> 32))[index]);
    }

    /** Returns the four words of a counter under a key. */
    static int[] draw(int[] counter, int key0, int key1) {
        int[] words = counter.clone();
        int k0 = key0;
        int k1 = key1;
        for (int round = 0; round < ROUNDS; round++) {
            long product0 = MULTIPLIER_0 * Integer.toUnsignedLong(words[0]);
            long product1 = MULTIPLIER_1 * Integer.toUnsignedLong(words[2]);
            words = new int[] {
                (int) (product1 >>> 32) ^ words[1] ^ k0,
                (int) product1,
                (int) (product0 >>> 32) ^ words[3] ^ k1,
                (int) product0
            };
            k0 += WEYL_0;
            k1 += WEYL_1;
        }
        return words;
    }
}
