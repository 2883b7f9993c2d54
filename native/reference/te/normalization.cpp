/*
 * Layer normalization (Ba et al. 2016) and RMS normalization (Zhang and Sennrich 2019), forward and backward.
 *
 * One row is one token. y = (x - mu) rsigma (RMS: mu = 0), z = y g + beta with g = gamma, or 1 + gamma when centred on
 * zero. Backward, with dy = dz g: dx = rsigma (dy - y mean(dy y) - mean(dy)) (RMS: without the last term),
 * dgamma = sum of dz y, dbeta = sum of dz over rows. norm_switches.h has what switches change of g.
 */
#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/sums.h"
#include "te/norm_switches.h"

namespace chagres::reference {

namespace {

enum class Norm { Layer, Rms };

/* ---- one row ---- */

struct Moments {
  float mu, rsigma;
};

CHAGRES_CLONES Moments layer_moments(const float *x, int64_t count, float epsilon) {
  const float mu = lane_sum(count, [&](int64_t i) { return x[i]; }) / static_cast<float>(count);
  const float squares = lane_sum(count, [&](int64_t i) { return (x[i] - mu) * (x[i] - mu); });
  return {mu, 1.0f / std::sqrt(squares / static_cast<float>(count) + epsilon)};
}

CHAGRES_CLONES Moments rms_moments(const float *x, int64_t count, float epsilon) {
  const float squares = lane_sum(count, [&](int64_t i) { return x[i] * x[i]; });
  return {0, 1.0f / std::sqrt(squares / static_cast<float>(count) + epsilon)};
}

/* beta may be null: adding -0 leaves every number as it is, a 0 of either sign, too. */
CHAGRES_CLONES void scale_row(float *z, const float *x, const float *g, const float *beta, Moments moments,
                              int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    z[i] = (x[i] - moments.mu) * moments.rsigma * g[i] + (beta == nullptr ? -0.0f : beta[i]);
  }
}

struct BackwardRow {
  const float *dz, *x, *g;
  float *dx;           /* holds what is added to dx; zero when there is nothing */
  float *dgamma, *dbeta; /* partial sums; dbeta null for RMS */
};

CHAGRES_CLONES void backward_row(const BackwardRow &row, Moments moments, bool centred, int64_t count) {
  const float *dz = row.dz, *x = row.x, *g = row.g;
  const auto y = [&](int64_t i) { return (x[i] - moments.mu) * moments.rsigma; };
  const auto length = static_cast<float>(count);
  const float mean_dyy = lane_sum(count, [&](int64_t i) { return dz[i] * g[i] * y(i); }) / length;
  const float mean_dy = centred ? lane_sum(count, [&](int64_t i) { return dz[i] * g[i]; }) / length : 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    row.dx[i] += moments.rsigma * (dz[i] * g[i] - (mean_dyy * y(i) + mean_dy));
    row.dgamma[i] += dz[i] * y(i);
  }
  for (int64_t i = 0; row.dbeta != nullptr && i < count; ++i) row.dbeta[i] += dz[i];
}

CHAGRES_CLONES void add_run(float *sum, const float *terms, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += terms[i];
}

/* ---- arguments ---- */

void check_matrix(const View &x, const char *argument, const Caller &caller) {
  if (x.shape.ndim != 2 || x.columns == 0) {
    fail(caller, text("Tensor \"", argument, "\" must have shape (tokens, hidden) with hidden above 0, got ",
                      shape_text(x.shape)));
  }
}

void check_row_values(const View &values, const char *argument, const View &x, const Caller &caller) {
  expect_dtype(values, argument, kNVTEFloat32, caller);
  expect_shape(values, argument, {static_cast<size_t>(x.rows)}, caller);
}

void check_column_values(const View &values, const char *argument, const View &x, NVTEDType dtype,
                         const Caller &caller) {
  expect_dtype(values, argument, dtype, caller);
  expect_shape(values, argument, {static_cast<size_t>(x.columns)}, caller);
}

/* The combinations for which Transformer Engine has kernels. */
void check_forward_dtypes(NVTEDType gamma, NVTEDType x, NVTEDType z, const Caller &caller) {
  if (gamma == x && (x == z || z == kNVTEFloat8E4M3 || (x == kNVTEFloat32 && z != kNVTEFloat8E5M2))) return;
  fail(caller, text("Unavailable kernel for this normalization: gamma ", dtype_name(gamma), ", x ", dtype_name(x), ", z ",
                    dtype_name(z), "; gamma and x must have one dtype, and z too unless it is Float8E4M3 or they are "
                    "Float32"));
}

