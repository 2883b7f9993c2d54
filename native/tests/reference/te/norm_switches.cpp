/* The switches of normalization: what cuDNN's norms have in common with Transformer Engine's, where 1 + gamma is rounded, what
 * is refused, and which switches a recorded call has. */
#include <sys/wait.h>
#include <unistd.h>

#include "../cuda/streams_and_graphs.h"
#include "fp8_matrix.h"

using namespace chagres::reference;
using capture_test::Graph;
using capture_test::Stream;
using check::Array;
using check::Unset;

namespace {

constexpr float kEpsilon = 1e-5f;

/* All switches, turned off at the end. */
struct Switches {
  Switches(bool forward, bool backward, bool in_weight_dtype) {
    nvte_enable_cudnn_norm_fwd(forward);
    nvte_enable_cudnn_norm_bwd(backward);
    nvte_enable_zero_centered_gamma_in_weight_dtype(in_weight_dtype);
  }
  Switches(const Switches &) = delete;
  ~Switches() {
    nvte_enable_cudnn_norm_fwd(false);
    nvte_enable_cudnn_norm_bwd(false);
    nvte_enable_zero_centered_gamma_in_weight_dtype(false);
  }
};

struct Norm {
  Norm(NVTEDType dtype, bool rms, size_t rows = 5, size_t columns = 37)
      : rms(rms), x({rows, columns}, dtype), gamma({columns}, dtype), beta({columns}, dtype), z({rows, columns}, dtype),
        dz({rows, columns}, dtype), dx({rows, columns}, dtype), dgamma({columns}, dtype), dbeta({columns}, dtype),
        mu({rows}, kNVTEFloat32), rsigma({rows}, kNVTEFloat32) {
    x.normal(2, 1);
    gamma.normal(0.3);
    beta.normal();
    dz.normal();
  }

  void forward(NVTETensor g, bool zero_centered, NVTETensor to, NVTETensor workspace, cudaStream_t stream = nullptr) {
    if (rms) nvte_rmsnorm_fwd(x, g, kEpsilon, to, rsigma, workspace, 132, zero_centered, stream);
    else nvte_layernorm_fwd(x, g, beta, kEpsilon, to, mu, rsigma, workspace, 132, zero_centered, stream);
  }

  void backward(NVTETensor g, bool zero_centered, NVTETensor workspace, cudaStream_t stream = nullptr) {
    if (rms) nvte_rmsnorm_bwd(dz, x, rsigma, g, dx, dgamma, workspace, 132, zero_centered, stream);
    else nvte_layernorm_bwd(dz, x, mu, rsigma, g, dx, dgamma, dbeta, workspace, 132, zero_centered, stream);
  }

  size_t workspace_size(bool of_backward) {
    Unset query;
    if (of_backward) backward(gamma, true, query);
    else forward(gamma, true, z, query);
    return nvte_tensor_shape(query).data[0];
  }

  /* z, moments, dx, dgamma and dbeta one after the other. */
  std::vector<double> results(NVTETensor g, bool zero_centered) {
    check::with_workspace([&](NVTETensor workspace) { forward(g, zero_centered, z, workspace); });
    check::with_workspace([&](NVTETensor workspace) { backward(g, zero_centered, workspace); });
    std::vector<double> all;
    for (const Array *array : {&z, &rsigma, &dx, &dgamma}) append(all, *array);
    for (const Array *array : {&mu, &dbeta})
      if (!rms) append(all, *array);
    return all;
  }

  const bool rms;
  Array x, gamma, beta, z, dz, dx, dgamma, dbeta, mu, rsigma;

 private:
  static void append(std::vector<double> &all, const Array &array) {
    for (const double value : array.values()) all.push_back(value);
  }
};

/* The nearest number of `bits` significant bits, even on a tie. */
double nearest(double value, int bits) {
  int exponent;
  std::frexp(value, &exponent);
  const double unit = std::ldexp(1, exponent - bits);
  return std::nearbyint(value / unit) * unit;
}

int significant_bits(NVTEDType dtype) { return dtype == kNVTEBFloat16 ? 8 : dtype == kNVTEFloat16 ? 11 : 24; }

/* 1 + gamma in gamma's type. */
void one_more(const Array &gamma, Array &factor) {
  for (size_t i = 0; i < gamma.count(); ++i)
    factor.set(i, nearest(1.0f + static_cast<float>(gamma.get(i)), significant_bits(gamma.dtype())));
}

const std::initializer_list<NVTEDType> kDtypes = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16};

