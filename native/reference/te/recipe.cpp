/* Scales from amaxes: current scaling (the amax of the tensor itself), and delayed scaling (of a history, whose row 0
 * is the window that casts write to).
 */
#include "te/recorded.h"
#include "te/recipe.h"

#include <algorithm>

#include "te/config.h"
#include "te/multi_tensor.h"
#include "te/quantized.h"

namespace chagres::reference {

namespace {

/* ---- current scaling ---- */

/* A record of one Float32 with data. */
float *cell_of(const Tensor &tensor, NVTETensorParam record, const char *argument, const char *name, const Caller &caller) {
  const NVTEBasicTensor &cell = tensor.record(record);
  if (cell.data_ptr == nullptr || cell.dtype != kNVTEFloat32 || element_count(cell.shape) != 1) {
    fail(caller, text("Tensor \"", argument, "\" must have ", name, " of one Float32, got ", dtype_name(cell.dtype), " ",
                      shape_text(cell.shape), cell.data_ptr == nullptr ? " without data" : ""));
  }
  return static_cast<float *>(cell.data_ptr);
}

void compute_amax(NVTETensor input, NVTETensor output, NVTEQuantizationConfig config, const Caller &caller) {
  const View x = view(input, "input", {}, caller);
  expect_unscaled(input, "input", caller);
  const Tensor &y = tensor(output, "output", caller);
  if (y.scaling_mode != NVTE_DELAYED_TENSOR_SCALING) {
    fail(caller, text("Tensor \"output\" must have scaling mode 0 (one scale), got ", static_cast<int>(y.scaling_mode)));
  }
  float *const amax = cell_of(y, kNVTEAmax, "output", "amax", caller);
  if (y.has(kNVTERowwiseData)) described_quantized(output, "output", caller);
  if (is_noop(quantization_config(config, caller).noop_tensor, caller)) return;
  *amax = pointwise(x.count(), [&](int64_t first, int64_t count) {
    Scratch run(count);
    to_float(run.data(), element(x.data, first, x.dtype), x.dtype, count);
    return largest_magnitude(run.data(), count);
  });
}

/* ---- delayed scaling ---- */

struct DelayedRule {
  bool whole_history; /* "max"; else "most_recent" */
  float largest;      /* the largest FP8 number, less the margin */
};

DelayedRule delayed_rule(const char *algorithm, NVTEDType dtype, float margin, const Caller &caller) {
  const std::string name = algorithm == nullptr ? "NULL" : algorithm;
  if (name != "max" && name != "most_recent") {
    fail(caller, text("Unsupported amax_compute_algo: expected \"max\" or \"most_recent\", got ", name));
  }
  if (!is_fp8(dtype)) {
    fail(caller, text("Argument \"fp8_dtype\" must be Float8E4M3 (7) or Float8E5M2 (8), got ", dtype_name(dtype), " (",
                      static_cast<int>(dtype), ")"));
  }
  return {name == "max", fp8_max(dtype) * std::pow(2.0f, -margin)};
}

/* The new scale; the old one is kept if the amax is 0, infinite or NaN. */
float next_scale(float amax, float scale, float largest) {
  const float next = std::isfinite(amax) && amax > 0 ? largest / amax : scale;
  return std::isinf(next) ? std::numeric_limits<float>::max() : next;
}

View history_view(NVTETensor handle, const char *argument, const Caller &caller) {
  const View history = view(handle, argument, {kNVTEFloat32}, caller);
  if (history.shape.ndim != 2 || history.rows == 0) {
    fail(caller, text("Tensor \"", argument, "\" must have shape (length, scales) with length above 0, got ",
                      shape_text(history.shape)));
  }
  return history;
}

View scale_view(NVTETensor handle, const char *argument, int64_t count, const Caller &caller) {
  const View scale = view(handle, argument, {kNVTEFloat32}, caller);
  expect_count(scale, argument, count, caller);
  return scale;
}

/* Of one column: row i + 1 moves to row i, `last` to the last, 0 to row 0. The largest of all that are not NaN. */
float roll(const float *history, float *updated, int64_t length, int64_t stride, float last) {
  float largest = std::fmax(0.0f, length > 1 ? history[stride] : last);
  for (int64_t i = 1; i < length; ++i) {
    const float amax = i + 1 < length ? history[(i + 1) * stride] : last;
    largest = std::fmax(largest, amax);
    updated[i * stride] = amax;
  }
  updated[0] = 0;
  return largest;
}

float without_subnormals(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_compute_amax(NVTETensor input, NVTETensor output, cudaStream_t stream) {
  if (recorded(nvte_compute_amax, input, output, stream)) return;
  compute_amax(input, output, nullptr, Caller::here());
}

void nvte_compute_amax_with_config(NVTETensor input, NVTETensor output, NVTEQuantizationConfig config, cudaStream_t stream) {
  if (recorded(nvte_compute_amax_with_config, input, output, config, stream)) return;
  compute_amax(input, output, config, Caller::here());
}

void nvte_compute_scale_from_amax(NVTETensor output, NVTEQuantizationConfig config, cudaStream_t stream) {
  if (recorded(nvte_compute_scale_from_amax, output, config, stream)) return;
  const Tensor &y = tensor(output, "output");
  CHAGRES_CHECK(y.scaling_mode == NVTE_DELAYED_TENSOR_SCALING,
                "Tensor \"output\" must have scaling mode 0 (one scale), got ", static_cast<int>(y.scaling_mode));
  CHAGRES_CHECK(is_fp8(y.data().dtype), "Tensor \"output\" must be FP8, got ", dtype_name(y.data().dtype));
  const Caller caller = Caller::here();
  const float *const amax = cell_of(y, kNVTEAmax, "output", "amax", caller);
  float *const scale = cell_of(y, kNVTEScale, "output", "scale", caller);
  CHAGRES_CHECK(config != nullptr, "Argument \"config\" must be a quantization configuration, got NULL");
  const QuantizationConfig values = quantization_config(config);
  if (is_noop(values.noop_tensor, caller)) return;
  *scale = scale_of(*amax, {fp8_max(y.data().dtype), values.force_pow_2_scales != 0, values.amax_epsilon,
                            std::numeric_limits<float>::max()});
}

void nvte_delayed_scaling_recipe_amax_and_scale_update(NVTETensor amax_history, NVTETensor scale,
                                                       NVTETensor updated_amax_history, NVTETensor updated_scale,
                                                       const char *amax_compute_algo, NVTEDType fp8_dtype, float margin,
                                                       cudaStream_t stream) {
  if (recorded(nvte_delayed_scaling_recipe_amax_and_scale_update, amax_history, scale, updated_amax_history,
               updated_scale, amax_compute_algo, fp8_dtype, margin, stream)) return;
  const Caller caller = Caller::here();
  const View history = history_view(amax_history, "amax_history", caller);
  const View scales = scale_view(scale, "scale", history.columns, caller);
  const View updated = history_view(updated_amax_history, "updated_amax_history", caller);
  expect_same_shape(updated, "updated_amax_history", history, "amax_history");
  const View updated_scales = scale_view(updated_scale, "updated_scale", history.columns, caller);
  const DelayedRule rule = delayed_rule(amax_compute_algo, fp8_dtype, margin, caller);
  for (int64_t i = 0; i < history.columns; ++i) {
    const float *column = static_cast<const float *>(history.data) + i;
    const float last = column[0];
    const float largest =
        roll(column, static_cast<float *>(updated.data) + i, history.rows, history.columns, last);
    static_cast<float *>(updated_scales.data)[i] =
        next_scale(rule.whole_history ? largest : last, static_cast<const float *>(scales.data)[i], rule.largest);
  }
}

void nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
    NVTETensor amax_reduction_buffer, std::vector<NVTETensor> amax_histories, std::vector<NVTETensor> scales,
    const char *amax_compute_algo, NVTEDType fp8_dtype, float margin, cudaStream_t stream) {
  if (recorded(nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction, amax_reduction_buffer,
               amax_histories, scales, amax_compute_algo, fp8_dtype, margin, stream)) return;
  const Caller caller = Caller::here();
  const NVTEBasicTensor &buffer = tensor(amax_reduction_buffer, "amax_reduction_buffer").data();
  const auto *reduced = static_cast<const float *>(buffer.data_ptr);
  CHAGRES_CHECK(amax_histories.size() == scales.size(), "Arguments \"amax_histories\" and \"scales\" must be as many, got ",
                amax_histories.size(), " and ", scales.size());
  const DelayedRule rule = delayed_rule(amax_compute_algo, fp8_dtype, margin, caller);
  std::vector<View> histories, scale_views;
  size_t total = 0;
  for (size_t i = 0; i < scales.size(); ++i) {
    histories.push_back(history_view(amax_histories[i], "amax_histories", caller));
    CHAGRES_CHECK(histories[i].rows == histories[0].rows, "Tensors of \"amax_histories\" must have one length: number ", i,
                  " has ", histories[i].rows, ", the first ", histories[0].rows);
    scale_views.push_back(scale_view(scales[i], "scales", histories[i].columns, caller));
    CHAGRES_CHECK(scale_views[i].shape.ndim == 1, "Tensor ", i, " of \"scales\" must have one dimension, got ",
                  shape_text(scale_views[i].shape));
    total += static_cast<size_t>(histories[i].columns);
  }
  CHAGRES_CHECK(reduced == nullptr || (buffer.dtype == kNVTEFloat32 && element_count(buffer.shape) >= total),
                "Tensor \"amax_reduction_buffer\" must have an amax for each of ", total, " scales, Float32, got ",
                dtype_name(buffer.dtype), " ", shape_text(buffer.shape));
  for (size_t i = 0; i < scales.size(); ++i) {
    for (int64_t j = 0; j < histories[i].columns; ++j) {
      float *column = static_cast<float *>(histories[i].data) + j;
      const float reduced_amax = reduced == nullptr ? 0.0f : *reduced++;
      const float last = reduced_amax != 0 ? reduced_amax : column[0];
      /* An idle tensor's history stays as it is, and so does its scale. */
      const float largest = last != 0 ? roll(column, column, histories[i].rows, histories[i].columns, last) : 0.0f;
      float &scale = static_cast<float *>(scale_views[i].data)[j];
      scale = next_scale(rule.whole_history ? largest : last, scale, rule.largest);
    }
  }
}

/* scale and 1 / scale of lists of amaxes. The GPU's kernel has no numbers below the least normal one. */
void nvte_multi_tensor_compute_scale_and_scale_inv_cuda(int chunk_size, NVTETensor noop_flag, NVTETensor **tensor_lists,
                                                        size_t num_tensor_lists, size_t num_tensors_per_list,
                                                        float max_fp8, int force_pow_2_scales, float epsilon,
                                                        cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_compute_scale_and_scale_inv_cuda, chunk_size, noop_flag, TensorLists{tensor_lists,
               num_tensor_lists, num_tensors_per_list}, num_tensor_lists, num_tensors_per_list, max_fp8,
               force_pow_2_scales, epsilon, stream)) return;
  const Caller caller = Caller::here();
  const Lists lists = read_lists({chunk_size, noop_flag, tensor_lists, num_tensor_lists, num_tensors_per_list},
                                 {"amaxes", "scales", "scale_invs"}, caller);
  tensor(noop_flag, "noop_flag"); /* TE's kernel does not look at it */
  for (size_t list = 0; list < 3; ++list) {
    expect_list_dtype(lists[list], list == 0 ? "amaxes" : list == 1 ? "scales" : "scale_invs", kNVTEFloat32, caller);
  }
  const ScaleRule rule{max_fp8, force_pow_2_scales != 0, epsilon, std::numeric_limits<float>::max()};
  for_chunks(lists[0], [&](const Chunk &chunk) {
    Scratch scale(chunk.count), inverse(chunk.count);
    load_chunk(scale.data(), lists[0], chunk);
    for (int64_t i = 0; i < chunk.count; ++i) {
      scale[i] = without_subnormals(scale_of(without_subnormals(scale[i]), rule));
      inverse[i] = without_subnormals(1.0f / scale[i]);
    }
    store_chunk(lists[1], chunk, scale.data());
    store_chunk(lists[2], chunk, inverse.data());
  });
}