void check_backward_dtypes(NVTEDType gamma, NVTEDType x, const Caller &caller) {
  if (gamma == x || x == kNVTEFloat32) return;
  fail(caller, text("Unavailable kernel for this normalization: gamma ", dtype_name(gamma), ", x ", dtype_name(x),
                    "; x must be Float32 or have gamma's dtype"));
}

/* What columns are multiplied by, as FP32. */
std::unique_ptr<Scratch> widen_gamma(const View &gamma, GammaFactor factor) {
  const int64_t count = gamma.count();
  auto g = std::make_unique<Scratch>(count);
  to_float(g->data(), gamma.data, gamma.dtype, count);
  for (int64_t i = 0; factor != GammaFactor::Gamma && i < count; ++i) (*g)[i] += 1.0f;
  if (factor == GammaFactor::OnePlusGammaRounded) {
    Scratch rounded(count); /* at most as large in gamma's type */
    from_float(rounded.data(), g->data(), gamma.dtype, count);
    to_float(g->data(), rounded.data(), gamma.dtype, count);
  }
  return g;
}

/* Rows of a piece: a few hundred pieces at most, whatever the number of threads. */
int64_t rows_per_piece(int64_t rows) { return std::max<int64_t>(16, (rows + 127) / 128); }

struct Forward {
  View x, gamma, beta; /* beta, mu: Norm::Layer only */
  Quantized z;
  View mu, rsigma;
  float epsilon;
  GammaFactor factor;
};

/* Answers the largest magnitude: of FP8 before scaling, else of what was stored. */
float store_row(const Quantized &output, int64_t first, float *z, int64_t count) {
  const float largest = store_run(output, first, z, count);
  const NVTEDType dtype = output.rowwise.dtype;
  if (is_fp8(dtype) || dtype == kNVTEFloat32 || !output.tensor->has(kNVTEAmax)) return largest;
  to_float(z, element(output.rowwise.data, first, dtype), dtype, count);
  return largest_magnitude(z, count);
}

/* z, as it is described; its scale, which the GPU's kernels read. */
Quantized described_z(NVTETensor z, const Caller &caller) {
  const int mode = tensor(z, "z", caller).scaling_mode;
  if (mode != NVTE_DELAYED_TENSOR_SCALING) {
    fail(caller, text("Tensor \"z\" has scaling mode ", mode, ", which normalization does not write: normalize to "
                      "BFloat16 and quantize then"));
  }
  const Quantized result = described_quantized(z, "z", caller);
  if (is_fp8(result.rowwise.dtype) && result.scale == nullptr) fail(caller, "Tensor \"z\" is FP8, so it must have a scale");
  return result;
}

void run_forward(const Forward &call, Norm norm) {
  const int64_t columns = call.x.columns;
  const auto g = widen_gamma(call.gamma, call.factor);
  std::unique_ptr<Scratch> beta;
  if (norm == Norm::Layer) beta = widen_gamma(call.beta, GammaFactor::Gamma);
  const int64_t piece = rows_per_piece(call.x.rows);
  Scratch largest(call.x.rows / piece + 1);
  parallel_for(0, call.x.rows, piece, [&](int64_t first, int64_t last) {
    Scratch x(columns), z(columns);
    float piece_largest = 0;
    for (int64_t row = first; row < last; ++row) {
      to_float(x.data(), element(call.x.data, row * columns, call.x.dtype), call.x.dtype, columns);
      const Moments moments = norm == Norm::Layer ? layer_moments(x.data(), columns, call.epsilon)
                                                  : rms_moments(x.data(), columns, call.epsilon);
      if (norm == Norm::Layer) static_cast<float *>(call.mu.data)[row] = moments.mu;
      static_cast<float *>(call.rsigma.data)[row] = moments.rsigma;
      scale_row(z.data(), x.data(), g->data(), beta ? beta->data() : nullptr, moments, columns);
      piece_largest = std::max(piece_largest, store_row(call.z, row * columns, z.data(), columns));
    }
    largest[first / piece] = piece_largest;
  });
  float all = 0;
  for (int64_t i = 0; i * piece < call.x.rows; ++i) all = std::max(all, largest[i]);
  finish(call.z, all);
}

