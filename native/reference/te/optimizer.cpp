/* Optimizers over lists of tensors. Mode 0 of Adam adds decay p to the gradient, mode 1 to the update. */
#include <cmath>

#include "runtime/adam.h"
#include "runtime/fp8.h"
#include "te/recorded.h"
#include "te/multi_tensor.h"

namespace chagres::reference {

namespace {

CHAGRES_CLONES void scale_run(float *values, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= scale;
}

AdamStep make_step(float beta1, float beta2, float epsilon, float decay, int mode, const Caller &caller) {
  if (mode != 0 && mode != 1) {
    fail(caller, text("Argument \"mode\" must be 0 (L2) or 1 (decoupled weight decay), got ", mode));
  }
  AdamStep step{};
  step.beta1 = beta1;
  step.beta2 = beta2;
  step.epsilon = epsilon;
  step.decay = decay;
  step.decoupled = mode == 1;
  return step;
}

/* lists: g, p, m, v and, with master weights, p_master, which are read instead of p. inv_scale multiplies the gradients,
 * which are stored back, when `unscale` is set. */
void adam(const Lists &lists, const AdamStep &step, bool unscale, float inv_scale) {
  const bool master = lists.size() == 5;
  for_chunks(lists[0], [&](const Chunk &chunk) {
    Scratch g(chunk.count), p(chunk.count), m(chunk.count), v(chunk.count);
    load_chunk(g.data(), lists[0], chunk);
    if (unscale) {
      scale_run(g.data(), inv_scale, chunk.count);
      store_chunk(lists[0], chunk, g.data());
    }
    load_chunk(p.data(), lists[master ? 4 : 1], chunk);
    load_chunk(m.data(), lists[2], chunk);
    load_chunk(v.data(), lists[3], chunk);
    adam_run(g.data(), p.data(), m.data(), v.data(), step, chunk.count);
    store_chunk(lists[1], chunk, p.data());
    store_chunk(lists[2], chunk, m.data());
    store_chunk(lists[3], chunk, v.data());
    if (master) store_chunk(lists[4], chunk, p.data());
  });
}

Lists read_adam_lists(const ListArguments &arguments, bool master, const Caller &caller) {
  Lists lists = master ? read_lists(arguments, {"g", "p", "m", "v", "p_master"}, caller)
                       : read_lists(arguments, {"g", "p", "m", "v"}, caller);
  if (lists[0].empty()) return lists;
  expect_list_dtype(lists[0], "g", lists[0][0].dtype, caller);
  expect_list_dtype(lists[1], "p", lists[1][0].dtype, caller);
  expect_moments(lists[2], lists[3], caller);
  if (master) expect_list_dtype(lists[4], "p_master", kNVTEFloat32, caller);
  return lists;
}

struct Capturable {
  NVTETensor lr, step, inv_scale;
  int bias_correction;
};

void adam_capturable(const ListArguments &arguments, AdamStep step, const Capturable &capturable, bool master,
                     const Caller &caller) {
  const Lists lists = read_adam_lists(arguments, master, caller);
  const int32_t *noop = read_flag(arguments.flag, "noop_flag", caller);
  step.lr = *static_cast<const float *>(read_cell(capturable.lr, "lr", kNVTEFloat32, caller));
  const float inv_scale = *static_cast<const float *>(read_cell(capturable.inv_scale, "inv_scale", kNVTEFloat32, caller));
  const int number = *static_cast<const int32_t *>(read_cell(capturable.step, "step", kNVTEInt32, caller));
  if (lists[0].empty()) return;
  expect_list_dtype(lists[1], "p", lists[0][0].dtype, caller);
  if (*noop == 1) return;
  set_corrections(step, number, capturable.bias_correction == 1);
  adam(lists, step, true, inv_scale);
}

void adam_remainder(const Lists &lists, const AdamStep &step) {
  for_chunks(lists[0], [&](const Chunk &chunk) {
    Scratch g(chunk.count), p(chunk.count), m(chunk.count), v(chunk.count);
    auto *upper = static_cast<uint16_t *>(lists[1][chunk.tensor].data) + chunk.first;
    auto *remainder = static_cast<int16_t *>(lists[4][chunk.tensor].data) + chunk.first;
    load_chunk(g.data(), lists[0], chunk);
    load_chunk(m.data(), lists[2], chunk);
    load_chunk(v.data(), lists[3], chunk);
    for (int64_t i = 0; i < chunk.count; ++i) p[i] = join(upper[i], remainder[i]);
    adam_run(g.data(), p.data(), m.data(), v.data(), step, chunk.count);
    for (int64_t i = 0; i < chunk.count; ++i) split(p[i], &upper[i], &remainder[i]);
    store_chunk(lists[2], chunk, m.data());
    store_chunk(lists[3], chunk, v.data());
  });
}

/* ---- weights in FP8 ---- */

/* Lists 5 to 7 of Adam on FP8 weights: one Float32 a tensor. */
struct Fp8Cells {
  std::vector<float *> scale, amax, scale_inv;
};

Fp8Cells read_fp8_cells(NVTETensor **lists, size_t tensors, const Caller &caller) {
  Fp8Cells cells;
  for (size_t j = 0; j < tensors; ++j) {
    const auto cell = [&](size_t list, const char *name) {
      return static_cast<float *>(read_cell(lists[list][j], text(name, "[", j, "]").c_str(), kNVTEFloat32, caller));
    };
    cells.scale.push_back(cell(5, "scale"));
    cells.amax.push_back(cell(6, "amax"));
    cells.scale_inv.push_back(cell(7, "scale_inv"));
  }
  return cells;
}

/* lists: g, p, m, v, p_master. The amax grows; no chunk's part of it depends on the order. */
void adam_fp8(const Lists &lists, const Fp8Cells &cells, const AdamStep &step, NVTEDType dtype) {
  const std::vector<Chunk> chunks = cut(lists[0], 16384);
  std::vector<float> largest(chunks.size());
  parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t first, int64_t last) {
    for (auto c = static_cast<size_t>(first); c < static_cast<size_t>(last); ++c) {
      const Chunk &chunk = chunks[c];
      Scratch g(chunk.count), p(chunk.count), m(chunk.count), v(chunk.count);
      load_chunk(g.data(), lists[0], chunk);
      load_chunk(m.data(), lists[2], chunk);
      load_chunk(v.data(), lists[3], chunk);
      load_chunk(p.data(), lists[4], chunk);
      adam_run(g.data(), p.data(), m.data(), v.data(), step, chunk.count);
      store_chunk(lists[2], chunk, m.data());
      store_chunk(lists[3], chunk, v.data());
      store_chunk(lists[4], chunk, p.data());
      auto *bytes = static_cast<uint8_t *>(lists[1][chunk.tensor].data) + chunk.first;
      const float scale = *cells.scale[chunk.tensor];
      for (int64_t i = 0; i < chunk.count; ++i) {
        largest[c] = std::fmax(largest[c], std::fabs(p[i]));
        bytes[i] = dtype == kNVTEFloat8E4M3 ? float_to_e4m3(p[i] * scale) : float_to_e5m2(p[i] * scale);
      }
    }
  });
  for (size_t c = 0; c < chunks.size(); ++c) {
    float &amax = *cells.amax[chunks[c].tensor];
    amax = std::fmax(amax, largest[c]);
  }
  for (size_t j = 0; j < cells.scale.size(); ++j) *cells.scale_inv[j] = 1.0f / *cells.scale[j];
}

