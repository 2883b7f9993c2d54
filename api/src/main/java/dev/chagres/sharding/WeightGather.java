package dev.chagres.sharding;

/**
 * In which memory ranks of {@link FullySharded} gather weights. Results have the same bits.
 *
 * <p>{@code COPY_ENGINE} needs GPUs of one host that can access each other's memory, best over NVLink. If they cannot, or
 * {@code NCCL_WIN_ENABLE=0} is set, weights are gathered as with {@code DEVICE}, and the strategy's {@code toString} and {@code explain}
 * say so.
 *
 * <p>If ranks are processes and one fails, others may wait for it in {@code COPY_ENGINE} gathers until they are ended, as {@link dev.chagres.nccl.CollectiveMemory} says: let a launcher end them. {@link FullySharded#shrink} is then refused. Ranks that are
 * threads go on.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code ncclCommWindowRegister} with {@code NCCL_WIN_COLL_SYMMETRIC}, and {@code NCCL_CTA_POLICY_ZERO}, of {@code nccl.h}.
 */
public enum WeightGather {
    /** In ordinary device memory, through NCCL's buffers. */
    DEVICE,
    /**
     * In {@linkplain dev.chagres.nccl.CollectiveMemory windows} that NCCL has registered, where the layers of all ranks read: the devices'
     * copy engines write there, so gathers take no thread blocks from layers. The memory, for two groups of each size, is allocated before
     * the first step.
     */
    COPY_ENGINE
}
