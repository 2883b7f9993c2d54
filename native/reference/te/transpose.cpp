/* Transposes: elements are moved, not computed, so every dtype of whole bytes is taken. */
#include <algorithm>

#include "te/recorded.h"
#include "te/quantized.h"

namespace chagres::reference {

namespace {

constexpr std::initializer_list<NVTEDType> kByteDtypes = {
    kNVTEByte,     kNVTEInt16,    kNVTEInt32,       kNVTEInt64,       kNVTEFloat32,
    kNVTEFloat16,  kNVTEBFloat16, kNVTEFloat8E4M3,  kNVTEFloat8E5M2,  kNVTEFloat8E8M0};

void transpose(NVTETensor input, NVTETensor output, NVTETensor noop, const Caller &caller) {
  const View x = view(input, "input", kByteDtypes, caller);
  const View y = view(output, "output", kByteDtypes, caller);
  if (x.shape.ndim != 2) fail(caller, text("Tensor \"input\" must have two dimensions, got ", shape_text(x.shape)));
  expect_shape(y, "output", {x.shape.data[1], x.shape.data[0]}, caller);
  expect_dtype(y, "output", x.dtype, caller);
  if (is_noop(noop, caller)) return;
  transpose_elements(x.data, y.data, x.rows, x.columns, element_size(x.dtype));
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_transpose(NVTETensor input, NVTETensor transposed_output, cudaStream_t stream) {
  if (recorded(nvte_transpose, input, transposed_output, stream)) return;
  transpose(input, transposed_output, nullptr, Caller::here());
}

void nvte_transpose_with_noop(NVTETensor input, NVTETensor noop, NVTETensor output, cudaStream_t stream) {
  if (recorded(nvte_transpose_with_noop, input, noop, output, stream)) return;
  tensor(noop, "noop");
  transpose(input, output, noop, Caller::here());
}

/* output[j, i, ...] = input[i, j, ...] */
void nvte_swap_first_dims(NVTETensor input, NVTETensor output, cudaStream_t stream) {
  if (recorded(nvte_swap_first_dims, input, output, stream)) return;
  const View x = view(input, "input", kByteDtypes);
  const View y = view(output, "output", kByteDtypes);
  CHAGRES_CHECK(x.shape.ndim >= 2, "Tensor \"input\" must have at least two dimensions, got ", shape_text(x.shape));
  NVTEShape swapped = x.shape;
  std::swap(swapped.data[0], swapped.data[1]);
  CHAGRES_CHECK(same_shape(y.shape, swapped), "Tensor \"output\" must have shape ", shape_text(swapped), ", got ",
                shape_text(y.shape));
  expect_dtype(y, "output", x.dtype);
  const auto outer = static_cast<int64_t>(x.shape.data[0]), inner = static_cast<int64_t>(x.shape.data[1]);
  if (x.count() == 0) return;
  const size_t bytes = static_cast<size_t>(x.count() / (outer * inner)) * element_size(x.dtype);
  parallel_for(0, inner, grain_for(outer * static_cast<int64_t>(bytes)), [&](int64_t first, int64_t last) {
    for (int64_t j = first; j < last; ++j) {
      for (int64_t i = 0; i < outer; ++i) {
        std::memcpy(static_cast<char *>(y.data) + (j * outer + i) * static_cast<int64_t>(bytes),
                    static_cast<const char *>(x.data) + (i * inner + j) * static_cast<int64_t>(bytes), bytes);
      }
    }
  });
}
