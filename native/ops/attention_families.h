/* Attention's kernels: by the widest head, of plain or of modified scores, with tiles of FP32 or on tensor cores. */
#ifndef CHAGRES_OPS_ATTENTION_FAMILIES_H
#define CHAGRES_OPS_ATTENTION_FAMILIES_H

#include <algorithm>

#include "attention_checks.h"
#include "kernel.h"

namespace chagres::ops {
namespace {

constexpr int kAttentionThreads = 128; /* as in attention.cuh; so the next two */
constexpr int kTile = 64;
constexpr int kPad = 4;
constexpr int kMmaRows = 64; /* as in attention_mma.cuh */

constexpr int kDropoutFloats = 7; /* attention_dropout.cuh's Dropout */

/* Bytes of a block's shared memory: `own` matrices of its own rows, a slice of the other side's, the tile, and what
 * dropout draws by. */
constexpr int shared_bytes(int width, int rows, int own) {
  const int slice = std::min(width, 64);
  return static_cast<int>(sizeof(float)) *
         (own * rows * (width + kPad) + kTile * (slice + kPad) + rows * (kTile + kPad) + kDropoutFloats);
}

/* One kernel for each dtype, and the rows that its blocks own. */
struct Family {
  int rows;
  int bytes;
  Kernel kernels[3];

  Kernel &of(int dtype) { return kernels[float_index(dtype)]; }
};

#define ATTENTION_FAMILY(source, name, width, rows, own)       \
  {rows,                                                       \
   shared_bytes(width, rows, own),                             \
   {{source, name "_float32", shared_bytes(width, rows, own)}, \
    {source, name "_float16", shared_bytes(width, rows, own)}, \
    {source, name "_bfloat16", shared_bytes(width, rows, own)}}}

/* The narrowest of the widths that has room for a call's heads. */
template <class AnyWidth, size_t count>
AnyWidth &width_of(AnyWidth (&widths)[count], const OpsAttention &attention) {
  AnyWidth *width = widths;
  while (width->width < std::max(attention.head_dim, attention.value_dim)) ++width;
  return *width;
}

/* Kernels of heads of up to `width` columns; rows as in the .cu file. */
struct Width {
  int width;
  Family forward, dq, dkv;
};

#define ATTENTION_WIDTH(source, width, forward_rows, dq_rows, dkv_rows)   \
  {width,                                                                 \
   ATTENTION_FAMILY(source, "attention_forward", width, forward_rows, 1), \
   ATTENTION_FAMILY(source, "attention_dq", width, dq_rows, 2),           \
   ATTENTION_FAMILY(source, "attention_dkv", width, dkv_rows, 2)}

Width widths[] = {ATTENTION_WIDTH("attention_16.cu", 16, 64, 64, 64),
                  ATTENTION_WIDTH("attention_32.cu", 32, 64, 64, 64),
                  ATTENTION_WIDTH("attention_64.cu", 64, 64, 64, 64),
                  ATTENTION_WIDTH("attention_128.cu", 128, 64, 64, 32),
                  ATTENTION_WIDTH("attention_256.cu", 256, 32, 32, 32)};

/* Kernels with modified scores for heads of up to `width` columns: blocks own 32 rows, for the bias rows of queries. */
struct ChangedWidth : Width {
  Family d_bias;
};

#define CHANGED_WIDTH(source, width) \
  {ATTENTION_WIDTH(source, width, 32, 32, 32), ATTENTION_FAMILY(source, "attention_d_bias", width, 32, 2)}

ChangedWidth changed_widths[] = {CHANGED_WIDTH("attention_scores_64.cu", 64),
                                 CHANGED_WIDTH("attention_scores_128.cu", 128),
                                 CHANGED_WIDTH("attention_scores_256.cu", 256)};

constexpr int kSinkBytes = kAttentionThreads * static_cast<int>(sizeof(float));
Kernel sink_kernel("attention_sinks.cu", "attention_d_sinks", kSinkBytes);

/* Bytes on tensor cores (attention_mma.cuh): four tiles, those of own rows that wide heads keep, and `numbers`. */
constexpr int mma_shared_bytes(int width, int own_tiles, int numbers) {
  const int tiles = width > 64 ? 4 + own_tiles : 4;
  return static_cast<int>(sizeof(float)) * (tiles * kTile * (width / 2 + 4) + numbers);
}

/* One kernel for each dtype of 16 bits. */
struct MmaFamily {
  static constexpr int rows = kMmaRows;
  int bytes;
  Kernel kernels[2];

  Kernel &of(int dtype) { return kernels[float_index(dtype) - 1]; }
};

#define MMA_FAMILY(source, name, bytes) \
  {bytes, {{source, name "_float16", bytes}, {source, name "_bfloat16", bytes}}}

/* Kernels on tensor cores of heads of up to `width` columns. */
struct MmaWidth {
  int width;
  MmaFamily forward, dq, dkv;
};

#define MMA_WIDTH(source, width)                                                      \
  {width, MMA_FAMILY(source, "attention_mma_forward", mma_shared_bytes(width, 0, 0)), \
   MMA_FAMILY(source, "attention_mma_dq", mma_shared_bytes(width, 0, 0)),             \
   MMA_FAMILY(source, "attention_mma_dkv", mma_shared_bytes(width, 1, 4 * kTile))}

MmaWidth mma_widths[] = {MMA_WIDTH("attention_mma_16.cu", 16), MMA_WIDTH("attention_mma_32.cu", 32),
                         MMA_WIDTH("attention_mma_64.cu", 64), MMA_WIDTH("attention_mma_128.cu", 128)};

/* The same with modified scores. */
struct ChangedMmaWidth : MmaWidth {
  MmaFamily d_bias;
};

#define CHANGED_MMA_WIDTH(source, width) \
  {MMA_WIDTH(source, width), MMA_FAMILY(source, "attention_mma_d_bias", mma_shared_bytes(width, 0, 0))}

ChangedMmaWidth changed_mma_widths[] = {CHANGED_MMA_WIDTH("attention_mma_scores_64.cu", 64),
                                        CHANGED_MMA_WIDTH("attention_mma_scores_128.cu", 128)};

}  // namespace
}  // namespace chagres::ops

#endif
