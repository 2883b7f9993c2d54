/* Pads and unpads the rows of lists of matrices: FP8 products need a multiple of 16 rows. */
#include <vector>

#include "te/recorded.h"
#include "te/quantized.h"

namespace chagres::reference {

namespace {

constexpr std::initializer_list<NVTEDType> kByteDtypes = {
    kNVTEByte,     kNVTEInt16,    kNVTEInt32,       kNVTEInt64,       kNVTEFloat32,
    kNVTEFloat16,  kNVTEBFloat16, kNVTEFloat8E4M3,  kNVTEFloat8E5M2,  kNVTEFloat8E8M0};

struct Pair {
  View input, output;
};

View matrix(NVTETensor handle, const char *argument, const Caller &caller) {
  const View result = view(handle, argument, kByteDtypes, caller);
  const Tensor &found = tensor(handle, argument, caller);
  if (is_fp8(result.dtype) && !found.has(kNVTERowwiseScaleInv)) {
    fail(caller, text("Tensor \"", argument, "\" is FP8, so it must have a rowwise scale_inv"));
  }
  return result;
}

struct Lists {
  size_t count;
  const NVTETensor *inputs, *outputs;
  const int *rows; /* of the outputs */
  const char *rows_name;
};

std::vector<Pair> read_pairs(const Lists &lists, const Caller &caller) {
  if (lists.count > 0 && (lists.inputs == nullptr || lists.outputs == nullptr || lists.rows == nullptr)) {
    fail(caller, text("Arguments \"input_list\", \"output_list\" and \"", lists.rows_name, "\" must be arrays of ",
                      lists.count, ", got NULL"));
  }
  std::vector<Pair> pairs;
  for (size_t i = 0; i < lists.count; ++i) {
    const Pair pair{matrix(lists.inputs[i], "input_list", caller), matrix(lists.outputs[i], "output_list", caller)};
    if (pair.input.shape.ndim != 2) {
      fail(caller, text("Tensor ", i, " of \"input_list\" must have two dimensions, got ", shape_text(pair.input.shape)));
    }
    expect_dtype(pair.input, "input_list", i == 0 ? pair.input.dtype : pairs[0].input.dtype, caller);
    expect_dtype(pair.output, "output_list", pair.input.dtype, caller);
    if (lists.rows[i] < 0 || pair.output.rows != lists.rows[i] || pair.output.columns != pair.input.columns) {
      fail(caller, text("Tensor ", i, " of \"output_list\" must be ", lists.rows[i], " (of \"", lists.rows_name, "\") x ",
                        pair.input.columns, ", got ", shape_text(pair.output.shape)));
    }
    pairs.push_back(pair);
  }
  return pairs;
}

size_t bytes_of(const View &view) { return static_cast<size_t>(view.count()) * element_size(view.dtype); }

void copy(const Pair &pair, size_t bytes) {
  if (bytes > 0) std::memcpy(pair.output.data, pair.input.data, bytes);
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

/* output = input, and zeros in the rows beyond the input's. */
void nvte_multi_padding(size_t num_tensors, const NVTETensor *input_list, NVTETensor *output_list,
                        const int *padded_num_rows_list, cudaStream_t stream) {
  if (recorded(nvte_multi_padding, num_tensors, list(input_list, num_tensors), list(output_list, num_tensors),
               list(padded_num_rows_list, num_tensors), stream)) return;
  const Caller caller = Caller::here();
  const auto pairs = read_pairs({num_tensors, input_list, output_list, padded_num_rows_list, "padded_num_rows_list"}, caller);
  for (const Pair &pair : pairs) {
    CHAGRES_CHECK(pair.output.rows >= pair.input.rows, "Padded rows must be at least the input's ", pair.input.rows, ", got ",
                  pair.output.rows);
  }
  for (const Pair &pair : pairs) {
    const size_t bytes = bytes_of(pair.input), all = bytes_of(pair.output);
    copy(pair, bytes);
    if (all > bytes) std::memset(static_cast<char *>(pair.output.data) + bytes, 0, all - bytes);
  }
}

/* output = the first rows of input. */
void nvte_multi_unpadding(size_t num_tensors, const NVTETensor *input_list, NVTETensor *output_list,
                          const int *unpadded_num_rows_list, cudaStream_t stream) {
  if (recorded(nvte_multi_unpadding, num_tensors, list(input_list, num_tensors), list(output_list, num_tensors),
               list(unpadded_num_rows_list, num_tensors), stream)) return;
  const Caller caller = Caller::here();
  const auto pairs =
      read_pairs({num_tensors, input_list, output_list, unpadded_num_rows_list, "unpadded_num_rows_list"}, caller);
  for (const Pair &pair : pairs) {
    CHAGRES_CHECK(pair.output.rows <= pair.input.rows, "Unpadded rows must be at most the input's ", pair.input.rows,
                  ", got ", pair.output.rows);
  }
  for (const Pair &pair : pairs) copy(pair, bytes_of(pair.output));
}
