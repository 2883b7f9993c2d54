package dev.chagres.models.data;

/**
 * Pseudo-random numbers that follow from a key alone, so that what is drawn for a sequence does not depend on what was
 * drawn before it; restarts without making an object.
 *
 * <p>Threading: one thread at a time.
 *
 * <p>Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
 */
public final class SplitMix {
    private static final long GOLDEN = 0x9e3779b97f4a7c15L;

    private long state;

    /** Begins the stream of numbers that belongs to {@code key}. */
    void restart(long key) {
        state = mix(key);
    }

    /** Returns the next 64 random bits. */
    long next() {
        state += GOLDEN;
        return mix(state);
    }

    /** Returns a number from 0 to {@code bound - 1}; for bounds below 2^31 its bias is below 2^-32. */
    int next(int bound) {
        return (int) Math.unsignedMultiplyHigh(next(), bound);
    }

    /** Returns the key of what {@code part} of {@code whole} stands for. */
    public static long key(long whole, long part) {
        return mix(mix(whole + GOLDEN) ^ (part * GOLDEN + 1));
    }

    private static long mix(long z) {
        z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
        return z ^ (z >>> 31);
    }
}
