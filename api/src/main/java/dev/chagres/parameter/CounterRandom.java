package dev.chagres.parameter;

import dev.chagres.internal.Checks;

/**
 * Counter-based random numbers: the number of an element is a function of a key and the element's index alone.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: the mixing function of SplittableRandom (Steele, Lea and Flood, Fast splittable pseudorandom number
 * generators, 2014); Box and Muller, A note on the generation of random normal deviates (1958).
 */
public final class CounterRandom {
    private static final long GOLDEN = 0x9E3779B97F4A7C15L;
    private static final double UNIT = 0x1p-53;
    /** Bounds what the logarithm, its root, the cosine and two products differ by: six units in the last place of a double. */
    private static final double APART = 0x1p-48;

    private CounterRandom() {}

    /** Returns the key of the parameter called {@code name} under {@code seed}. */
    public static long key(long seed, String name) {
        Checks.given("name", name);
        long key = mix(seed + GOLDEN);
        for (int i = 0; i < name.length(); i++) {
            key = mix(key ^ (name.charAt(i) + GOLDEN));
        }
        return key;
    }

    /** Returns 64 random bits of {@code key} and {@code counter}. */
    public static long bits(long key, long counter) {
        return mix(mix(key + counter * GOLDEN) ^ key);
    }

    /** Returns a uniform number from 0 to below 1. */
    public static double uniform(long key, long element) {
        return (bits(key, element) >>> 11) * UNIT;
    }

    /**
     * Returns a normal number with mean 0 and standard deviation 1: elements 2 i and 2 i + 1 are the cosine and the sine of one pair of
     * {@code sqrt(-2 ln u) (cos 2 pi v, sin 2 pi v)}.
     */
    public static double normal(long key, long element) {
        double angle = angle(key, element);
        return Math.sqrt(-2 * StrictMath.log(part(key, element)))
                * ((element & 1) == 0 ? StrictMath.cos(angle) : StrictMath.sin(angle));
    }

    /**
     * {@code (float) (factor * normal(key, element))} by the processor's own logarithm, cosine and sine, which differ from those of
     * StrictMath by at most two units in the last place. Where that could change the float, StrictMath computes it.
     *
     * <p>Both elements of a pair have its radius and angle, which are computed once if one follows the other.
     *
     * <p>Threading: for one thread.
     */
    static final class Normals {
        private final float factor;
        private final long key;
        /** The even number of it, or -1 before the first. */
        private long pair = -1;

        private double radius;
        private double angle;

        Normals(float factor, long key) {
            this.factor = factor;
            this.key = key;
        }

        float value(long element) {
            if ((element & ~1L) != pair) {
                pair = element & ~1L;
                radius = Math.sqrt(-2 * Math.log(part(key, element)));
                angle = angle(key, element);
            }
            double near = factor * (radius * ((element & 1) == 0 ? Math.cos(angle) : Math.sin(angle)));
            double apart = Math.abs(near) * APART;
            float low = (float) (near - apart);
            return low == (float) (near + apart) ? low : (float) (factor * normal(key, element));
        }
    }

    /** The radius's u: above 0, at most 1. */
    private static double part(long key, long element) {
        return ((bits(key, element & ~1L) >>> 11) + 1) * UNIT;
    }

    private static double angle(long key, long element) {
        return 2 * Math.PI * ((bits(key, element | 1) >>> 11) * UNIT);
    }

    private static long mix(long z) {
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }
}
