/* Amaxes and scales of the recipes, step by step in double precision where values are computed at all. */
#include "fp8_matrix.h"

using namespace chagres::reference;
using check::Array;
using check::Fp8Matrix;
using check::Parts;
using Config = check::QuantizationConfig;

namespace {

constexpr auto update = nvte_delayed_scaling_recipe_amax_and_scale_update;
constexpr auto update_after_reduction = nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction;
constexpr double kFloatMax = std::numeric_limits<float>::max();

double scale_for(float amax, NVTEDType dtype, bool power_of_2, float epsilon) {
  Fp8Matrix y({1, 1}, dtype);
  y.amax.fill(amax);
  y.scale.fill(-1);
  nvte_compute_scale_from_amax(y, Config(power_of_2, epsilon), nullptr);
  return y.scale.get(0);
}

}  // namespace

TEST(amax_of_a_tensor) {
  for (const NVTEDType dtype : {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16}) {
    for (const size_t count : {1, 31, 8192, 20001}) {
      Array x({count}, dtype);
      Fp8Matrix y({count}, kNVTEFloat8E4M3);
      x.normal();
      y.amax.fill(1e9);
      nvte_compute_amax(x, y, nullptr);
      EXPECT_EQUAL(y.amax.get(0), check::largest_of(x.values()));
      x.set(0, NAN);
      nvte_compute_amax_with_config(x, y, nullptr, nullptr);
      EXPECT(!std::isnan(y.amax.get(0)));
    }
  }
  Array none({4}, kNVTEFloat32), x({3}, kNVTEFloat32), noop({1}, kNVTEFloat32);
  Fp8Matrix y({3}, kNVTEFloat8E4M3);
  y.amax.fill(7);
  noop.fill(1);
  x.fill(2);
  nvte_compute_amax_with_config(x, y, Config().noop(noop), nullptr);
  EXPECT_EQUAL(y.amax.get(0), 7.0);
  none.record(kNVTERowwiseData, none.data(), kNVTEFloat32, {0, 4});
  nvte_compute_amax(none, y, nullptr);
  EXPECT_EQUAL(y.amax.get(0), 0.0);
  float cell = 9;
  const check::Known known(cell);
  Array plain({3}, kNVTEBFloat16);
  plain.record(kNVTEAmax, &cell, kNVTEFloat32, {1});
  nvte_compute_amax(x, plain, nullptr);
  EXPECT_EQUAL(cell, 2.0f);
}

TEST(scale_from_amax) {
  for (const NVTEDType dtype : {kNVTEFloat8E4M3, kNVTEFloat8E5M2}) {
    const double largest = fp8_max(dtype);
    for (const float amax : {1.0f, 3.0f, 0.01f, 448.0f, 1e30f, 1e-30f}) {
      EXPECT_EQUAL(scale_for(amax, dtype, false, 0), static_cast<double>(static_cast<float>(largest) / amax));
      EXPECT_EQUAL(scale_for(amax, dtype, true, 0), std::exp2(std::floor(std::log2(largest / amax))));
    }
    EXPECT_EQUAL(scale_for(0, dtype, false, 0), 1.0);
    EXPECT_EQUAL(scale_for(INFINITY, dtype, true, 0), 1.0);
    EXPECT_EQUAL(scale_for(NAN, dtype, true, 0.5f), 1.0);
    EXPECT_EQUAL(scale_for(0, dtype, false, 0.5f), largest / 0.5);
    EXPECT_EQUAL(scale_for(2, dtype, false, 0.5f), largest / 2);
    EXPECT_EQUAL(scale_for(1e-40f, dtype, false, 0), kFloatMax);
    EXPECT_EQUAL(scale_for(1e-40f, dtype, true, 0), std::exp2(127));
  }
  Array noop({1}, kNVTEFloat32);
  noop.fill(1);
  Fp8Matrix y({1, 1}, kNVTEFloat8E4M3, Parts::Rowwise, 5);
  y.amax.fill(1);
  nvte_compute_scale_from_amax(y, Config().noop(noop), nullptr);
  EXPECT_EQUAL(y.scale.get(0), 5.0);
}

