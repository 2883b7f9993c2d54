/* Normalization against double loops, gradients against finite differences in double, error texts. */
#include <array>

#include "fp8_matrix.h"

using namespace chagres::reference;
using check::Array;
using check::Unset;

namespace {

struct Case {
  size_t rows, columns;
  NVTEDType gamma, x, z;
  bool rms, zero_centered;
};

std::vector<Case> cases(bool backward) {
  std::vector<std::array<NVTEDType, 3>> dtypes = {{kNVTEFloat32, kNVTEFloat32, kNVTEFloat32}, {kNVTEBFloat16, kNVTEBFloat16, kNVTEBFloat16}, {kNVTEFloat16, kNVTEFloat16, kNVTEFloat16}};
  if (backward) {
    dtypes.push_back({kNVTEBFloat16, kNVTEFloat32, kNVTEBFloat16});
    dtypes.push_back({kNVTEFloat16, kNVTEFloat32, kNVTEFloat16});
  } else {
    dtypes.push_back({kNVTEFloat32, kNVTEFloat32, kNVTEBFloat16});
    dtypes.push_back({kNVTEFloat32, kNVTEFloat32, kNVTEFloat16});
  }
  std::vector<Case> all;
  for (const auto &[gamma, x, z] : dtypes) {
    for (const auto &[rows, columns] : std::vector<std::array<size_t, 2>>{{1, 1}, {3, 15}, {17, 16}, {5, 17}, {300, 64}, {2, 1031}}) {
      for (int variant = 0; variant < 4; ++variant) all.push_back({rows, columns, gamma, x, z, (variant & 1) != 0, (variant & 2) != 0});
    }
  }
  return all;
}

constexpr double kEpsilon = 1e-5;

/* z of one row, in double. */
std::vector<double> normalized(const Case &c, const std::vector<double> &x, const std::vector<double> &gamma,
                               const std::vector<double> &beta, double *mu, double *rsigma) {
  const auto count = static_cast<double>(x.size());
  double mean = 0, square = 0;
  for (const double value : x) mean += c.rms ? 0 : value / count;
  for (const double value : x) square += (value - mean) * (value - mean) / count;
  *mu = mean;
  *rsigma = 1 / std::sqrt(square + static_cast<float>(kEpsilon));
  std::vector<double> z(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    z[i] = (x[i] - mean) * *rsigma * (gamma[i] + c.zero_centered) + (c.rms ? 0 : beta[i]);
  }
  return z;
}

std::vector<double> row_of(const Array &array, size_t row, size_t columns) {
  std::vector<double> values(columns);
  for (size_t i = 0; i < columns; ++i) values[i] = array.get(row * columns + i);
  return values;
}

struct Inputs {
  explicit Inputs(const Case &c)
      : x({c.rows, c.columns}, c.x), gamma({c.columns}, c.gamma), beta({c.columns}, c.gamma), z({c.rows, c.columns}, c.z),
        mu({c.rows}, kNVTEFloat32), rsigma({c.rows}, kNVTEFloat32) {
    x.normal(2, 1);
    gamma.normal();
    beta.normal();
  }
  Array x, gamma, beta, z, mu, rsigma;
};

void forward(const Case &c, Inputs &in) {
  check::with_workspace([&](NVTETensor workspace) {
    if (c.rms) {
      nvte_rmsnorm_fwd(in.x, in.gamma, kEpsilon, in.z, in.rsigma, workspace, 132, c.zero_centered, nullptr);
    } else {
      nvte_layernorm_fwd(in.x, in.gamma, in.beta, kEpsilon, in.z, in.mu, in.rsigma, workspace, 132, c.zero_centered, nullptr);
    }
  });
}

}  // namespace

TEST(forward_against_double) {
  for (const Case &c : cases(false)) {
    Inputs in(c);
    float amax = 0.5f;
    const check::Known known_amax(amax);
    in.z.record(kNVTEAmax, &amax, kNVTEFloat32, {1});
    forward(c, in);
    const double largest = std::max(0.5, check::largest_of(in.z.values()));
    for (size_t row = 0; row < c.rows; ++row) {
      double mu, rsigma;
      const auto expected = normalized(c, row_of(in.x, row, c.columns), in.gamma.values(), in.beta.values(), &mu, &rsigma);
      EXPECT_CLOSE(row_of(in.z, row, c.columns), expected, check::rounding(c.z), 1e-5);
      if (!c.rms) EXPECT(check::close(in.mu.get(row), mu, 1e-6, 1e-6));
      EXPECT(check::close(in.rsigma.get(row), rsigma, 1e-5, 0));
    }
    EXPECT_EQUAL(static_cast<double>(amax), largest); /* of what was stored, rounded */
  }
}

