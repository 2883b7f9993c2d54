/* Layouts that FlashAttention reads: copies of queries, keys and values, and heads of another width. */
#include <vector>

#include "te/recorded.h"
#include "runtime/reference.h"

namespace chagres::reference {

namespace {

constexpr size_t kHeadDim = 128; /* Transformer Engine moves whole heads of this size */

constexpr std::initializer_list<NVTEDType> kByteDtypes = {
    kNVTEByte,    kNVTEInt16,    kNVTEInt32,      kNVTEInt64,      kNVTEFloat32,
    kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEFloat8E5M2, kNVTEFloat8E8M0};

View heads(NVTETensor handle, const char *argument, const Caller &caller) {
  const View result = view(handle, argument, {kNVTEFloat16, kNVTEBFloat16}, caller);
  if (result.shape.ndim != 4 || result.shape.data[3] != kHeadDim) {
    fail(caller, text("Tensor \"", argument, "\" must have 4 dimensions, the last of ", kHeadDim, ", got ",
                      shape_text(result.shape)));
  }
  return result;
}

/* Copies one head's elements: `from` and `to` count heads of both tensors. */
void copy_head(const View &from, int64_t from_head, const View &to, int64_t to_head) {
  std::memcpy(element(to.data, to_head * static_cast<int64_t>(kHeadDim), to.dtype),
              element(from.data, from_head * static_cast<int64_t>(kHeadDim), from.dtype), kHeadDim * element_size(from.dtype));
}

struct Pair {
  View input, output;
};

std::vector<Pair> read_pairs(const NVTETensor *inputs, const NVTETensor *outputs, size_t count, const Caller &caller) {
  if (count > 0 && (inputs == nullptr || outputs == nullptr)) {
    fail(caller, text("Arguments \"inputs\" and \"outputs\" must be arrays of ", count, ", got NULL"));
  }
  std::vector<Pair> pairs;
  for (size_t i = 0; i < count; ++i) {
    pairs.push_back({view(inputs[i], "inputs", kByteDtypes, caller), view(outputs[i], "outputs", kByteDtypes, caller)});
    expect_dtype(pairs[i].output, "outputs", pairs[i].input.dtype, caller);
  }
  return pairs;
}

/* Copies a row and writes zeros behind it. */
void copy_padded(const View &from, int64_t from_row, int64_t columns, const View &to, int64_t to_row, int64_t to_columns) {
  void *const row = element(to.data, to_row * to_columns, to.dtype);
  const size_t size = element_size(to.dtype), bytes = static_cast<size_t>(columns) * size;
  if (bytes > 0) std::memcpy(row, element(from.data, from_row * columns, from.dtype), bytes);
  std::memset(static_cast<char *>(row) + bytes, 0, static_cast<size_t>(to_columns) * size - bytes);
}

/* Sizes of an output [B, H, S, D] and of the last dimension of its input. */
struct Heads {
  int64_t batch, heads, length, columns, input_columns;
};

Heads check_heads(const Pair &pair, size_t index, NVTE_QKV_Format format, const Caller &caller) {
  const NVTEShape &in = pair.input.shape, &out = pair.output.shape;
  const bool batch_first = format == NVTE_BSHD;
  const bool fits = in.ndim == 4 && out.ndim == 4 && in.data[0] == out.data[batch_first ? 0 : 2] &&
                    in.data[1] == out.data[batch_first ? 2 : 0] && in.data[2] == out.data[1] && in.data[3] <= out.data[3];
  if (!fits) {
    fail(caller, text("Tensor ", index, " of \"outputs\" must be [B, H, S, D] of the ", batch_first ? "[B, S, H, D]" : "[S, B, H, D]",
                      " of \"inputs\", D perhaps larger, got ", shape_text(out), " of ", shape_text(in)));
  }
  return {static_cast<int64_t>(out.data[0]), static_cast<int64_t>(out.data[1]), static_cast<int64_t>(out.data[2]),
          static_cast<int64_t>(out.data[3]), static_cast<int64_t>(in.data[3])};
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

/* qkvi says [S, B, h, 128] and leads to [S, B, h, 3, 128]; qkv is [3, B, S, h, 128]. */
void nvte_prepare_flash_attn_fwd(NVTETensor qkvi, NVTETensor qkv, cudaStream_t stream) {
  if (recorded(nvte_prepare_flash_attn_fwd, qkvi, qkv, stream)) return;
  const Caller caller = Caller::here();
  const View from = heads(qkvi, "qkvi", caller), to = view(qkv, "qkv", {from.dtype}, caller);
  expect_count(to, "qkv", 3 * from.count(), caller);
  expect_memory(from.data, 3 * static_cast<size_t>(from.count()) * element_size(from.dtype), "qkvi", "with keys and values",
                caller);
  const auto length = static_cast<int64_t>(from.shape.data[0]), batch = static_cast<int64_t>(from.shape.data[1]),
             count = static_cast<int64_t>(from.shape.data[2]);
  for (int64_t token = 0; token < length * batch; ++token) {
    const int64_t s = token / batch, b = token % batch;
    for (int64_t head = 0; head < count; ++head) {
      for (int64_t part = 0; part < 3; ++part) {
        copy_head(from, (token * count + head) * 3 + part, to, ((part * batch + b) * length + s) * count + head);
      }
    }
  }
}

/* q, k and v are [B, S, h, 128]; qkv is [S, B, h, 3, 128]. */
void nvte_prepare_flash_attn_bwd(NVTETensor q, NVTETensor k, NVTETensor v, NVTETensor qkv, cudaStream_t stream) {
  if (recorded(nvte_prepare_flash_attn_bwd, q, k, v, qkv, stream)) return;
  const Caller caller = Caller::here();
  const View parts[] = {heads(q, "q", caller), heads(k, "k", caller), heads(v, "v", caller)};
  const View to = view(qkv, "qkv", {parts[0].dtype}, caller);
  expect_same_shape(parts[1], "k", parts[0], "q", caller);
  expect_same_shape(parts[2], "v", parts[0], "q", caller);
  expect_dtype(parts[1], "k", parts[0].dtype, caller);
  expect_dtype(parts[2], "v", parts[0].dtype, caller);
  expect_count(to, "qkv", 3 * parts[0].count(), caller);
  const NVTEShape &shape = parts[0].shape;
  const auto batch = static_cast<int64_t>(shape.data[0]), length = static_cast<int64_t>(shape.data[1]),
             count = static_cast<int64_t>(shape.data[2]);
  for (int64_t token = 0; token < batch * length; ++token) {
    const int64_t b = token / length, s = token % length;
    for (int64_t head = 0; head < count; ++head) {
      for (int64_t part = 0; part < 3; ++part) {
        copy_head(parts[part], token * count + head, to, ((s * batch + b) * count + head) * 3 + part);
      }
    }
  }
}

void nvte_multi_tensor_transpose_to_bhsd(NVTETensor *inputs, NVTETensor *outputs, size_t num_tensors,
                                         NVTE_QKV_Format original_format, cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_transpose_to_bhsd, list(inputs, num_tensors), list(outputs, num_tensors), num_tensors,
               original_format, stream)) return;
  const Caller caller = Caller::here();
  CHAGRES_CHECK(original_format == NVTE_BSHD || original_format == NVTE_SBHD,
                "Argument \"original_format\" must be BSHD or SBHD, got ", static_cast<int>(original_format));
  const std::vector<Pair> pairs = read_pairs(inputs, outputs, num_tensors, caller);
  std::vector<Heads> sizes;
  for (size_t i = 0; i < pairs.size(); ++i) {
    sizes.push_back(check_heads(pairs[i], i, original_format, caller));
    CHAGRES_CHECK(sizes[i].batch == sizes[0].batch && pairs[i].input.dtype == pairs[0].input.dtype, "Tensor ", i,
                  " of \"inputs\" must have the B and the dtype of the first, got ", dtype_name(pairs[i].input.dtype), " ",
                  shape_text(pairs[i].input.shape));
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Heads &n = sizes[i];
    for (int64_t row = 0; row < n.batch * n.heads * n.length; ++row) {
      const int64_t s = row % n.length, head = row / n.length % n.heads, b = row / n.length / n.heads;
      const int64_t token = original_format == NVTE_BSHD ? b * n.length + s : s * n.batch + b;
      copy_padded(pairs[i].input, token * n.heads + head, n.input_columns, pairs[i].output, row, n.columns);
    }
  }
}

void nvte_multi_tensor_pad_last_dim(NVTETensor *inputs, NVTETensor *outputs, size_t num_tensors, cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_pad_last_dim, list(inputs, num_tensors), list(outputs, num_tensors), num_tensors,
               stream)) return;
  const std::vector<Pair> pairs = read_pairs(inputs, outputs, num_tensors, Caller::here());
  for (size_t i = 0; i < pairs.size(); ++i) {
    const View &in = pairs[i].input, &out = pairs[i].output;
    CHAGRES_CHECK(in.shape.ndim == 2 && out.shape.ndim == 2 && out.rows == in.rows && out.columns >= in.columns, "Tensor ", i,
                  " of \"outputs\" must be a matrix with the input's rows and at least its columns, got ",
                  shape_text(out.shape), " of ", shape_text(in.shape));
    const size_t bytes = static_cast<size_t>(out.columns) * element_size(out.dtype);
    CHAGRES_CHECK(out.columns == in.columns || bytes % 4 == 0, "Tensor ", i,
                  " of \"outputs\" must have rows of a multiple of 4 bytes, got ", bytes);
  }
  for (const Pair &pair : pairs) {
    for (int64_t row = 0; row < pair.output.rows; ++row) {
      copy_padded(pair.input, row, pair.input.columns, pair.output, row, pair.output.columns);
    }
  }
}
