/* Defines a kernel: `rows` of a block, heads of up to `width` columns, the blocks that a multiprocessor must hold. */
#pragma once

#include <attention_backward.cuh>
#include <attention_forward.cuh>

#define ATTENTION_KERNEL(name, function, T, width, rows, blocks)                       \
  KERNEL_WITH(kAttentionThreads, blocks, name, const AttentionArguments arguments) {   \
    function<T, Sizes<width, rows>>(arguments);                                        \
  }
