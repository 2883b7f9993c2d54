package dev.chagres.te;

/**
 * Which kernels compute the norms of {@link Normalization}: see {@link NormSwitches}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTE_Norm_Backend} in TE.
 */
public enum NormBackend {
    /** Transformer Engine's own. */
    TE,
    /** Those of graphs that Transformer Engine builds with cuDNN. */
    CUDNN
}
