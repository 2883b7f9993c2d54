package dev.chagres.sharding;

/**
 * How ranks of {@link FullySharded} reduce and scatter gradients.
 *
 * <p>{@code COPY_ENGINE} needs GPUs of one host that can access each other's memory, best over NVLink. If they cannot, or {@code
 * NCCL_WIN_ENABLE=0} is set, gradients are reduced as with {@code REDUCE_SCATTER}, and the strategy's {@code toString} and {@code explain} say
 * so. If ranks are processes and one fails, the same holds as for {@link WeightGather#COPY_ENGINE}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code ncclReduceScatter}; {@code ncclAlltoAll} with {@code NCCL_CTA_POLICY_ZERO}, and {@code ops_row_sum} in {@code ops.h}.
 */
public enum GradientReduction {
    /** By {@code ncclReduceScatter}: NCCL's kernels, which take multiprocessors from layers. With a 16-bit type sums are rounded to it. */
    REDUCE_SCATTER,
    /**
     * Copy engines bring each rank its part of all ranks' gradients, through {@linkplain dev.chagres.nccl.CollectiveMemory windows}; a short
     * kernel adds the parts up in FP32, in the order of the ranks. As many bytes travel, and the sum is rounded only to FP32. It takes memory
     * for the longest group once more, in the type in which gradients travel. Gradients that do not lie in a window are reduced by {@code
     * ncclReduceScatter}: those of FP32 in stages 2 and 3 if more than two groups of a size are written at a time.
     */
    COPY_ENGINE
}
