package dev.chagres;

/**
 * How many of a device's streaming multiprocessors norms and products leave to kernels that run beside them, such as those of
 * collectives on another stream (SM margin).
 *
 * <p>Kernels of norms are as many blocks as the multiprocessors run at once, and each block goes on with row after row. Where
 * NCCL's kernels, a block for each of their channels, hold some multiprocessors, those of the norm's blocks that find no place wait until the others are
 * done, and the norm takes twice as long. With a margin of at least NCCL's blocks all have a place. Without a collective beside it
 * a norm has that many multiprocessors less. CUDA spreads the fewer blocks over all multiprocessors, so that none stays empty for a collective that
 * begins later. A margin for products has cuBLASLt choose and launch kernels for fewer multiprocessors.
 *
 * <p>Results: a margin for norms changes the order in which a GPU adds up the gradients of gamma and beta, nothing else; one for products
 * may choose another kernel. The reference computes the same bits with every margin.
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

    void requireBelow(Device device) {
        requireBelow("norms", norms, device);
        requireBelow("products", products, device);
    }

    private static void requireNotNegative(String name, int margin) {
        if (margin < 0) {
            throw new IllegalArgumentException(
                    name + ": expected a margin of at least 0 multiprocessors, got " + margin);
        }
    }

    private static void requireBelow(String name, int margin, Device device) {
        int most = device.multiprocessorCount() - 1;
        if (margin > most) {
            throw new IllegalArgumentException(name + ": expected a margin from 0 to " + most + ", for " + device
                    + " has " + (most + 1) + " multiprocessors, got " + margin);
        }
    }
}