TEST(history_rolls_and_scale_follows) {
  for (const bool most_recent : {false, true}) {
    for (const size_t length : {1, 2, 3, 300}) {
      Array history({length, 5}, kNVTEFloat32), scale({5}, kNVTEFloat32), updated({length, 5}, kNVTEFloat32), next({5}, kNVTEFloat32);
      for (size_t i = 0; i < history.count(); ++i) history.set(i, 0.5 + static_cast<double>((i * 37) % 101));
      for (size_t i = 0; i < length; ++i) history.set(i * 5 + 1, 0);
      history.set(2, INFINITY);
      history.set(3, 1e-44);
      scale.fill(3);
      const std::vector<double> before = history.values();
      update(history, scale, updated, next, most_recent ? "most_recent" : "max", kNVTEFloat8E4M3, 1, nullptr);
      for (size_t j = 0; j < 5; ++j) {
        double largest = 0;
        for (size_t i = 0; i < length; ++i) {
          const double moved = i + 1 < length ? before[(i + 1) * 5 + j] : before[j];
          EXPECT_EQUAL(updated.get(i * 5 + j), i == 0 ? 0.0 : moved);
          largest = std::fmax(largest, moved);
        }
        const double amax = most_recent ? before[j] : largest;
        const double expected = amax == 0 || std::isinf(amax) ? 3 : std::fmin(224 / amax, kFloatMax);
        EXPECT(check::close(next.get(j), expected, 1e-7, 0));
      }
      update(history, scale, history, scale, most_recent ? "most_recent" : "max", kNVTEFloat8E4M3, 1, nullptr);
      EXPECT_CLOSE(history.values(), updated.values(), 0, 0);
      EXPECT_CLOSE(scale.values(), next.values(), 0, 0);
    }
  }
}

TEST(update_after_a_reduction) {
  Array first({3, 2}, kNVTEFloat32), second({3, 3}, kNVTEFloat32), scales({2}, kNVTEFloat32), more_scales({3}, kNVTEFloat32), buffer({5}, kNVTEFloat32);
  const double rows[] = {1, 0, 8, 4, 2, 6};
  for (size_t i = 0; i < 6; ++i) first.set(i, rows[i]);
  for (size_t i = 0; i < 9; ++i) second.set(i, static_cast<double>(i + 1));
  scales.fill(9);
  more_scales.fill(9);
  const double reduced[] = {5, 0, 0, 100, NAN};
  for (size_t i = 0; i < 5; ++i) buffer.set(i, reduced[i]);
  update_after_reduction(buffer, {first, second}, {scales, more_scales}, "max", kNVTEFloat8E5M2, 0, nullptr);
  /* Column 0: the reduced 5 comes in, 1 is dropped. Column 1 was idle: it stays, and so does its scale. */
  EXPECT_CLOSE(first.values(), (std::vector<double>{0, 0, 2, 4, 5, 6}), 0, 0);
  EXPECT_CLOSE(scales.values(), (std::vector<double>{57344.0 / 8, 9}), 1e-7, 0);
  /* 0 in the buffer means the tensor's own amax; NaN rolls, and counts for nothing. */
  EXPECT_CLOSE(second.values(), (std::vector<double>{0, 0, 0, 7, 8, 9, 1, 100, NAN}), 0, 0);
  EXPECT_CLOSE(more_scales.values(), (std::vector<double>{57344.0 / 7, 57344.0 / 100, 57344.0 / 9}), 1e-7, 0);
  check::Unset none;
  first.fill(2);
  update_after_reduction(none, {first}, {scales}, "most_recent", kNVTEFloat8E4M3, 2, nullptr);
  EXPECT_CLOSE(scales.values(), (std::vector<double>{56, 56}), 1e-7, 0);
  update_after_reduction(none, {}, {}, "max", kNVTEFloat8E4M3, 0, nullptr);
}

