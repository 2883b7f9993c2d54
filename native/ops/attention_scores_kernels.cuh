/* Defines the kernels for modified scores: heads of up to `width` columns, the blocks that a multiprocessor must hold.
 * */
#pragma once

#include <attention_forward.cuh>
#include <attention_scores_backward.cuh>

#define CHANGED_KERNELS_OF(T, width, blocks, dkv_blocks)                                                        \
  KERNEL_WITH(kAttentionThreads, blocks, attention_forward_##T, const AttentionArguments arguments) {           \
    attention_forward<T, Sizes<width, 32>, ScoreKind::kChanged>(arguments);                                     \
  }                                                                                                             \
  KERNEL_WITH(kAttentionThreads, blocks, attention_dq_##T, const AttentionArguments arguments) {                \
    attention_dq<T, Sizes<width, 32>, ScoreKind::kChanged>(arguments);                                          \
  }                                                                                                             \
  KERNEL_WITH(kAttentionThreads, dkv_blocks, attention_dkv_##T, const AttentionArguments arguments) {           \
    attention_dkv<T, Sizes<width, 32>, ScoreKind::kChanged>(arguments);                                         \
  }                                                                                                             \
  KERNEL_WITH(kAttentionThreads, blocks, attention_d_bias_##T, const AttentionArguments arguments) {            \
    attention_d_bias<T, Sizes<width, 32>>(arguments);                                                           \
  }

#define CHANGED_KERNELS(width, blocks, dkv_blocks)         \
  CHANGED_KERNELS_OF(float32, width, blocks, dkv_blocks)   \
  CHANGED_KERNELS_OF(float16, width, blocks, dkv_blocks)   \
  CHANGED_KERNELS_OF(bfloat16, width, blocks, dkv_blocks)