struct Backward {
  View dz, x, mu, rsigma, gamma, add, dx, dgamma, dbeta; /* add: may be absent (null data) */
  GammaFactor factor;
};

void run_backward(const Backward &call, Norm norm) {
  const int64_t columns = call.x.columns;
  const bool centred = norm == Norm::Layer;
  const auto g = widen_gamma(call.gamma, call.factor);
  const int64_t piece = rows_per_piece(call.x.rows);
  const int64_t pieces = std::max<int64_t>(1, (call.x.rows + piece - 1) / piece);
  const int64_t width = columns * (centred ? 2 : 1);
  Scratch partial(pieces * width);
  std::fill(partial.data(), partial.data() + pieces * width, 0.0f);
  parallel_for(0, call.x.rows, piece, [&](int64_t first, int64_t last) {
    Scratch dz(columns), x(columns), dx(columns);
    float *sums = partial.data() + first / piece * width;
    for (int64_t row = first; row < last; ++row) {
      to_float(dz.data(), element(call.dz.data, row * columns, call.dz.dtype), call.dz.dtype, columns);
      to_float(x.data(), element(call.x.data, row * columns, call.x.dtype), call.x.dtype, columns);
      if (call.add.data != nullptr) {
        to_float(dx.data(), element(call.add.data, row * columns, call.add.dtype), call.add.dtype, columns);
      } else {
        std::fill(dx.data(), dx.data() + columns, 0.0f);
      }
      const Moments moments{centred ? static_cast<const float *>(call.mu.data)[row] : 0.0f,
                            static_cast<const float *>(call.rsigma.data)[row]};
      backward_row({dz.data(), x.data(), g->data(), dx.data(), sums, centred ? sums + columns : nullptr}, moments,
                   centred, columns);
      from_float(element(call.dx.data, row * columns, call.dx.dtype), dx.data(), call.dx.dtype, columns);
    }
  });
  for (int64_t i = 1; i < pieces; ++i) add_run(partial.data(), partial.data() + i * width, width);
  from_float(call.dgamma.data, partial.data(), call.dgamma.dtype, columns);
  if (centred) from_float(call.dbeta.data, partial.data() + columns, call.dbeta.dtype, columns);
}

/* Whether Transformer Engine may choose one of its tuned kernels, rather than a general one. */
bool may_be_tuned(const View &x, std::initializer_list<const View *> others) {
  const auto aligned = [](const View &view) { return reinterpret_cast<uintptr_t>(view.data) % 16 == 0; };
  return x.rows % 4 == 0 && aligned(x) &&
         std::all_of(others.begin(), others.end(), [&](const View *view) { return aligned(*view); });
}

/* No workspace is needed here; the size follows shape, implementation and kind of kernel, so that a workspace of another
 * is refused, as Transformer Engine refuses it. */
size_t workspace_of(const Forward &call) {
  const bool tuned = may_be_tuned(call.x, {&call.gamma, &call.beta, &call.z.rowwise, &call.mu, &call.rsigma});
  return static_cast<size_t>(call.x.rows) * 8 + (norm_switches().cudnn_forward ? 3 : tuned ? 1 : 2);
}

size_t workspace_of(const Backward &call) {
  const bool tuned = may_be_tuned(
      call.x, {&call.gamma, &call.dz, &call.mu, &call.rsigma, &call.dx, &call.dgamma, &call.dbeta});
  const size_t kind = norm_switches().cudnn_backward ? 2 : tuned ? 0 : 1;
  return static_cast<size_t>(call.x.columns) * 8 + static_cast<size_t>(call.x.rows) * 8 + kind;
}

void expect_all_data(std::initializer_list<std::pair<const View *, const char *>> views, const Caller &caller) {
  for (const auto &[view, argument] : views) expect_data(*view, argument, caller);
}

void check_epsilon(float epsilon, const Caller &caller) {
  if (!(epsilon >= 0)) fail(caller, text("Argument \"epsilon\" must be at least 0, got ", epsilon));
}

