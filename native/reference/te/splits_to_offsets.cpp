/* The offsets of splits: cumulative sums of sizes, times a stride. */
#include <vector>

#include "te/recorded.h"
#include "runtime/reference.h"

namespace chagres::reference {

namespace {

constexpr std::initializer_list<NVTEDType> kIntegers = {kNVTEInt32, kNVTEInt64};

int64_t load_integer(const View &view, int64_t i) {
  return view.dtype == kNVTEInt32 ? static_cast<const int32_t *>(view.data)[i] : static_cast<const int64_t *>(view.data)[i];
}

void store_integer(const View &view, int64_t i, uint64_t value) {
  if (view.dtype == kNVTEInt32) {
    static_cast<int32_t *>(view.data)[i] = static_cast<int32_t>(static_cast<uint32_t>(value));
  } else {
    static_cast<int64_t *>(view.data)[i] = static_cast<int64_t>(value);
  }
}

/* Lengths of parts, at least one. */
View lengths(NVTETensor handle, const char *argument, const Caller &caller) {
  const View result = view(handle, argument, kIntegers, caller);
  if (result.shape.ndim != 1 || result.count() == 0) {
    fail(caller, text("Tensor \"", argument, "\" must have one dimension and elements, got ", shape_text(result.shape)));
  }
  return result;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

/* output[0] = 0, output[i + 1] = stride * (split_sizes[0] + ... + split_sizes[i]); sums wrap as the GPU's do. */
void nvte_splits_to_offsets(const int64_t *split_sizes, int64_t *output, size_t num_splits, int64_t stride,
                            cudaStream_t stream) {
  if (recorded(nvte_splits_to_offsets, split_sizes, output, num_splits, stride, stream)) return;
  CHAGRES_CHECK(num_splits > 0, "Argument \"num_splits\" must be above 0, got 0");
  CHAGRES_CHECK(stride > 0, "Argument \"stride\" must be above 0, got ", stride);
  CHAGRES_CHECK(num_splits < (size_t{1} << 48), "Argument \"num_splits\" is too large: ", num_splits);
  expect_memory(split_sizes, num_splits * sizeof(int64_t), "split_sizes");
  expect_memory(output, (num_splits + 1) * sizeof(int64_t), "output");
  uint64_t sum = 0;
  output[0] = 0;
  for (size_t i = 0; i < num_splits; ++i) {
    sum += static_cast<uint64_t>(split_sizes[i]);
    output[i + 1] = static_cast<int64_t>(sum * static_cast<uint64_t>(stride));
  }
}

/* output[0] = 0, output[i + 1] = output[i] + first_dims[i] * last_dims[i] */
void nvte_splits_to_offsets_2d(NVTETensor first_dims, NVTETensor last_dims, NVTETensor output, cudaStream_t stream) {
  if (recorded(nvte_splits_to_offsets_2d, first_dims, last_dims, output, stream)) return;
  const Caller caller = Caller::here();
  const View first = lengths(first_dims, "first_dims", caller), last = lengths(last_dims, "last_dims", caller);
  expect_same_shape(last, "last_dims", first, "first_dims");
  const View y = view(output, "output", kIntegers);
  expect_shape(y, "output", {static_cast<size_t>(first.count()) + 1});
  uint64_t sum = 0;
  store_integer(y, 0, 0);
  for (int64_t i = 0; i < first.count(); ++i) {
    sum += static_cast<uint64_t>(load_integer(first, i)) * static_cast<uint64_t>(load_integer(last, i));
    store_integer(y, i + 1, sum);
  }
}

/* The first form for several outputs, each with its stride, with or without the leading zero. */
void nvte_splits_to_offsets_multi(NVTETensor split_sizes, NVTETensor *outputs, const int64_t *strides,
                                  const int *include_leading_zero, size_t num_outputs, cudaStream_t stream) {
  if (recorded(nvte_splits_to_offsets_multi, split_sizes, list(outputs, num_outputs), list(strides, num_outputs),
               list(include_leading_zero, num_outputs), num_outputs, stream)) return;
  if (num_outputs == 0) return;
  const Caller caller = Caller::here();
  CHAGRES_CHECK(outputs != nullptr && strides != nullptr && include_leading_zero != nullptr,
                "Arguments \"outputs\", \"strides\" and \"include_leading_zero\" must be arrays of ", num_outputs, ", got NULL");
  const View sizes = lengths(split_sizes, "split_sizes", caller);
  std::vector<View> views;
  for (size_t i = 0; i < num_outputs; ++i) {
    views.push_back(view(outputs[i], "outputs", kIntegers));
    expect_shape(views[i], "outputs", {static_cast<size_t>(sizes.count()) + (include_leading_zero[i] != 0 ? 1 : 0)});
  }
  for (size_t i = 0; i < num_outputs; ++i) {
    const int64_t zeros = include_leading_zero[i] != 0 ? 1 : 0;
    if (zeros == 1) store_integer(views[i], 0, 0);
    uint64_t sum = 0;
    for (int64_t j = 0; j < sizes.count(); ++j) {
      sum += static_cast<uint64_t>(load_integer(sizes, j));
      store_integer(views[i], j + zeros, sum * static_cast<uint64_t>(strides[i]));
    }
  }
}