TEST(forward_to_fp8) {
  for (const NVTEDType dtype : {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16}) {
    for (const bool rms : {false, true}) {
      for (const check::Parts parts : {check::Parts::Rowwise, check::Parts::Both}) {
        const Case c{40, 33, dtype, dtype, dtype, rms, true};
        Inputs in(c);
        check::Fp8Matrix z({c.rows, c.columns}, kNVTEFloat8E4M3, parts, 20);
        check::with_workspace([&](NVTETensor workspace) {
          if (rms) {
            nvte_rmsnorm_fwd(in.x, in.gamma, kEpsilon, z, in.rsigma, workspace, 132, true, nullptr);
          } else {
            nvte_layernorm_fwd(in.x, in.gamma, in.beta, kEpsilon, z, in.mu, in.rsigma, workspace, 132, true, nullptr);
          }
        });
        std::vector<double> expected;
        for (size_t row = 0; row < c.rows; ++row) {
          double mu, rsigma;
          for (const double value : normalized(c, row_of(in.x, row, c.columns), in.gamma.values(), in.beta.values(), &mu, &rsigma))
            expected.push_back(value);
        }
        EXPECT_QUANTIZED(z, expected, 1e-5);
        if (parts == check::Parts::Both) EXPECT_TRANSPOSED(z);
      }
    }
  }
}

TEST(fp8_refusals) {
  const Case c{4, 8, kNVTEBFloat16, kNVTEBFloat16, kNVTEBFloat16, true, false};
  Inputs in(c);
  Unset query;
  const auto normalize = [&](NVTETensor z) { nvte_rmsnorm_fwd(in.x, in.gamma, kEpsilon, z, in.rsigma, query, 132, false, nullptr); };
  check::Fp8Matrix e5m2({4, 8}, kNVTEFloat8E5M2), unscaled({4, 8}, kNVTEFloat8E4M3);
  unscaled.data.record(kNVTEScale, nullptr, kNVTEFloat32, {0});
  EXPECT_THROWS(normalize(e5m2), "nvte_rmsnorm_fwd", "Unavailable kernel", "Float8E5M2");
  EXPECT_THROWS(normalize(unscaled), "\"z\"", "must have a scale");
  NVTETensor blocks = nvte_create_tensor(NVTE_BLOCK_SCALING_1D);
  EXPECT_THROWS(normalize(blocks), "\"z\"", "scaling mode 2", "quantize then");
  nvte_destroy_tensor(blocks);
}

TEST(gradients_against_finite_differences) {
  for (const Case &c : cases(true)) {
    if (c.columns == 1 && !c.rms) continue; /* one value normalizes to zero whatever it is; tested below */
    Inputs in(c);
    Array dz({c.rows, c.columns}, c.gamma), dx({c.rows, c.columns}, c.x), dgamma({c.columns}, c.gamma), dbeta({c.columns}, c.gamma),
        add({c.rows, c.columns}, c.gamma);
    dz.normal();
    add.normal();
    std::vector<double> mus(c.rows), rsigmas(c.rows);
    for (size_t row = 0; row < c.rows; ++row) {
      normalized(c, row_of(in.x, row, c.columns), in.gamma.values(), in.beta.values(), &mus[row], &rsigmas[row]);
      in.mu.set(row, mus[row]);
      in.rsigma.set(row, rsigmas[row]);
    }
    const bool with_add = c.rms && c.rows % 2 == 1;
    check::with_workspace([&](NVTETensor workspace) {
      if (with_add) {
        nvte_rmsnorm_bwd_add(dz, in.x, add, in.rsigma, in.gamma, dx, dgamma, workspace, 132, c.zero_centered, nullptr);
      } else if (c.rms) {
        nvte_rmsnorm_bwd(dz, in.x, in.rsigma, in.gamma, dx, dgamma, workspace, 132, c.zero_centered, nullptr);
      } else {
        nvte_layernorm_bwd(dz, in.x, in.mu, in.rsigma, in.gamma, dx, dgamma, dbeta, workspace, 132, c.zero_centered, nullptr);
      }
    });
    std::vector<double> expected_dgamma(c.columns), expected_dbeta(c.columns);
    for (size_t row = 0; row < c.rows; ++row) {
      std::vector<double> x = row_of(in.x, row, c.columns), gamma = in.gamma.values();
      const auto loss = [&] {
        double mu, rsigma, sum = 0;
        const auto z = normalized(c, x, gamma, in.beta.values(), &mu, &rsigma);
        for (size_t i = 0; i < c.columns; ++i) sum += z[i] * dz.get(row * c.columns + i);
        return sum;
      };
      /* A few columns of each row are enough for dx; each costs two rows of work. */
      for (size_t i = 0; i < c.columns; i += 1 + c.columns / 7) {
        const double at = x[i], step = 1e-5;
        x[i] = at + step;
        const double above = loss();
        x[i] = at - step;
        const double below = loss();
        x[i] = at;
        const double expected = (above - below) / (2 * step) + (with_add ? add.get(row * c.columns + i) : 0);
        EXPECT(check::close(dx.get(row * c.columns + i), expected, 2 * check::rounding(c.x), 3e-5));
      }
      for (size_t i = 0; i < c.columns; ++i) {
        const double slope = dz.get(row * c.columns + i);
        expected_dgamma[i] += slope * (x[i] - mus[row]) * rsigmas[row];
        expected_dbeta[i] += slope;
      }
    }
    EXPECT_CLOSE(dgamma.values(), expected_dgamma, check::rounding(c.gamma), 1e-4);
    if (!c.rms) EXPECT_CLOSE(dbeta.values(), expected_dbeta, check::rounding(c.gamma), 1e-4);
  }
}