/* ---- stochastic gradient descent ---- */

struct SgdStep {
  float decay, momentum, dampening, lr, scale;
  bool nesterov, first_run, decay_after_momentum;
};

CHAGRES_CLONES void sgd_run(float *g, float *w, float *velocity, const SgdStep &by, int64_t count) {
  const SgdStep step = by;
  for (int64_t i = 0; i < count; ++i) {
    float gradient = g[i] * step.scale;
    if (!step.decay_after_momentum) gradient += step.decay * w[i];
    if (step.momentum != 0) {
      velocity[i] = step.first_run ? gradient : velocity[i] * step.momentum + (1 - step.dampening) * gradient;
      gradient = step.nesterov ? gradient + step.momentum * velocity[i] : velocity[i];
    }
    if (step.decay_after_momentum) gradient += step.decay * w[i];
    w[i] += -step.lr * gradient;
  }
}

void sgd(const Lists &lists, const SgdStep &step) {
  for_chunks(lists[0], [&](const Chunk &chunk) {
    Scratch g(chunk.count), w(chunk.count), velocity(chunk.count);
    load_chunk(g.data(), lists[0], chunk);
    load_chunk(w.data(), lists[1], chunk);
    load_chunk(velocity.data(), lists[2], chunk);
    sgd_run(g.data(), w.data(), velocity.data(), step, chunk.count);
    store_chunk(lists[1], chunk, w.data());
    if (step.momentum != 0) store_chunk(lists[2], chunk, velocity.data());
    /* The copy is of the weight as stored. */
    if (lists.size() == 4) store_chunk(lists[3], chunk, w.data());
  });
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_multi_tensor_adam_cuda(int chunk_size, NVTETensor noop_flag, NVTETensor **tensor_lists,
                                 size_t num_tensor_lists, size_t num_tensors_per_list, float lr, float beta1,
                                 float beta2, float epsilon, int step, int mode, int bias_correction,
                                 float weight_decay, cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_adam_cuda, chunk_size, noop_flag, TensorLists{tensor_lists, num_tensor_lists,
               num_tensors_per_list}, num_tensor_lists, num_tensors_per_list, lr, beta1, beta2, epsilon, step, mode,
               bias_correction, weight_decay, stream)) return;
  const Caller caller = Caller::here();
  CHAGRES_CHECK(num_tensor_lists == 4 || num_tensor_lists == 5, "Expected 4 or 5 tensor lists, got ", num_tensor_lists);
  const Lists lists =
      read_adam_lists({chunk_size, noop_flag, tensor_lists, num_tensor_lists, num_tensors_per_list},
                      num_tensor_lists == 5, caller);
  tensor(noop_flag, "noop_flag"); /* TE's kernel does not look at it */
  AdamStep by = make_step(beta1, beta2, epsilon, weight_decay, mode, caller);
  by.lr = lr;
  set_corrections(by, step, bias_correction == 1);
  adam(lists, by, false, 1);
}