TEST(scales_and_inverses_of_lists) {
  Array amaxes({5}, kNVTEFloat32), scales({5}, kNVTEFloat32), inverses({5}, kNVTEFloat32), flag({1}, kNVTEInt32);
  const double values[] = {2, 0, INFINITY, 1e-45, 7};
  for (size_t i = 0; i < 5; ++i) amaxes.set(i, values[i]);
  NVTETensor lists[3][1] = {{amaxes}, {scales}, {inverses}};
  NVTETensor *pointers[] = {lists[0], lists[1], lists[2]};
  nvte_multi_tensor_compute_scale_and_scale_inv_cuda(64, flag, pointers, 3, 1, 448, 1, 0, nullptr);
  EXPECT_CLOSE(scales.values(), (std::vector<double>{128, 1, 1, 1, 64}), 0, 0);
  EXPECT_CLOSE(inverses.values(), (std::vector<double>{1.0 / 128, 1, 1, 1, 1.0 / 64}), 0, 0);
  EXPECT_THROWS(nvte_multi_tensor_compute_scale_and_scale_inv_cuda(64, flag, pointers, 2, 1, 448, 1, 0, nullptr), "3 tensor lists", "got 2");
}

TEST(refusals) {
  Array x({4}, kNVTEFloat32), history({2, 3}, kNVTEFloat32), scale({3}, kNVTEFloat32), short_scale({2}, kNVTEFloat32), other({3, 3}, kNVTEFloat32),
      half({3}, kNVTEFloat16), square({3, 1}, kNVTEFloat32), flat({6}, kNVTEFloat32);
  Fp8Matrix y({4}, kNVTEFloat8E4M3), no_amax({4}, kNVTEFloat8E4M3), no_scale({4}, kNVTEFloat8E4M3);
  no_amax.data.record(kNVTEAmax, nullptr, kNVTEFloat32, {1});
  no_scale.data.record(kNVTEScale, short_scale.data(), kNVTEFloat32, {2});
  EXPECT_THROWS(nvte_compute_amax(x, x, nullptr), "nvte_compute_amax", "\"output\"", "amax of one Float32", "(0)");
  EXPECT_THROWS(nvte_compute_amax(x, no_amax, nullptr), "\"output\"", "amax", "without data");
  EXPECT_THROWS(nvte_compute_amax(y, y, nullptr), "\"input\"", "Float8E4M3");
  EXPECT_THROWS(nvte_compute_scale_from_amax(y, nullptr, nullptr), "nvte_compute_scale_from_amax", "\"config\"", "NULL");
  EXPECT_THROWS(nvte_compute_scale_from_amax(x, Config(), nullptr), "must be FP8", "Float32");
  EXPECT_THROWS(nvte_compute_scale_from_amax(no_scale, Config(), nullptr), "scale of one Float32", "(2)");
  EXPECT_THROWS(update(history, scale, history, scale, "mean", kNVTEFloat8E4M3, 0, nullptr), "amax_compute_algo", "mean");
  EXPECT_THROWS(update(history, scale, history, scale, nullptr, kNVTEFloat8E4M3, 0, nullptr), "amax_compute_algo", "NULL");
  EXPECT_THROWS(update(history, scale, history, scale, "max", kNVTEBFloat16, 0, nullptr), "fp8_dtype", "BFloat16");
  EXPECT_THROWS(update(flat, scale, history, scale, "max", kNVTEFloat8E4M3, 0, nullptr), "\"amax_history\"", "(6)");
  EXPECT_THROWS(update(history, short_scale, history, scale, "max", kNVTEFloat8E4M3, 0, nullptr), "\"scale\"", "3 elements", "got 2");
  EXPECT_THROWS(update(history, scale, other, scale, "max", kNVTEFloat8E4M3, 0, nullptr), "\"updated_amax_history\"", "(2, 3)", "(3, 3)");
  EXPECT_THROWS(update(history, half, history, scale, "max", kNVTEFloat8E4M3, 0, nullptr), "\"scale\"", "Float16");
  EXPECT_THROWS(update_after_reduction(scale, {history, other}, {scale, scale}, "max", kNVTEFloat8E4M3, 0, nullptr), "one length", "3", "2");
  EXPECT_THROWS(update_after_reduction(short_scale, {history}, {scale}, "max", kNVTEFloat8E4M3, 0, nullptr), "\"amax_reduction_buffer\"", "3 scales", "(2)");
  EXPECT_THROWS(update_after_reduction(scale, {history}, {square}, "max", kNVTEFloat8E4M3, 0, nullptr), "\"scales\"", "one dimension", "(3, 1)");
  EXPECT_THROWS(update_after_reduction(scale, {history}, {}, "max", kNVTEFloat8E4M3, 0, nullptr), "1 and 0");
}
