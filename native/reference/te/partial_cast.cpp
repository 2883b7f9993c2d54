/*
 * Block scaled quantization of a shard: elements start_offset .. start_offset + count - 1 of an [h, w] matrix, with the
 * amax and the scale of each 128 x 128 block somewhere in a strided array.
 */
#include <algorithm>

#include "te/recorded.h"
#include "te/block_scaling.h"
#include "te/quantized.h"

namespace chagres::reference {

namespace {

struct Shard {
  View x;
  int64_t h, w, start;
};

struct BlockArray {
  float *data;
  size_t stride_h, stride_w;
  float &at(int64_t row, int64_t column) const {
    return data[static_cast<size_t>(row) * stride_h + static_cast<size_t>(column) * stride_w];
  }
};

Shard read_shard(NVTETensor input, size_t h, size_t w, size_t start_offset, size_t block_len, const Caller &caller) {
  if (block_len != static_cast<size_t>(kBlock)) {
    fail(caller, text("Currently only block_len = 128 is supported, got ", block_len));
  }
  const View x = view(input, "inp", {}, caller);
  constexpr size_t kMost = size_t{1} << 60;
  if (h == 0 || w == 0 || h > kMost / w) {
    fail(caller, text("Arguments \"h\" and \"w\" must be above 0, and their product below 2^60, got ", h, " and ", w));
  }
  const auto count = static_cast<size_t>(x.count());
  if (start_offset >= h * w || count > h * w - start_offset) {
    fail(caller, text("Tensor \"inp\" does not lie within h x w = ", h * w, " elements: it has ", count, " from ",
                      start_offset, " on"));
  }
  return {x, static_cast<int64_t>(h), static_cast<int64_t>(w), static_cast<int64_t>(start_offset)};
}

BlockArray read_blocks(NVTETensor handle, const char *argument, const Shard &shard, size_t stride_h, size_t stride_w,
                       const Caller &caller) {
  const View blocks = view(handle, argument, {kNVTEFloat32}, caller);
  const auto down = static_cast<size_t>(blocks_of(shard.h)) - 1, across = static_cast<size_t>(blocks_of(shard.w)) - 1;
  const auto count = static_cast<size_t>(blocks.count());
  const bool fits = count > 0 && (down == 0 || stride_h <= (count - 1) / down) &&
                    (across == 0 || stride_w <= (count - 1) / across) && down * stride_h + across * stride_w < count;
  if (!fits) {
    fail(caller, text("Tensor \"", argument, "\" must have a value for each of ", down + 1, " x ", across + 1,
                      " blocks at strides ", stride_h, " and ", stride_w, ", got ", count, " elements"));
  }
  return {static_cast<float *>(blocks.data), stride_h, stride_w};
}

/* Calls run(row block, column block, first element of the shard, count) for its runs within blocks of 128 columns. */
template <class Run>
void for_runs(const Shard &shard, Run &&run) {
  const int64_t end = shard.start + shard.x.count();
  for (int64_t i = shard.start; i < end;) {
    const int64_t row = i / shard.w, column = i % shard.w;
    const int64_t next = std::min({end, i - column + shard.w, i - column + (column / kBlock + 1) * kBlock});
    run(row / kBlock, column / kBlock, i - shard.start, next - i);
    i = next;
  }
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

/* amax of each block's elements in the shard; 0 where it has none. */
void nvte_fp8_block_scaling_compute_partial_amax(NVTETensor inp, NVTETensor amax, size_t h, size_t w,
                                                 size_t amax_stride_h, size_t amax_stride_w, size_t start_offset,
                                                 size_t block_len, cudaStream_t stream) {
  if (recorded(nvte_fp8_block_scaling_compute_partial_amax, inp, amax, h, w, amax_stride_h, amax_stride_w,
               start_offset, block_len, stream)) return;
  const Caller caller = Caller::here();
  const Shard shard = read_shard(inp, h, w, start_offset, block_len, caller);
  const BlockArray blocks = read_blocks(amax, "amax", shard, amax_stride_h, amax_stride_w, caller);
  for (int64_t i = 0; i < blocks_of(shard.h); ++i) {
    for (int64_t j = 0; j < blocks_of(shard.w); ++j) blocks.at(i, j) = 0;
  }
  Scratch run(kBlock);
  for_runs(shard, [&](int64_t row, int64_t column, int64_t first, int64_t count) {
    to_float(run.data(), element(shard.x.data, first, shard.x.dtype), shard.x.dtype, count);
    float &cell = blocks.at(row, column);
    cell = std::max(cell, largest_magnitude(run.data(), count));
  });
}

/* out = inp times its block's scale. The GPU's kernel also writes around the shard, which a gather then overwrites. */
void nvte_fp8_block_scaling_partial_cast(NVTETensor inp, NVTETensor out, NVTETensor scale, size_t h, size_t w,
                                         size_t scale_stride_h, size_t scale_stride_w, size_t start_offset,
                                         size_t block_len, NVTEDType out_dtype, cudaStream_t stream) {
  if (recorded(nvte_fp8_block_scaling_partial_cast, inp, out, scale, h, w, scale_stride_h, scale_stride_w,
               start_offset, block_len, out_dtype, stream)) return;
  const Caller caller = Caller::here();
  const Shard shard = read_shard(inp, h, w, start_offset, block_len, caller);
  CHAGRES_CHECK(is_fp8(out_dtype), "Argument \"out_dtype\" must be Float8E4M3 (7) or Float8E5M2 (8), got ",
                dtype_name(out_dtype), " (", static_cast<int>(out_dtype), ")");
  const View y = view(out, "out", {kNVTEByte, kNVTEFloat8E4M3, kNVTEFloat8E5M2});
  expect_count(y, "out", shard.x.count());
  const BlockArray blocks = read_blocks(scale, "scale", shard, scale_stride_h, scale_stride_w, caller);
  Scratch run(kBlock);
  for_runs(shard, [&](int64_t row, int64_t column, int64_t first, int64_t count) {
    to_float(run.data(), element(shard.x.data, first, shard.x.dtype), shard.x.dtype, count);
    rescale(run.data(), blocks.at(row, column), count);
    from_float(static_cast<uint8_t *>(y.data) + first, run.data(), out_dtype, count);
  });
}