void nvte_multi_tensor_adam_param_remainder_cuda(int chunk_size, NVTETensor noop_flag, NVTETensor **tensor_lists,
                                                 size_t num_tensor_lists, size_t num_tensors_per_list, float lr,
                                                 float beta1, float beta2, float epsilon, int step, int mode,
                                                 int bias_correction, float weight_decay, cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_adam_param_remainder_cuda, chunk_size, noop_flag, TensorLists{tensor_lists,
               num_tensor_lists, num_tensors_per_list}, num_tensor_lists, num_tensors_per_list, lr, beta1, beta2,
               epsilon, step, mode, bias_correction, weight_decay, stream)) return;
  const Caller caller = Caller::here();
  const Lists lists = read_lists({chunk_size, noop_flag, tensor_lists, num_tensor_lists, num_tensors_per_list},
                                 {"g", "p", "m", "v", "p_remainder"}, caller,
                                 {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEInt16});
  tensor(noop_flag, "noop_flag"); /* TE's kernel does not look at it */
  AdamStep by = make_step(beta1, beta2, epsilon, weight_decay, mode, caller);
  if (lists[0].empty()) return;
  CHAGRES_CHECK(lists[0][0].dtype != kNVTEInt16, "Tensor \"g[0]\" must have a floating-point dtype, got Int16");
  expect_list_dtype(lists[0], "g", lists[0][0].dtype, caller);
  expect_list_dtype(lists[1], "p", kNVTEBFloat16, caller);
  expect_moments(lists[2], lists[3], caller);
  expect_list_dtype(lists[4], "p_remainder", kNVTEInt16, caller);
  by.lr = lr;
  set_corrections(by, step, bias_correction == 1);
  adam_remainder(lists, by);
}

void nvte_multi_tensor_adam_capturable_cuda(int chunk_size, NVTETensor noop_flag, NVTETensor **tensor_lists,
                                            size_t num_tensor_lists, size_t num_tensors_per_list, NVTETensor lr,
                                            float beta1, float beta2, float epsilon, NVTETensor step, int mode,
                                            int bias_correction, float weight_decay, NVTETensor inv_scale,
                                            cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_adam_capturable_cuda, chunk_size, noop_flag, TensorLists{tensor_lists,
               num_tensor_lists, num_tensors_per_list}, num_tensor_lists, num_tensors_per_list, lr, beta1, beta2,
               epsilon, step, mode, bias_correction, weight_decay, inv_scale, stream)) return;
  const Caller caller = Caller::here();
  adam_capturable({chunk_size, noop_flag, tensor_lists, num_tensor_lists, num_tensors_per_list},
                  make_step(beta1, beta2, epsilon, weight_decay, mode, caller), {lr, step, inv_scale, bias_correction},
                  false, caller);
}

void nvte_multi_tensor_adam_capturable_master_cuda(int chunk_size, NVTETensor noop_flag, NVTETensor **tensor_lists,
                                                   size_t num_tensor_lists, size_t num_tensors_per_list, NVTETensor lr,
                                                   float beta1, float beta2, float epsilon, NVTETensor step, int mode,
                                                   int bias_correction, float weight_decay, NVTETensor inv_scale,
                                                   cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_adam_capturable_master_cuda, chunk_size, noop_flag, TensorLists{tensor_lists,
               num_tensor_lists, num_tensors_per_list}, num_tensor_lists, num_tensors_per_list, lr, beta1, beta2,
               epsilon, step, mode, bias_correction, weight_decay, inv_scale, stream)) return;
  const Caller caller = Caller::here();
  adam_capturable({chunk_size, noop_flag, tensor_lists, num_tensor_lists, num_tensors_per_list},
                  make_step(beta1, beta2, epsilon, weight_decay, mode, caller), {lr, step, inv_scale, bias_correction},
                  true, caller);
}