TEST(a_constant_row_has_no_gradient) {
  const Case c{2, 4, kNVTEFloat32, kNVTEFloat32, kNVTEFloat32, false, false};
  Inputs in(c);
  in.x.fill(3);
  forward(c, in);
  EXPECT_CLOSE(row_of(in.z, 0, 4), in.beta.values(), 0, 1e-6);
  EXPECT(check::close(in.rsigma.get(0), 1 / std::sqrt(kEpsilon), 1e-5, 0));
}

TEST(not_a_number_stays_in_its_row) {
  const Case c{3, 20, kNVTEBFloat16, kNVTEBFloat16, kNVTEBFloat16, false, false};
  Inputs in(c);
  in.x.set(25, NAN);
  forward(c, in);
  for (size_t i = 0; i < 60; ++i) EXPECT(std::isnan(in.z.get(i)) == (i / 20 == 1));
}

TEST(equal_bits_every_time) {
  const Case c{500, 96, kNVTEFloat32, kNVTEFloat32, kNVTEFloat32, false, false};
  Inputs in(c);
  forward(c, in);
  Array dz({500, 96}, kNVTEFloat32), dx({500, 96}, kNVTEFloat32), dgamma({96}, kNVTEFloat32), dbeta({96}, kNVTEFloat32);
  dz.normal();
  std::vector<double> first;
  for (int round = 0; round < 4; ++round) {
    check::with_workspace([&](NVTETensor workspace) {
      nvte_layernorm_bwd(dz, in.x, in.mu, in.rsigma, in.gamma, dx, dgamma, dbeta, workspace, 132, false, nullptr);
    });
    if (round == 0) first = dgamma.values();
    EXPECT(dgamma.values() == first);
  }
}

TEST(no_rows) {
  const Case c{0, 8, kNVTEFloat32, kNVTEFloat32, kNVTEFloat32, false, false};
  Inputs in(c);
  Array dz({0, 8}, kNVTEFloat32), dx({0, 8}, kNVTEFloat32), dgamma({8}, kNVTEFloat32), dbeta({8}, kNVTEFloat32);
  Array forward_workspace({1}, kNVTEByte), backward_workspace({64}, kNVTEByte), no_mu({0}, kNVTEFloat32), no_rsigma({0}, kNVTEFloat32);
  alignas(16) float cell = 0; /* where a tuned kernel would read */
  no_mu.record(kNVTERowwiseData, &cell, kNVTEFloat32, {0});
  no_rsigma.record(kNVTERowwiseData, &cell, kNVTEFloat32, {0});
  nvte_layernorm_fwd(in.x, in.gamma, in.beta, 0, in.z, no_mu, no_rsigma, forward_workspace, 1, false, nullptr);
  dgamma.fill(7);
  nvte_layernorm_bwd(dz, in.x, no_mu, no_rsigma, in.gamma, dx, dgamma, dbeta, backward_workspace, 1, false, nullptr);
  EXPECT_CLOSE(dgamma.values(), std::vector<double>(8, 0), 0, 0);
}

