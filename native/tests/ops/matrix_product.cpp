/* matrix_product: every epilogue, both plans, and what is refused. */
#include <cmath>
#include <functional>

#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

struct Sizes {
  int64_t m, n, k;
};

double inner(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
double gelu(double x) { return x / 2 * (1 + std::tanh(inner(x))); }
double gelu_derivative(double x) {
  const double t = std::tanh(inner(x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/* A product and what it should give. */
class ProductCase {
 public:
  ProductCase(Session &session, Buffer &workspace, int dtype, Sizes sizes, int epilogue, int transposes, float accumulate)
      : session_(session),
        dtype_(dtype),
        sizes_(sizes),
        a_(session.random.normal(format_of(dtype), sizes.m * sizes.k)),
        b_(session.random.normal(format_of(dtype), sizes.k * sizes.n)),
        old_(session.random.normal(format_of(dtype), sizes.m * sizes.n)),
        bias_(session.random.normal(format_of(dtype), epilogue == OPS_EPILOGUE_BIAS_GRADIENT ? sizes.m : sizes.n)),
        before_(session.random.normal(format_of(dtype), sizes.m * sizes.n)),
        a_buffer_(session.floats(dtype, a_)),
        b_buffer_(session.floats(dtype, b_)),
        d_(session.floats(dtype, old_)),
        bias_buffer_(session.floats(dtype, bias_)),
        pre_gelu_(session.floats(dtype, before_)) {
    product_ = {};
    product_.a = a_buffer_.data();
    product_.b = b_buffer_.data();
    product_.d = d_.data();
    product_.bias = bias_buffer_.data();
    product_.pre_gelu = pre_gelu_.data();
    product_.workspace = workspace.data();
    product_.workspace_bytes = kWorkspaceBytes;
    product_.m = sizes.m;
    product_.n = sizes.n;
    product_.k = sizes.k;
    product_.accumulate = accumulate;
    product_.trans_a = transposes & 1;
    product_.trans_b = transposes >> 1;
    product_.a_dtype = product_.b_dtype = product_.d_dtype = dtype;
    product_.epilogue = epilogue;
    expect();
  }

  void run(int plan) {
    product_.plan = plan;
    Case test(session_, "matrix_product", dtype_,
              shape_text({{"m", sizes_.m}, {"n", sizes_.n}, {"k", sizes_.k}}) + " epilogue " +
                  std::to_string(product_.epilogue) + " plan " + std::to_string(plan) + " transposes " +
                  std::to_string(product_.trans_a) + std::to_string(product_.trans_b));
    if (!test.run({&d_, &bias_buffer_, &pre_gelu_},
                  [&] { return session_.ops.matrix_product(&product_, session_.memory.stream()); }))
      return;
    /* On GPUs FP32 is multiplied as TF32, of 11 bits; GELU is steep where its input, rounded before, is not small. */
    const bool tf32 = dtype_ == 4 && session_.memory.on_device();
    /* There, for small sizes, an epilogue may be a kernel of its own, which reads the product rounded to the type. */
    const bool rounded_before = session_.memory.on_device() && product_.epilogue != OPS_EPILOGUE_NONE;
    const double slack = tf32                                  ? 1 << 14
                         : rounded_before && dtype_ == 6       ? 1 << 16
                         : rounded_before && dtype_ == 5       ? 1 << 13
                         : product_.epilogue >= OPS_EPILOGUE_GELU ? 1 << 10
                                                               : 1 << 8;
    test.close(dtype_, test.output(0, dtype_), wanted_, scale_, slack, "d");
    if (!wanted_pre_gelu_.empty()) test.close(dtype_, test.output(2, dtype_), wanted_pre_gelu_, scale_, slack, "pre_gelu");
    if (!wanted_sums_.empty()) test.close(dtype_, test.output(1, dtype_), wanted_sums_, sums_scale_, slack, "bias");
  }

 private:
  double a(int64_t m, int64_t k) const { return a_[size_t(product_.trans_a ? k * sizes_.m + m : m * sizes_.k + k)]; }
  double b(int64_t k, int64_t n) const { return b_[size_t(product_.trans_b ? n * sizes_.k + k : k * sizes_.n + n)]; }

  void expect() {
    const int epilogue = product_.epilogue;
    for (int64_t m = 0; m < sizes_.m; ++m) {
      double sums = 0, sums_scale = 0;
      for (int64_t k = 0; k < sizes_.k; ++k) sums += a(m, k), sums_scale += std::fabs(a(m, k));
      if (epilogue == OPS_EPILOGUE_BIAS_GRADIENT) wanted_sums_.push_back(sums), sums_scale_.push_back(sums_scale);
      for (int64_t n = 0; n < sizes_.n; ++n) expect_element(m, n, epilogue);
    }
  }

  void expect_element(int64_t m, int64_t n, int epilogue) {
    const auto index = static_cast<size_t>(m * sizes_.n + n);
    double sum = product_.accumulate * old_[index], scale = std::fabs(sum);
    for (int64_t k = 0; k < sizes_.k; ++k) sum += a(m, k) * b(k, n), scale += std::fabs(a(m, k) * b(k, n));
    if (epilogue == OPS_EPILOGUE_BIAS || epilogue == OPS_EPILOGUE_BIAS_GELU) {
      sum += bias_[static_cast<size_t>(n)];
      scale += std::fabs(bias_[static_cast<size_t>(n)]);
    }
    if (epilogue == OPS_EPILOGUE_GELU || epilogue == OPS_EPILOGUE_BIAS_GELU) {
      wanted_pre_gelu_.push_back(sum);
      sum = gelu(sum);
    }
    if (epilogue == OPS_EPILOGUE_GELU_GRADIENT) sum *= gelu_derivative(before_[index]);
    wanted_.push_back(sum);
    scale_.push_back(scale);
  }

  Session &session_;
  int dtype_;
  Sizes sizes_;
  Doubles a_, b_, old_, bias_, before_;
  Buffer a_buffer_, b_buffer_, d_, bias_buffer_, pre_gelu_;
  OpsMatrixProduct product_;
  Doubles wanted_, scale_, wanted_pre_gelu_, wanted_sums_, sums_scale_;
};

void refused(Session &session, OpsMatrixProduct product, const std::function<void(OpsMatrixProduct &)> &spoil,
             const std::string &text) {
  spoil(product);
  Case test(session, "arguments", 4, text);
  if (session.ops.matrix_product(&product, session.memory.stream()) != OPS_INVALID_ARGUMENT) test.fail("not refused");
  const std::string got = session.ops.last_error();
  if (got != "ops_matrix_product: " + text) test.fail("the text is: " + got);
}

OpsMatrixProduct good_product(void *memory) {
  OpsMatrixProduct p = {};
  p.a = p.b = p.d = p.bias = p.pre_gelu = memory;
  p.a_scale_inverse = p.b_scale_inverse = static_cast<float *>(memory);
  p.m = p.n = p.k = 16;
  p.a_dtype = p.b_dtype = p.d_dtype = 6;
  return p;
}

void matrix_product_refusals(Session &session) {
  Buffer memory(session.memory, Bytes(4096));
  const OpsMatrixProduct p = good_product(memory.data());
  refused(session, p, [](auto &q) { q.a_dtype = 2; },
          "a_dtype is 2; expected 4 (float32), 5 (float16), 6 (bfloat16), 7 (float8 E4M3) or 8 (float8 E5M2)");
  refused(session, p, [](auto &q) { q.b_dtype = 5; }, "b_dtype is 5; expected 6, the type of a");
  refused(session, p, [](auto &q) { q.d_dtype = 5; }, "d_dtype is 5; expected 4 (float32) or the type of a, 6");
  refused(session, p, [](auto &q) { q.m = -1; }, "m is -1; expected 0 to 2147483647");
  refused(session, p, [](auto &q) { q.k = 0; }, "k is 0; expected 1 to 2147483647");
  refused(session, p, [](auto &q) { q.plan = 2; }, "plan is 2; expected 0 to 1");
  refused(session, p, [](auto &q) { q.epilogue = 6; }, "epilogue is 6; expected 0 to 5");
  refused(session, p, [](auto &q) { q.epilogue = 5; }, "trans_a is 0; expected 1, for a bias gradient");
  refused(session, p, [](auto &q) { q.epilogue = 1, q.accumulate = 1; },
          "accumulate is 1; expected 0 where there is an epilogue");
  refused(session, p, [](auto &q) { q.epilogue = 2, q.d_dtype = 4; }, "d_dtype is 4; expected the type of a, for GELU");
  refused(session, p, [](auto &q) { q.d = nullptr; }, "d is null; expected a device pointer");
  refused(session, p, [](auto &q) { q.workspace_bytes = 8; }, "workspace is null; expected a device pointer");
  OpsMatrixProduct f = p;
  f.a_dtype = f.b_dtype = 7;
  f.trans_b = 1;
  refused(session, f, [](auto &q) { q.b_dtype = 6; }, "b_dtype is 6; expected 7 or 8 (float8), as a has");
  refused(session, f, [](auto &q) { q.a_dtype = q.b_dtype = 8; },
          "b_dtype is 8 (float8 E5M2); expected 7 (float8 E4M3), for a is E5M2");
  refused(session, f, [](auto &q) { q.trans_b = 0; }, "trans_b is 0; expected 1 to 1");
  refused(session, f, [](auto &q) { q.k = 24; }, "k is 24; expected a multiple of 16");
  refused(session, f, [](auto &q) { q.n = 4; }, "n is 4; expected a multiple of 8");
  refused(session, f, [](auto &q) { q.a_scaling = 1; },
          "a_scaling is 1; expected 0 (one scale), 2 (by 1 x 128) or 3 (by 128 x 128)");
  refused(session, f, [](auto &q) { q.b_scaling = 2; }, "b_scaling is 2; expected 0, for a has one scale");
  refused(session, f, [](auto &q) { q.a_scaling = q.b_scaling = 2; }, "accumulator is 0; expected 1 to 1");
  refused(session, f, [](auto &q) { q.a_scaling = q.b_scaling = 3; },
          "b_scaling is 3 (by 128 x 128); expected 2 (by 1 x 128), for a is scaled by 128 x 128");
  refused(session, f, [](auto &q) { q.b_scale_inverse = nullptr; },
          "b_scale_inverse is null; expected a device pointer");
}

void matrix_product_of_nothing(Session &session) {
  Case test(session, "matrix_product", 4, "without rows, without columns");
  OpsMatrixProduct p = good_product(nullptr);
  p.m = p.k = 0;
  if (session.ops.matrix_product(&p, session.memory.stream()) != OPS_SUCCESS) test.fail(session.ops.last_error());
  p.m = 16;
  p.n = 0;
  if (session.ops.matrix_product(&p, session.memory.stream()) != OPS_SUCCESS) test.fail(session.ops.last_error());
}

}  // namespace

void matrix_product_cases(Session &session) {
  Buffer workspace(session.memory, Bytes(static_cast<size_t>(kWorkspaceBytes)));
  for (const Sizes &sizes : {Sizes{1, 8, 1}, Sizes{3, 8, 5}, Sizes{17, 24, 33}, Sizes{16, 16, 16}})
    for (const Format &format : kFormats)
      for (int transposes = 0; transposes < 4; ++transposes)
        for (int epilogue = OPS_EPILOGUE_NONE; epilogue <= OPS_EPILOGUE_BIAS_GRADIENT; ++epilogue) {
          const bool with_gelu = epilogue >= OPS_EPILOGUE_GELU && epilogue <= OPS_EPILOGUE_GELU_GRADIENT;
          if (format.dtype == 4 && with_gelu) continue;
          if (epilogue == OPS_EPILOGUE_BIAS_GRADIENT && (transposes & 1) == 0) continue;
          for (int plan : {OPS_PLAN_FIRST, OPS_PLAN_MEASURED}) {
            ProductCase(session, workspace, format.dtype, sizes, epilogue, transposes, 0).run(plan);
            if (epilogue != OPS_EPILOGUE_NONE) continue;
            ProductCase(session, workspace, format.dtype, sizes, epilogue, transposes, 0.5f).run(plan);
          }
        }
  matrix_product_refusals(session);
  matrix_product_of_nothing(session);
}

}  // namespace chagres::tests
