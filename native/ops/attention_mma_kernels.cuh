/* Defines the kernels of heads of up to `width` columns on tensor cores, with the blocks that a multiprocessor must
 * hold. */
#pragma once

#include <attention_mma_backward.cuh>
#include <attention_mma_d_bias.cuh>
#include <attention_mma_forward.cuh>

#define MMA_KERNELS_OF(T, width, kind, forward_blocks, dq_blocks, dkv_blocks)                             \
  KERNEL_WITH(kAttentionThreads, forward_blocks, attention_mma_forward_##T, const AttentionArguments a) { \
    attention_mma_forward<T, Mma<width>, ScoreKind::kind>(a);                                             \
  }                                                                                                       \
  KERNEL_WITH(kAttentionThreads, dq_blocks, attention_mma_dq_##T, const AttentionArguments a) {           \
    attention_mma_dq<T, Mma<width>, ScoreKind::kind>(a);                                                  \
  }                                                                                                       \
  KERNEL_WITH(kAttentionThreads, dkv_blocks, attention_mma_dkv_##T, const AttentionArguments a) {         \
    attention_mma_dkv<T, Mma<width>, ScoreKind::kind>(a);                                                 \
  }

#define MMA_KERNELS(width, forward_blocks, dq_blocks, dkv_blocks)               \
  MMA_KERNELS_OF(float16, width, kPlain, forward_blocks, dq_blocks, dkv_blocks) \
  MMA_KERNELS_OF(bfloat16, width, kPlain, forward_blocks, dq_blocks, dkv_blocks)

#define CHANGED_MMA_KERNELS_OF(T, width, forward_blocks, dq_blocks, dkv_blocks, d_bias_blocks)          \
  MMA_KERNELS_OF(T, width, kChanged, forward_blocks, dq_blocks, dkv_blocks)                             \
  KERNEL_WITH(kAttentionThreads, d_bias_blocks, attention_mma_d_bias_##T, const AttentionArguments a) { \
    attention_mma_d_bias<T, Mma<width>>(a);                                                             \
  }

#define CHANGED_MMA_KERNELS(width, forward_blocks, dq_blocks, dkv_blocks, d_bias_blocks)       \
  CHANGED_MMA_KERNELS_OF(float16, width, forward_blocks, dq_blocks, dkv_blocks, d_bias_blocks) \
  CHANGED_MMA_KERNELS_OF(bfloat16, width, forward_blocks, dq_blocks, dkv_blocks, d_bias_blocks)