void nvte_multi_tensor_adam_fp8_cuda(int chunk_size, NVTETensor noop_flag, NVTETensor **tensor_lists,
                                     size_t num_tensor_lists, size_t num_tensors_per_list, float lr, float beta1,
                                     float beta2, float epsilon, int step, int mode, int bias_correction,
                                     float weight_decay, NVTEDType fp8_dtype, cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_adam_fp8_cuda, chunk_size, noop_flag, TensorLists{tensor_lists, num_tensor_lists,
               num_tensors_per_list}, num_tensor_lists, num_tensors_per_list, lr, beta1, beta2, epsilon, step, mode,
               bias_correction, weight_decay, fp8_dtype, stream)) return;
  const Caller caller = Caller::here();
  CHAGRES_CHECK(num_tensor_lists == 8, "Expected 8 tensor lists, got ", num_tensor_lists);
  CHAGRES_CHECK(is_fp8(fp8_dtype), "Argument \"fp8_dtype\" must be Float8E4M3 or Float8E5M2, got ",
                dtype_name(fp8_dtype));
  const Lists lists = read_lists({chunk_size, noop_flag, tensor_lists, 5, num_tensors_per_list},
                                 {"g", "p", "m", "v", "p_master"}, caller,
                                 {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEFloat8E5M2});
  tensor(noop_flag, "noop_flag"); /* TE's kernel does not look at it */
  AdamStep by = make_step(beta1, beta2, epsilon, weight_decay, mode, caller);
  if (lists[0].empty()) return;
  CHAGRES_CHECK(!is_fp8(lists[0][0].dtype), "Tensor \"g[0]\" must have a dtype of 16 or 32 bits, got ",
                dtype_name(lists[0][0].dtype));
  expect_list_dtype(lists[0], "g", lists[0][0].dtype, caller);
  expect_list_dtype(lists[1], "p", fp8_dtype, caller);
  expect_list_dtype(lists[2], "m", kNVTEFloat32, caller);
  expect_list_dtype(lists[3], "v", kNVTEFloat32, caller);
  expect_list_dtype(lists[4], "p_master", kNVTEFloat32, caller);
  for (size_t list = 5; list < 8; ++list) {
    CHAGRES_CHECK(tensor_lists[list] != nullptr, "Tensor list ", list, " is NULL");
  }
  const Fp8Cells cells = read_fp8_cells(tensor_lists, num_tensors_per_list, caller);
  by.lr = lr;
  set_corrections(by, step, bias_correction == 1);
  adam_fp8(lists, cells, by, fp8_dtype);
}

void nvte_multi_tensor_sgd_cuda(int chunk_size, NVTETensor noop_flag, NVTETensor **tensor_lists,
                                size_t num_tensor_lists, size_t num_tensors_per_list, float wd, float momentum,
                                float dampening, float lr, int nesterov, int first_run, int wd_after_momentum,
                                float scale, cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_sgd_cuda, chunk_size, noop_flag, TensorLists{tensor_lists, num_tensor_lists,
               num_tensors_per_list}, num_tensor_lists, num_tensors_per_list, wd, momentum, dampening, lr, nesterov,
               first_run, wd_after_momentum, scale, stream)) return;
  const Caller caller = Caller::here();
  CHAGRES_CHECK(num_tensor_lists == 3 || num_tensor_lists == 4, "Expected 3 or 4 tensor lists, got ", num_tensor_lists);
  const ListArguments arguments{chunk_size, noop_flag, tensor_lists, num_tensor_lists, num_tensors_per_list};
  const Lists lists = num_tensor_lists == 3 ? read_lists(arguments, {"g", "p", "momentum"}, caller)
                                            : read_lists(arguments, {"g", "p", "momentum", "p_copy"}, caller);
  if (*read_flag(noop_flag, "noop_flag", caller) != 0 || lists[0].empty()) return;
  const NVTEDType gradient = lists[0][0].dtype, weight = lists[1][0].dtype;
  const bool same = gradient == weight && (weight == kNVTEFloat32 || (weight == kNVTEFloat16 && num_tensor_lists == 3));
  const bool widened = gradient == kNVTEFloat16 && weight == kNVTEFloat32 && num_tensor_lists == 4;
  CHAGRES_CHECK(same || widened, "Unsupported dtypes: g ", dtype_name(gradient), ", p ", dtype_name(weight), " in ",
                num_tensor_lists, " lists; expected Float32 or Float16 alike in 3 lists, or p Float32 in 4");
  expect_list_dtype(lists[0], "g", gradient, caller);
  expect_list_dtype(lists[1], "p", weight, caller);
  expect_list_dtype(lists[2], "momentum", weight, caller);
  if (num_tensor_lists == 4) expect_list_dtype(lists[3], "p_copy", kNVTEFloat16, caller);
  sgd(lists, {wd, momentum, dampening, lr, scale, nesterov != 0, first_run != 0, wd_after_momentum != 0});
}
