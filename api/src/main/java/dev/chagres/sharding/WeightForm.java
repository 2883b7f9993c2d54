package dev.chagres.sharding;

/**
 * How weights that ranks share out are gathered.
 *
 * <p>Threading: immutable.
 */
enum WeightForm {
    /** In the types that they are kept in. */
    WHOLE,
    /** Those of products in eight bits, the others as they are kept. */
    EIGHT_BITS;

    private static final WeightForm[] ALL = values();
    static final int COUNT = ALL.length;

    static WeightForm of(int ordinal) {
        return ALL[ordinal];
    }
}
