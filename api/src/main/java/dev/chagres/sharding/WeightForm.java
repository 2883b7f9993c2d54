package dev.chagres.sharding;

/** In which form sharded weights are gathered.
 *
 * <p>Threading: immutable.
 */
enum WeightForm {
    /** In the types that they are kept in. */
    UNSHARDED,
    /** Those of products in eight bits, the others as they are kept. */
    QUANTIZED;

    private static final WeightForm[] ALL = values();
    static final int COUNT = ALL.length;

    static WeightForm of(int ordinal) {
        return ALL[ordinal];
    }
}