/* What layer and RMS normalization have in common backward. */
Backward described_backward(NVTETensor dz, NVTETensor x, NVTETensor rsigma, NVTETensor gamma, NVTETensor dx,
                            NVTETensor dgamma, bool zero_centered, const Caller &caller) {
  Backward call{};
  call.x = described(x, "x", {}, caller);
  check_matrix(call.x, "x", caller);
  call.gamma = described(gamma, "gamma", {}, caller);
  check_column_values(call.gamma, "gamma", call.x, call.gamma.dtype, caller);
  check_backward_dtypes(call.gamma.dtype, call.x.dtype, caller);
  check_switched_backward(call.gamma.dtype, call.x.dtype, caller);
  call.dz = described(dz, "dz", {}, caller);
  expect_dtype(call.dz, "dz", call.gamma.dtype, caller);
  expect_same_shape(call.dz, "dz", call.x, "x", caller);
  call.rsigma = described(rsigma, "rsigma", {}, caller);
  check_row_values(call.rsigma, "rsigma", call.x, caller);
  call.dx = described(dx, "dx", {}, caller);
  expect_dtype(call.dx, "dx", call.x.dtype, caller);
  expect_same_shape(call.dx, "dx", call.x, "x", caller);
  call.dgamma = described(dgamma, "dgamma", {}, caller);
  check_column_values(call.dgamma, "dgamma", call.x, call.gamma.dtype, caller);
  call.factor = gamma_factor(zero_centered, norm_switches().cudnn_backward);
  return call;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_layernorm_fwd(NVTETensor x, NVTETensor gamma, NVTETensor beta, float epsilon, NVTETensor z, NVTETensor mu,
                        NVTETensor rsigma, NVTETensor workspace, int multiprocessorCount, bool zero_centered_gamma,
                        cudaStream_t stream) {
  if (!asks(workspace) && norm_recorded(nvte_layernorm_fwd, x, gamma, beta, epsilon, z, mu, rsigma, workspace,
                                   multiprocessorCount, zero_centered_gamma, stream)) return;
  const Caller caller = Caller::here();
  const GammaFactor factor = gamma_factor(zero_centered_gamma, norm_switches().cudnn_forward);
  const Forward call{described(x, "x"),   described(gamma, "gamma"),   described(beta, "beta"), described_z(z, caller),
                     described(mu, "mu"), described(rsigma, "rsigma"), epsilon,                 factor};
  check_matrix(call.x, "x", caller);
  check_column_values(call.gamma, "gamma", call.x, call.gamma.dtype, caller);
  check_column_values(call.beta, "beta", call.x, call.gamma.dtype, caller);
  check_epsilon(epsilon, caller);
  expect_same_shape(call.z.rowwise, "z", call.x, "x");
  check_row_values(call.mu, "mu", call.x, caller);
  check_row_values(call.rsigma, "rsigma", call.x, caller);
  check_forward_dtypes(call.gamma.dtype, call.x.dtype, call.z.rowwise.dtype, caller);
  check_switched_forward(call.z, caller);
  if (workspace_query(workspace, "workspace", {workspace_of(call)}, kNVTEByte)) return;
  expect_all_data({{&call.x, "x"}, {&call.gamma, "gamma"}, {&call.beta, "beta"}, {&call.mu, "mu"},
                   {&call.rsigma, "rsigma"}}, caller);
  expect_data(call.z, "z");
  run_forward(call, Norm::Layer);
}

void nvte_rmsnorm_fwd(NVTETensor x, NVTETensor gamma, float epsilon, NVTETensor z, NVTETensor rsigma,
                      NVTETensor workspace, int multiprocessorCount, bool zero_centered_gamma, cudaStream_t stream) {
  if (!asks(workspace) && norm_recorded(nvte_rmsnorm_fwd, x, gamma, epsilon, z, rsigma, workspace, multiprocessorCount,
                                   zero_centered_gamma, stream)) return;
  const Caller caller = Caller::here();
  const GammaFactor factor = gamma_factor(zero_centered_gamma, norm_switches().cudnn_forward);
  const Forward call{described(x, "x"), described(gamma, "gamma"),   {},      described_z(z, caller),
                     {},                described(rsigma, "rsigma"), epsilon, factor};
  check_matrix(call.x, "x", caller);
  check_column_values(call.gamma, "gamma", call.x, call.gamma.dtype, caller);
  check_epsilon(epsilon, caller);
  expect_same_shape(call.z.rowwise, "z", call.x, "x");
  check_row_values(call.rsigma, "rsigma", call.x, caller);
  check_forward_dtypes(call.gamma.dtype, call.x.dtype, call.z.rowwise.dtype, caller);
  check_switched_forward(call.z, caller);
  if (workspace_query(workspace, "workspace", {workspace_of(call)}, kNVTEByte)) return;
  expect_all_data({{&call.x, "x"}, {&call.gamma, "gamma"}, {&call.rsigma, "rsigma"}}, caller);
  expect_data(call.z, "z");
  run_forward(call, Norm::Rms);
}

void nvte_layernorm_bwd(NVTETensor dz, NVTETensor x, NVTETensor mu, NVTETensor rsigma, NVTETensor gamma, NVTETensor dx,
                        NVTETensor dgamma, NVTETensor dbeta, NVTETensor workspace, int multiprocessorCount,
                        bool zero_centered_gamma,
                        cudaStream_t stream) {
  if (!asks(workspace) && norm_recorded(nvte_layernorm_bwd, dz, x, mu, rsigma, gamma, dx, dgamma, dbeta, workspace,
                                   multiprocessorCount, zero_centered_gamma, stream)) return;
  const Caller caller = Caller::here();
  Backward call = described_backward(dz, x, rsigma, gamma, dx, dgamma, zero_centered_gamma, caller);
  call.mu = described(mu, "mu");
  check_row_values(call.mu, "mu", call.x, caller);
  call.dbeta = described(dbeta, "dbeta");
  check_column_values(call.dbeta, "dbeta", call.x, call.gamma.dtype, caller);
  if (workspace_query(workspace, "workspace", {workspace_of(call)}, kNVTEByte)) return;
  expect_all_data({{&call.dz, "dz"}, {&call.x, "x"}, {&call.mu, "mu"}, {&call.rsigma, "rsigma"}, {&call.gamma, "gamma"},
                   {&call.dx, "dx"}, {&call.dgamma, "dgamma"}, {&call.dbeta, "dbeta"}}, caller);
  run_backward(call, Norm::Layer);
}

void nvte_rmsnorm_bwd(NVTETensor dz, NVTETensor x, NVTETensor rsigma, NVTETensor gamma, NVTETensor dx,
                      NVTETensor dgamma, NVTETensor workspace, int multiprocessorCount, bool zero_centered_gamma,
                      cudaStream_t stream) {
  if (!asks(workspace) && norm_recorded(nvte_rmsnorm_bwd, dz, x, rsigma, gamma, dx, dgamma, workspace, multiprocessorCount,
                                   zero_centered_gamma, stream)) return;
  const Caller caller = Caller::here();
  const Backward call = described_backward(dz, x, rsigma, gamma, dx, dgamma, zero_centered_gamma, caller);
  if (workspace_query(workspace, "workspace", {workspace_of(call)}, kNVTEByte)) return;
  expect_all_data({{&call.dz, "dz"}, {&call.x, "x"}, {&call.rsigma, "rsigma"}, {&call.gamma, "gamma"}, {&call.dx, "dx"},
                   {&call.dgamma, "dgamma"}}, caller);
  run_backward(call, Norm::Rms);
}

void nvte_rmsnorm_bwd_add(NVTETensor dz, NVTETensor x, NVTETensor add, NVTETensor rsigma, NVTETensor gamma,
                          NVTETensor dx, NVTETensor dgamma, NVTETensor workspace, int multiprocessorCount,
                          bool zero_centered_gamma,
                          cudaStream_t stream) {
  if (!asks(workspace) && norm_recorded(nvte_rmsnorm_bwd_add, dz, x, add, rsigma, gamma, dx, dgamma, workspace,
                                   multiprocessorCount, zero_centered_gamma, stream)) return;
  const Caller caller = Caller::here();
  Backward call = described_backward(dz, x, rsigma, gamma, dx, dgamma, zero_centered_gamma, caller);
  call.add = described(add, "add");
  expect_dtype(call.add, "add", call.gamma.dtype);
  expect_same_shape(call.add, "add", call.x, "x");
  check_switched_backward_add(caller);
  if (workspace_query(workspace, "workspace", {workspace_of(call)}, kNVTEByte)) return;
  expect_all_data({{&call.dz, "dz"}, {&call.x, "x"}, {&call.add, "add"}, {&call.rsigma, "rsigma"},
                   {&call.gamma, "gamma"}, {&call.dx, "dx"}, {&call.dgamma, "dgamma"}}, caller);
  run_backward(call, Norm::Rms);
}
