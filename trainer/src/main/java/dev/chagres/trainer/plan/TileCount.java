package dev.chagres.trainer.plan;

/**
 * What a product loses to tiles and waves: a kernel computes whole tiles of its result, and all multiprocessors take one tile each at a time, so
 * the last tiles of a row, of a column and of a wave may be empty.
 *
 * <pre>
 *   time = waves x area / speed,   waves = ceil(ceil(m / tm) ceil(n / tn) splits / multiprocessors)
 * </pre>
 *
 * of the tile with the least time. Smaller tiles are slower, since they read more for each operation. Where tiles are fewer than multiprocessors
 * the inner dimension is split.
 *
 * <p>Threading: immutable.
 *
 * @param multiprocessors of the GPU
 * @param bits of the factors: 16 or 8
 */
record TileCount(int multiprocessors, int bits) {
    /** Rows, columns, and the share of the peak that kernels of such tiles reach beside those of the largest. */
    private static final double[][] TILES = {
        {128, 256, 1},
        {256, 128, 1},
        {192, 128, 0.97},
        {128, 192, 0.97},
        {128, 128, 0.93},
        {64, 256, 0.85},
        {64, 128, 0.75},
        {64, 64, 0.55}
    };
    /** Elements of the inner dimension that a tile takes at a time. */
    private static final int STEP_BYTES = 128;

    private static final int MOST_SPLITS = 8;

    /** Returns the alignment that products want of every dimension: 16 bytes. */
    int alignment() {
        return bits == 8 ? 16 : 8;
    }

    /** Returns the share of the multiprocessors' work that counts, of a product [m, k] by [k, n]. */
    double efficiency(long m, long n, long k) {
        double least = Double.POSITIVE_INFINITY;
        long stepElements = STEP_BYTES * 8L / bits;
        double inner = Math.ceilDiv(k, stepElements) * (double) stepElements;
        for (double[] tile : TILES) {
            long tiles = Math.ceilDiv(m, (long) tile[0]) * Math.ceilDiv(n, (long) tile[1]);
            for (int splits = 1; splits <= MOST_SPLITS; splits *= 2) {
                if (splits > 1 && (tiles * splits > 2L * multiprocessors || k / splits < 8 * stepElements)) {
                    break;
                }
                double waves = Math.ceilDiv(tiles * splits, multiprocessors);
                // A split writes its sums, and another kernel adds them up.
                double cost = waves * tile[0] * tile[1] * inner / splits / tile[2] * (splits == 1 ? 1 : 1.05);
                least = Math.min(least, cost);
            }
        }
        return (double) m * n * k / (least * multiprocessors);
    }
}
