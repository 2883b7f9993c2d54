package dev.chagres;

/**
 * How many of a device's streaming multiprocessors norms and products leave to kernels that run at the same time (TE: SM margin).
 *
 * <p>A norm's kernel has as many blocks as the multiprocessors run at once, and each block computes row after row. NCCL's kernels occupy
 * some multiprocessors for as long as a collective on another stream lasts. Blocks of the norm that do not fit then run when the others are
 * done, and the norm takes up to twice as long. With a margin of as many multiprocessors as NCCL has blocks, all blocks run at once. When
 * no collective runs, a margin costs time. It does not reserve multiprocessors: CUDA spreads the fewer blocks over all of them. With a
 * margin for products, cuBLASLt chooses and launches kernels for fewer multiprocessors.
 *
 * <p>On a GPU the order in which the gradients of gamma and beta are added up depends on the margin for norms, and which kernel
 * computes a product may depend on the one for products: results differ by rounding. The reference gives the same bits with every margin.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTE_FWD_LAYERNORM_SM_MARGIN}, {@code NVTE_BWD_LAYERNORM_SM_MARGIN} and {@code NVTE_EXT_MARGIN_SM} of TE's
 * PyTorch modules; {@code multiprocessorCount} of {@code normalization.h}, {@code kNVTEMatmulConfigSMCount} of {@code gemm.h}.
 *
 * @param norms multiprocessors that {@link dev.chagres.ops.ResidualNorm} and {@link dev.chagres.te.Normalization} leave
 * @param products multiprocessors that {@link dev.chagres.ops.MatrixProduct} and {@link dev.chagres.te.Gemm} leave
 */
public record MultiprocessorMargin(int norms, int products) {
    /** Kernels fill all multiprocessors. */
    public static final MultiprocessorMargin NONE = new MultiprocessorMargin(0, 0);

    /**
     * Checks what does not depend on a device.
     *
     * @throws IllegalArgumentException when a margin is below 0
     */
    public MultiprocessorMargin {
        requireNotNegative("norms", norms);
        requireNotNegative("products", products);
    }

    /**
     * Returns this with another margin for norms.
     *
     * @throws IllegalArgumentException when it is below 0
     */
    public MultiprocessorMargin withNorms(int margin) {
        return new MultiprocessorMargin(margin, products);
    }

    /**
     * Returns this with another margin for products.
     *
     * @throws IllegalArgumentException when it is below 0
     */
    public MultiprocessorMargin withProducts(int margin) {
        return new MultiprocessorMargin(norms, margin);
    }

    /** Norms need one multiprocessor. Products need two: with one cuBLASLt 13.0 divides by zero, which would end the program. */
    void requireBelow(Device device) {
        requireAtMost("norms", norms, device.multiprocessorCount() - 1, device);
        requireAtMost("products", products, device.multiprocessorCount() - 2, device);
    }

    private static void requireNotNegative(String name, int margin) {
        if (margin < 0) {
            throw new IllegalArgumentException(
                    name + ": expected a margin of at least 0 multiprocessors, got " + margin);
        }
    }

    private static void requireAtMost(String name, int margin, int most, Device device) {
        if (margin > most) {
            throw new IllegalArgumentException(name + ": expected a margin from 0 to " + most + ", for " + device
                    + " has " + device.multiprocessorCount() + " multiprocessors, got " + margin);
        }
    }
}
