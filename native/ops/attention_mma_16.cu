/* Attention on tensor cores with heads of up to 16 columns. */
#include <attention_mma_backward.cuh>
#include <attention_mma_forward.cuh>

#define MMA_KERNELS(T)                                                                                   \
  KERNEL_WITH(kAttentionThreads, 5, attention_mma_forward_##T, const AttentionArguments arguments) {     \
    attention_mma_forward<T, Narrow<16>>(arguments);                                                     \
  }                                                                                                      \
  KERNEL_WITH(kAttentionThreads, 8, attention_mma_dq_##T, const AttentionArguments arguments) {          \
    attention_mma_dq<T, Narrow<16>>(arguments);                                                          \
  }                                                                                                      \
  KERNEL_WITH(kAttentionThreads, 4, attention_mma_dkv_##T, const AttentionArguments arguments) {         \
    attention_mma_dkv<T, Narrow<16>>(arguments);                                                         \
  }

MMA_KERNELS(float16)
MMA_KERNELS(bfloat16)