TEST(refusals) {
  const Case c{4, 8, kNVTEFloat32, kNVTEFloat32, kNVTEFloat32, false, false};
  Inputs in(c);
  Unset query, unset;
  Array flat({32}, kNVTEFloat32), short_gamma({7}, kNVTEFloat32), bf16_gamma({8}, kNVTEBFloat16), wrong_z({8, 4}, kNVTEFloat32),
      long_mu({5}, kNVTEFloat32), bf16_mu({4}, kNVTEBFloat16), bf16_x({4, 8}, kNVTEBFloat16), workspace({32}, kNVTEByte);
  const auto fwd = [&](NVTETensor x, NVTETensor gamma, NVTETensor beta, float epsilon, NVTETensor z, NVTETensor mu, NVTETensor w) {
    nvte_layernorm_fwd(x, gamma, beta, epsilon, z, mu, in.rsigma, w, 1, false, nullptr);
  };
  EXPECT_THROWS(fwd(flat, in.gamma, in.beta, 0, in.z, in.mu, query), "nvte_layernorm_fwd", "\"x\"", "(tokens, hidden)", "(32)");
  EXPECT_THROWS(fwd(in.x, short_gamma, in.beta, 0, in.z, in.mu, query), "\"gamma\"", "(8)", "(7)");
  EXPECT_THROWS(fwd(in.x, in.gamma, bf16_gamma, 0, in.z, in.mu, query), "\"beta\"", "Float32", "BFloat16");
  EXPECT_THROWS(fwd(in.x, in.gamma, in.beta, -1, in.z, in.mu, query), "\"epsilon\"", "-1");
  EXPECT_THROWS(fwd(in.x, in.gamma, in.beta, NAN, in.z, in.mu, query), "\"epsilon\"", "nan");
  EXPECT_THROWS(fwd(in.x, in.gamma, in.beta, 0, wrong_z, in.mu, query), "\"z\"", "(4, 8)", "(8, 4)");
  EXPECT_THROWS(fwd(in.x, in.gamma, in.beta, 0, in.z, long_mu, query), "\"mu\"", "(4)", "(5)");
  EXPECT_THROWS(fwd(in.x, in.gamma, in.beta, 0, in.z, bf16_mu, query), "\"mu\"", "Float32", "BFloat16");
  EXPECT_THROWS(fwd(bf16_x, in.gamma, in.beta, 0, in.z, in.mu, query), "Unavailable kernel", "gamma Float32", "x BFloat16");
  EXPECT_THROWS(fwd(in.x, in.gamma, in.beta, 0, in.z, in.mu, nullptr), "\"workspace\"", "Invalid tensor.");
  EXPECT_THROWS(fwd(in.x, in.gamma, in.beta, 0, in.z, in.mu, workspace), "\"workspace\"", "exactly (33)", "(32)");
  EXPECT_THROWS(fwd(nullptr, in.gamma, in.beta, 0, in.z, in.mu, query), "\"x\"", "Invalid tensor.");
  Array described_x({4, 8}, kNVTEFloat32);
  described_x.record(kNVTERowwiseData, nullptr, kNVTEFloat32, {4, 8});
  fwd(described_x, in.gamma, in.beta, 0, in.z, in.mu, query); /* a query needs no data */
  EXPECT_EQUAL(shape_text(nvte_tensor_shape(query)), std::string("(33)"));
  EXPECT_EQUAL(nvte_tensor_type(query), kNVTEByte);
  Array right({33}, kNVTEByte), right_query({33}, kNVTEByte);
  EXPECT_THROWS(fwd(described_x, in.gamma, in.beta, 0, in.z, in.mu, right), "\"x\"", "no data");
  right_query.record(kNVTERowwiseData, nullptr, kNVTEByte, {33});
  EXPECT_THROWS(fwd(in.x, in.gamma, in.beta, 0, in.z, in.mu, right_query), "\"workspace\"", "without data");

  Unset bwd_query;
  Array dz({4, 8}, kNVTEFloat32), dx({4, 8}, kNVTEFloat32), dgamma({8}, kNVTEFloat32), bf16_dz({4, 8}, kNVTEBFloat16);
  EXPECT_THROWS(nvte_rmsnorm_bwd(bf16_dz, in.x, in.rsigma, in.gamma, dx, dgamma, bwd_query, 1, false, nullptr), "nvte_rmsnorm_bwd", "\"dz\"", "BFloat16");
  EXPECT_THROWS(nvte_rmsnorm_bwd(dz, in.x, in.rsigma, in.gamma, wrong_z, dgamma, bwd_query, 1, false, nullptr), "\"dx\"", "(8, 4)");
  EXPECT_THROWS(nvte_rmsnorm_bwd(dz, in.x, in.rsigma, in.gamma, dx, short_gamma, bwd_query, 1, false, nullptr), "\"dgamma\"", "(7)");
  EXPECT_THROWS(nvte_rmsnorm_bwd(dz, bf16_x, in.rsigma, in.gamma, dx, dgamma, bwd_query, 1, false, nullptr), "Unavailable kernel", "x BFloat16");
  EXPECT_THROWS(nvte_rmsnorm_bwd_add(dz, in.x, wrong_z, in.rsigma, in.gamma, dx, dgamma, bwd_query, 1, false, nullptr), "\"add\"", "(8, 4)");
  EXPECT_THROWS(nvte_layernorm_bwd(dz, in.x, in.mu, in.rsigma, in.gamma, dx, dgamma, short_gamma, bwd_query, 1, false, nullptr), "\"dbeta\"", "(7)");
  EXPECT_THROWS(nvte_rmsnorm_fwd(in.x, in.gamma, -2, in.z, in.rsigma, bwd_query, 1, false, nullptr), "nvte_rmsnorm_fwd", "\"epsilon\"");
}