/* 0 where the text that `call` throws in a process with this in its environment contains `part`. */
int status_with(const char *name, const char *value, const std::function<void()> &call, const char *part) {
  const pid_t child = fork();
  if (child == 0) {
    setenv(name, value, 1);
    _exit(check::thrown_text(call).find(part) == std::string::npos ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

/* The first test, for the environment is read once, at the first norm. */
TEST(switches_begin_as_the_environment_says) {
  Norm norm(kNVTEBFloat16, true);
  Unset query;
  float amax = 0;
  const check::Known known(amax);
  const auto add = [&] {
    nvte_rmsnorm_bwd_add(norm.dz, norm.x, norm.z, norm.rsigma, norm.gamma, norm.dx, norm.dgamma, query, 132, false, nullptr);
  };
  const auto forward_with_amax = [&] {
    norm.z.record(kNVTEAmax, &amax, kNVTEFloat32, {1});
    norm.forward(norm.gamma, false, norm.z, query);
  };
  EXPECT_EQUAL(status_with("NVTE_NORM_BWD_USE_CUDNN", "1", add, "cuDNN >= 9.21.0"), 0);
  EXPECT_EQUAL(status_with("NVTE_ZERO_CENTERED_GAMMA_IN_WTYPE", "1", add, "zero_centered_gamma_in_weight_dtype"), 0);
  EXPECT_EQUAL(status_with("NVTE_NORM_FWD_USE_CUDNN", "1", forward_with_amax, "amax output"), 0);
  EXPECT_EQUAL(status_with("NVTE_NORM_FWD_USE_CUDNN", "0", add, "(nothing thrown)"), 0);
  EXPECT_EQUAL(status_with("NVTE_NORM_FWD_USE_CUDNN", "yes", add, "NVTE_NORM_FWD_USE_CUDNN must be 0 or 1, got \"yes\""), 0);
}

TEST(cudnn_changes_no_number) {
  for (const NVTEDType dtype : kDtypes) {
    for (const bool rms : {false, true}) {
      for (const bool zero_centered : {false, true}) {
        Norm norm(dtype, rms);
        const std::vector<double> own = norm.results(norm.gamma, zero_centered);
        const Switches switches(true, true, false);
        EXPECT_CLOSE(norm.results(norm.gamma, zero_centered), own, 0, 0);
      }
    }
  }
}

TEST(cudnn_rounds_one_plus_gamma_to_the_weights_type) {
  for (const NVTEDType dtype : kDtypes) {
    for (const bool rms : {false, true}) {
      Norm norm(dtype, rms);
      Array factor({norm.gamma.count()}, dtype);
      one_more(norm.gamma, factor);
      const std::vector<double> unrounded = norm.results(norm.gamma, true), rounded = norm.results(factor, false),
                                plain = norm.results(norm.gamma, false);
      const Switches switches(true, true, true);
      EXPECT_CLOSE(norm.results(norm.gamma, true), rounded, 0, 0);
      EXPECT_CLOSE(norm.results(norm.gamma, false), plain, 0, 0); /* nothing is added */
      EXPECT((rounded == unrounded) == (dtype == kNVTEFloat32));
    }
  }
}

TEST(rounding_needs_cudnn_and_is_by_direction) {
  for (const bool rms : {false, true}) {
    Norm norm(kNVTEBFloat16, rms, 40, 70);
    Array factor({70}, kNVTEBFloat16);
    one_more(norm.gamma, factor);
    norm.results(norm.gamma, true);
    const std::vector<double> z = norm.z.values(), dx = norm.dx.values();
    norm.results(factor, false);
    const std::vector<double> rounded_z = norm.z.values(), rounded_dx = norm.dx.values();
    for (const bool forward : {false, true}) {
      for (const bool backward : {false, true}) {
        const Switches switches(forward, backward, true);
        norm.results(norm.gamma, true);
        EXPECT_CLOSE(norm.z.values(), forward ? rounded_z : z, 0, 0);
        EXPECT_CLOSE(norm.dx.values(), backward ? rounded_dx : dx, 0, 0);
      }
    }
  }
}

TEST(fp8_is_of_what_was_rounded) {
  for (const NVTEDType dtype : kDtypes) {
    for (const bool rms : {false, true}) {
      Norm norm(dtype, rms, 33, 48);
      Array factor({48}, dtype);
      one_more(norm.gamma, factor);
      check::Fp8Matrix z({33, 48}, kNVTEFloat8E4M3, check::Parts::Both, 20), expected({33, 48}, kNVTEFloat8E4M3, check::Parts::Both, 20);
      const auto forward = [&](NVTETensor g, bool zero_centered, NVTETensor to) {
        check::with_workspace([&](NVTETensor workspace) { norm.forward(g, zero_centered, to, workspace); });
      };
      forward(factor, false, expected);
      const Switches switches(true, false, true);
      forward(norm.gamma, true, z);
      EXPECT_CLOSE(z.data.values(), expected.data.values(), 0, 0);
      EXPECT_CLOSE(z.transposed.values(), expected.transposed.values(), 0, 0);
      EXPECT_EQUAL(z.amax.get(0), expected.amax.get(0));
    }
  }
}

TEST(a_recorded_call_keeps_its_switches) {
  for (const bool rms : {false, true}) {
    Norm norm(kNVTEBFloat16, rms);
    Array factor({norm.gamma.count()}, kNVTEBFloat16);
    one_more(norm.gamma, factor);
    norm.results(norm.gamma, true);
    const std::vector<double> own_z = norm.z.values(), own_dx = norm.dx.values();
    norm.results(factor, false);
    const std::vector<double> rounded_z = norm.z.values(), rounded_dx = norm.dx.values();
    Stream stream;
    std::vector<std::unique_ptr<Array>> workspaces;
    const auto capture = [&](bool cudnn) {
      const Switches switches(cudnn, cudnn, cudnn);
      for (const bool backward : {false, true})
        workspaces.push_back(std::make_unique<Array>(std::vector<size_t>{norm.workspace_size(backward)}, kNVTEByte));
      const Array &forward_workspace = **(workspaces.end() - 2), &backward_workspace = *workspaces.back();
      return std::make_unique<Graph>(stream, [&] {
        norm.forward(norm.gamma, true, norm.z, forward_workspace, stream.te());
        norm.backward(norm.gamma, true, backward_workspace, stream.te());
      });
    };
    const auto by_cudnn = capture(true), own = capture(false);
    EXPECT_EQUAL(by_cudnn->launch(stream), 0);
    EXPECT_CLOSE(norm.z.values(), rounded_z, 0, 0);
    EXPECT_CLOSE(norm.dx.values(), rounded_dx, 0, 0);
    const Switches switches(true, true, true);
    EXPECT_EQUAL(own->launch(stream), 0);
    EXPECT_CLOSE(norm.z.values(), own_z, 0, 0);
    EXPECT_CLOSE(norm.dx.values(), own_dx, 0, 0);
  }
}

TEST(refusals) {
  Norm norm(kNVTEBFloat16, true), layer(kNVTEBFloat16, false);
  Unset query, of_backward, of_add;
  Array x({5, 37}, kNVTEFloat32), dx({5, 37}, kNVTEFloat32);
  const auto backward = [&](NVTETensor of, NVTETensor to) {
    nvte_rmsnorm_bwd(norm.dz, of, norm.rsigma, norm.gamma, to, norm.dgamma, of_backward, 132, true, nullptr);
  };
  const auto add = [&] {
    nvte_rmsnorm_bwd_add(norm.dz, norm.x, norm.z, norm.rsigma, norm.gamma, norm.dx, norm.dgamma, of_add, 132, false, nullptr);
  };
  check::Fp8Matrix fp8({5, 37}, kNVTEFloat8E4M3);
  fp8.data.record(kNVTEAmax, nullptr, kNVTEFloat32, {0});
  norm.forward(norm.gamma, true, fp8, query); /* Transformer Engine's kernels take all of these */
  backward(x, dx);
  add();
  {
    const Switches switches(false, false, true);
    EXPECT_THROWS(add(), "nvte_rmsnorm_bwd_add", "zero_centered_gamma_in_weight_dtype is currently not supported");
  }
  const Switches switches(true, true, true);
  EXPECT_THROWS(norm.forward(norm.gamma, true, fp8, query), "nvte_rmsnorm_fwd", "\"z\"", "must have an amax");
  EXPECT_THROWS(layer.forward(layer.gamma, true, fp8, query), "nvte_layernorm_fwd", "\"z\"", "must have an amax");
  EXPECT_THROWS(backward(x, dx), "nvte_rmsnorm_bwd", "gamma BFloat16, x Float32", "one dtype");
  EXPECT_THROWS(add(), "nvte_rmsnorm_bwd_add", "Fused BackwardAdd requires cuDNN >= 9.21.0, but found 91900");
  float amax = 0;
  const check::Known known(amax);
  norm.z.record(kNVTEAmax, &amax, kNVTEFloat32, {1});
  EXPECT_THROWS(norm.forward(norm.gamma, true, norm.z, query), "\"z\"", "does not currently support amax output");
}

/* cuDNN's graphs have workspaces of another size: one that was asked for before a switch was turned does not fit. */
TEST(a_workspace_is_asked_for_again) {
  Norm norm(kNVTEFloat32, true);
  Array forward({norm.workspace_size(false)}, kNVTEByte), backward({norm.workspace_size(true)}, kNVTEByte);
  norm.forward(norm.gamma, false, norm.z, forward);
  norm.backward(norm.gamma, false, backward);
  const Switches switches(true, true, false);
  EXPECT_THROWS(norm.forward(norm.gamma, false, norm.z, forward), "\"workspace\"", "exactly");
  EXPECT_THROWS(norm.backward(norm.gamma, false, backward), "\"workspace\"", "exactly");
}
