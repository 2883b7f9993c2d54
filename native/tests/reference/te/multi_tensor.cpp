/* Norms, scaling and optimizers over lists, against double precision. */
#include <deque>

#include "check.h"
#include "runtime/fp8.h"

using namespace chagres::reference;
using check::Array;
using check::Unset;

namespace {

/* One list of tensors of the given sizes. */
class List {
 public:
  List(const std::vector<size_t> &sizes, NVTEDType dtype) {
    for (const size_t size : sizes) {
      arrays_.emplace_back(std::vector<size_t>{size}, dtype);
      handles_.push_back(arrays_.back());
    }
  }
  List &normal(double scale = 1, double mean = 0) {
    for (Array &array : arrays_) array.normal(scale, mean);
    return *this;
  }
  List &fill(double value) {
    for (Array &array : arrays_) array.fill(value);
    return *this;
  }
  List &absolute() {
    for (Array &array : arrays_) {
      for (size_t i = 0; i < array.count(); ++i) array.set(i, std::fabs(array.get(i)));
    }
    return *this;
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (const Array &array : arrays_) {
      const std::vector<double> some = array.values();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  Array &operator[](size_t j) { return arrays_[j]; }
  NVTETensor *handles() { return handles_.data(); }

 private:
  std::deque<Array> arrays_;
  std::vector<NVTETensor> handles_;
};

struct Cell {
  Cell(NVTEDType dtype, double value) : array({1}, dtype) { array.set(0, value); }
  operator NVTETensor() const { return array; }
  double get() const { return array.get(0); }
  Array array;
};

const std::vector<size_t> kSizes = {1, 17, 16384, 40001, 5};

struct Hyper {
  float lr = 0.01f, beta1 = 0.9f, beta2 = 0.98f, epsilon = 1e-6f, decay = 0.1f;
  int step = 3, mode = 1;
};

/* One Adam step of one element in double. */
void adam_exact(const Hyper &h, double g, double &p, double &m, double &v) {
  if (h.mode == 0) g += h.decay * p;
  m = h.beta1 * m + (1 - h.beta1) * g;
  v = h.beta2 * v + (1 - h.beta2) * g * g;
  const double c1 = 1 - std::pow(h.beta1, h.step), c2 = 1 - std::pow(h.beta2, h.step);
  const double update = m / c1 / (std::sqrt(v / c2) + h.epsilon) + (h.mode == 1 ? h.decay * p : 0);
  p -= h.lr * update;
}

struct AdamCase {
  NVTEDType g, p, moments;
  bool master;
};

const AdamCase kAdamCases[] = {{kNVTEFloat32, kNVTEFloat32, kNVTEFloat32, false}, {kNVTEFloat32, kNVTEBFloat16, kNVTEFloat32, true},
                               {kNVTEBFloat16, kNVTEBFloat16, kNVTEFloat32, true}, {kNVTEFloat16, kNVTEFloat16, kNVTEBFloat16, true},
                               {kNVTEBFloat16, kNVTEBFloat16, kNVTEBFloat16, false}};

}  // namespace

TEST(norms) {
  for (const NVTEDType dtype : {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16}) {
    for (const int chunk : {1000, 65536}) {
      List x(kSizes, dtype);
      x.normal();
      Cell flag(kNVTEInt32, 0), ret(kNVTEFloat32, 0), inv_scale(kNVTEFloat32, 0.25);
      const int max_chunks = (40001 + chunk - 1) / chunk;
      Array output({320}, kNVTEFloat32), partial({kSizes.size() * static_cast<size_t>(max_chunks)}, kNVTEFloat32), norms({kSizes.size()}, kNVTEFloat32);
      NVTETensor *lists[] = {x.handles()};
      std::vector<double> expected;
      double all = 0;
      for (size_t j = 0; j < kSizes.size(); ++j) {
        double sum = 0;
        for (const double value : x[j].values()) sum += value * value;
        expected.push_back(std::sqrt(sum));
        all += sum;
      }
      output.fill(0);
      partial.fill(0);
      nvte_multi_tensor_l2norm_cuda(chunk, flag, lists, 1, kSizes.size(), output, partial, ret, norms, 1, max_chunks, nullptr);
      EXPECT(check::close(ret.get(), std::sqrt(all), 1e-6, 0));
      EXPECT_CLOSE(norms.values(), expected, 1e-6, 0);
      output.fill(0);
      nvte_multi_tensor_unscale_l2norm_cuda(chunk, flag, lists, 1, kSizes.size(), output, Unset(), ret, Unset(), inv_scale, 0, 0, nullptr);
      EXPECT(check::close(ret.get(), 0.25 * std::sqrt(all), 1e-6, 0));
      /* What "output" held is added, as on the GPU. */
      nvte_multi_tensor_l2norm_cuda(chunk, flag, lists, 1, kSizes.size(), output, Unset(), ret, Unset(), 0, 0, nullptr);
      EXPECT(check::close(ret.get(), std::sqrt(all * (1 + 1.0 / 16)), 1e-6, 0));
      EXPECT_EQUAL(flag.get(), 0.0);
      x[2].set(77, NAN);
      nvte_multi_tensor_l2norm_cuda(chunk, flag, lists, 1, kSizes.size(), output, Unset(), ret, Unset(), 0, 0, nullptr);
      EXPECT_EQUAL(flag.get(), 1.0);
      EXPECT(std::isnan(ret.get()));
    }
  }
}

TEST(norm_of_more_blocks_than_a_launch_has) {
  List x(std::vector<size_t>(500, 11), kNVTEFloat32);
  x.fill(2);
  Cell flag(kNVTEInt32, 0), ret(kNVTEFloat32, 0);
  Array output({320}, kNVTEFloat32);
  NVTETensor *lists[] = {x.handles()};
  for (const int chunk : {1, 3, 11}) {
    output.fill(0);
    nvte_multi_tensor_l2norm_cuda(chunk, flag, lists, 1, 500, output, Unset(), ret, Unset(), 0, 0, nullptr);
    EXPECT(check::close(ret.get(), std::sqrt(500 * 11 * 4.0), 1e-6, 0));
  }
}

TEST(scaling) {
  for (const NVTEDType from : {kNVTEFloat32, kNVTEBFloat16}) {
    for (const NVTEDType to : {kNVTEFloat32, kNVTEFloat16}) {
      List in(kSizes, from), out(kSizes, to);
      in.normal();
      Cell flag(kNVTEInt32, 0), scale(kNVTEFloat32, 0.5);
      NVTETensor *lists[] = {in.handles(), out.handles()};
      nvte_multi_tensor_scale_cuda(65536, flag, lists, 2, kSizes.size(), 3, nullptr);
      std::vector<double> expected = in.values();
      for (double &value : expected) value *= 3;
      EXPECT_CLOSE(out.values(), expected, check::rounding(to), 1e-7);
      EXPECT_EQUAL(flag.get(), 0.0);
      in[1].set(3, INFINITY);
      nvte_multi_tensor_scale_tensor_cuda(65536, flag, lists, 2, kSizes.size(), scale, nullptr);
      EXPECT(check::close(out[3].get(9), in[3].get(9) * 0.5, check::rounding(to), 1e-7));
      EXPECT_EQUAL(flag.get(), 1.0);
    }
  }
}

TEST(adam_steps) {
  for (const AdamCase &c : kAdamCases) {
    for (const int mode : {0, 1}) {
      Hyper h;
      h.mode = mode;
      List g(kSizes, c.g), p(kSizes, c.p), m(kSizes, c.moments), v(kSizes, c.moments), master(kSizes, kNVTEFloat32);
      g.normal();
      p.normal();
      m.normal(0.1);
      v.normal(0.1).absolute();
      master.normal();
      std::vector<double> eg = g.values(), ep = c.master ? master.values() : p.values(), em = m.values(), ev = v.values();
      for (size_t i = 0; i < eg.size(); ++i) adam_exact(h, eg[i], ep[i], em[i], ev[i]);
      const Unset flag; /* is not looked at */
      NVTETensor *lists[] = {g.handles(), p.handles(), m.handles(), v.handles(), master.handles()};
      nvte_multi_tensor_adam_cuda(65536, flag, lists, c.master ? 5 : 4, kSizes.size(), h.lr, h.beta1, h.beta2, h.epsilon, h.step, mode, 1, h.decay, nullptr);
      EXPECT_CLOSE(m.values(), em, check::rounding(c.moments), 1e-6);
      EXPECT_CLOSE(v.values(), ev, check::rounding(c.moments), 1e-6);
      EXPECT_CLOSE(p.values(), ep, check::rounding(c.p), 1e-6);
      if (c.master) EXPECT_CLOSE(master.values(), ep, 1e-6, 1e-6);
    }
  }
}

TEST(capturable_adam) {
  for (const bool with_master : {false, true}) {
    Hyper h;
    List g(kSizes, kNVTEBFloat16), p(kSizes, kNVTEBFloat16), m(kSizes, kNVTEFloat32), v(kSizes, kNVTEFloat32), master(kSizes, kNVTEFloat32);
    g.normal(8);
    p.normal();
    m.fill(0);
    v.fill(0);
    master.normal();
    std::vector<double> eg = g.values(), ep = with_master ? master.values() : p.values(), em = m.values(), ev = v.values();
    for (size_t i = 0; i < eg.size(); ++i) adam_exact(h, eg[i] /= 8, ep[i], em[i], ev[i]);
    Cell noop(kNVTEInt32, 1), lr(kNVTEFloat32, h.lr), step(kNVTEInt32, h.step), inv_scale(kNVTEFloat32, 0.125);
    NVTETensor *lists[] = {g.handles(), p.handles(), m.handles(), v.handles(), master.handles()};
    const auto call = [&] {
      if (with_master) {
        nvte_multi_tensor_adam_capturable_master_cuda(65536, noop, lists, 5, kSizes.size(), lr, h.beta1, h.beta2, h.epsilon, step, 1, 1, h.decay, inv_scale, nullptr);
      } else {
        nvte_multi_tensor_adam_capturable_cuda(65536, noop, lists, 4, kSizes.size(), lr, h.beta1, h.beta2, h.epsilon, step, 1, 1, h.decay, inv_scale, nullptr);
      }
    };
    const std::vector<double> before = p.values();
    call();
    EXPECT(p.values() == before); /* the noop flag is set */
    noop.array.set(0, 0);
    call();
    EXPECT_CLOSE(g.values(), eg, 0x1p-8, 0);
    EXPECT_CLOSE(m.values(), em, 1e-6, 1e-6);
    EXPECT_CLOSE(v.values(), ev, 1e-6, 1e-6);
    EXPECT_CLOSE(p.values(), ep, 0x1p-8, 1e-6);
  }
}

TEST(adam_with_parameter_remainders_keeps_float_precision) {
  Hyper h;
  List g(kSizes, kNVTEFloat32), p(kSizes, kNVTEBFloat16), m(kSizes, kNVTEFloat32), v(kSizes, kNVTEFloat32), remainder(kSizes, kNVTEInt16),
      start(kSizes, kNVTEFloat32);
  g.normal();
  m.fill(0);
  v.fill(0);
  start.normal();
  for (size_t j = 0; j < kSizes.size(); ++j) {
    for (size_t i = 0; i < kSizes[j]; ++i) {
      const uint32_t bits = bit_cast<uint32_t>(start[j].as<float>()[i]);
      const auto low = static_cast<int16_t>(bits & 0xffff);
      remainder[j].as<int16_t>()[i] = low;
      p[j].as<uint16_t>()[i] = static_cast<uint16_t>((bits >> 16) + (low < 0));
    }
  }
  std::vector<double> eg = g.values(), ep = start.values(), em = m.values(), ev = v.values();
  for (size_t i = 0; i < eg.size(); ++i) adam_exact(h, eg[i], ep[i], em[i], ev[i]);
  const Unset flag; /* is not looked at */
  NVTETensor *lists[] = {g.handles(), p.handles(), m.handles(), v.handles(), remainder.handles()};
  nvte_multi_tensor_adam_param_remainder_cuda(65536, flag, lists, 5, kSizes.size(), h.lr, h.beta1, h.beta2, h.epsilon, h.step, 1, 1, h.decay, nullptr);
  EXPECT_CLOSE(p.values(), ep, 0x1p-8, 1e-7);
  std::vector<double> joined;
  for (size_t j = 0; j < kSizes.size(); ++j) {
    for (size_t i = 0; i < kSizes[j]; ++i) {
      const int16_t low = remainder[j].as<int16_t>()[i];
      const auto upper = static_cast<uint16_t>(p[j].as<uint16_t>()[i] - (low < 0));
      joined.push_back(bit_cast<float>(static_cast<uint32_t>(upper) << 16 | static_cast<uint16_t>(low)));
    }
  }
  EXPECT_CLOSE(joined, ep, 1e-6, 1e-6);
}

TEST(adam_on_fp8_weights) {
  for (const NVTEDType fp8 : {kNVTEFloat8E4M3, kNVTEFloat8E5M2}) {
    const Hyper h;
    List g(kSizes, kNVTEBFloat16), m(kSizes, kNVTEFloat32), v(kSizes, kNVTEFloat32), master(kSizes, kNVTEFloat32), p(kSizes, fp8);
    const std::vector<size_t> ones(kSizes.size(), 1);
    List scale(ones, kNVTEFloat32), amax(ones, kNVTEFloat32), inverse(ones, kNVTEFloat32);
    g.normal();
    master.normal();
    m.normal();
    v.normal().absolute();
    scale.fill(16);
    amax.fill(0);
    amax[1].set(0, 1000); /* is larger than what comes, and stays */
    std::vector<double> eg = g.values(), ep = master.values(), em = m.values(), ev = v.values();
    for (size_t i = 0; i < eg.size(); ++i) adam_exact(h, eg[i], ep[i], em[i], ev[i]);
    Cell flag(kNVTEInt32, 1); /* TE's kernel does not look at it */
    NVTETensor *lists[] = {g.handles(), p.handles(), m.handles(), v.handles(), master.handles(), scale.handles(), amax.handles(), inverse.handles()};
    nvte_multi_tensor_adam_fp8_cuda(65536, flag, lists, 8, kSizes.size(), h.lr, h.beta1, h.beta2, h.epsilon, h.step, 1, 1, h.decay, fp8, nullptr);
    EXPECT_CLOSE(master.values(), ep, 1e-6, 1e-6);
    EXPECT_CLOSE(m.values(), em, 1e-6, 1e-6);
    EXPECT_CLOSE(v.values(), ev, 1e-6, 1e-6);
    for (size_t j = 0; j < kSizes.size(); ++j) {
      double largest = j == 1 ? 1000 : 0;
      for (size_t i = 0; i < kSizes[j]; ++i) {
        const auto value = static_cast<float>(master[j].get(i));
        largest = std::max(largest, std::fabs(static_cast<double>(value)));
        const uint8_t code = fp8 == kNVTEFloat8E4M3 ? float_to_e4m3(value * 16) : float_to_e5m2(value * 16);
        EXPECT(p[j].as<uint8_t>()[i] == code);
      }
      EXPECT(amax[j].get(0) == largest);
      EXPECT(inverse[j].get(0) == 1.0 / 16);
    }
    EXPECT_THROWS(nvte_multi_tensor_adam_fp8_cuda(64, flag, lists, 5, 1, 0, 0, 0, 0, 1, 1, 1, 0, fp8, nullptr), "8 tensor lists", "got 5");
    EXPECT_THROWS(nvte_multi_tensor_adam_fp8_cuda(64, flag, lists, 8, 1, 0, 0, 0, 0, 1, 1, 1, 0, kNVTEBFloat16, nullptr), "\"fp8_dtype\"", "BFloat16");
    std::swap(lists[1], lists[0]);
    EXPECT_THROWS(nvte_multi_tensor_adam_fp8_cuda(64, flag, lists, 8, 1, 0, 0, 0, 0, 1, 1, 1, 0, fp8, nullptr), "\"g[0]\"", "16 or 32 bits");
    std::swap(lists[1], lists[0]);
    lists[6] = m.handles();
    EXPECT_THROWS(nvte_multi_tensor_adam_fp8_cuda(64, flag, lists, 8, 2, 0, 0, 0, 0, 1, 1, 1, 0, fp8, nullptr), "\"amax[1]\"", "1 element");
  }
}

TEST(stochastic_gradient_descent) {
  for (int variant = 0; variant < 32; ++variant) {
    const bool nesterov = variant & 1, first = variant & 2, after = variant & 4, with_momentum = variant & 8, copy = variant & 16;
    const float wd = 0.1f, momentum = with_momentum ? 0.9f : 0, dampening = nesterov ? 0 : 0.2f, lr = 0.05f, scale = 0.5f;
    const NVTEDType gradient = copy ? kNVTEFloat16 : kNVTEFloat32;
    List g(kSizes, gradient), p(kSizes, kNVTEFloat32), velocity(kSizes, kNVTEFloat32), half(kSizes, kNVTEFloat16);
    g.normal();
    p.normal();
    velocity.normal();
    std::vector<double> eg = g.values(), ep = p.values(), ev = velocity.values();
    for (size_t i = 0; i < eg.size(); ++i) {
      double d = eg[i] * scale + (after ? 0 : wd * ep[i]);
      if (with_momentum) {
        ev[i] = first ? d : ev[i] * momentum + (1 - dampening) * d;
        d = nesterov ? d + momentum * ev[i] : ev[i];
      }
      ep[i] -= lr * (d + (after ? wd * ep[i] : 0));
    }
    Cell noop(kNVTEInt32, 0);
    NVTETensor *lists[] = {g.handles(), p.handles(), velocity.handles(), half.handles()};
    nvte_multi_tensor_sgd_cuda(65536, noop, lists, copy ? 4 : 3, kSizes.size(), wd, momentum, dampening, lr, nesterov, first, after, scale, nullptr);
    EXPECT_CLOSE(p.values(), ep, 1e-6, 1e-6);
    EXPECT_CLOSE(velocity.values(), ev, 1e-6, 1e-6);
    if (copy) EXPECT_CLOSE(half.values(), ep, 0x1p-11, 1e-6);
    noop.array.set(0, 1);
    const std::vector<double> before = p.values();
    nvte_multi_tensor_sgd_cuda(65536, noop, lists, copy ? 4 : 3, kSizes.size(), wd, momentum, dampening, lr, nesterov, first, after, scale, nullptr);
    EXPECT(p.values() == before);
  }
}

TEST(refusals) {
  List g({4, 3}, kNVTEFloat32), p({4, 3}, kNVTEFloat32), m({4, 3}, kNVTEFloat32), v({4, 3}, kNVTEBFloat16), other({4, 2}, kNVTEFloat32),
      none({0}, kNVTEFloat32), bf16({4, 3}, kNVTEBFloat16);
  Cell flag(kNVTEInt32, 0), ret(kNVTEFloat32, 0);
  Array output({320}, kNVTEFloat32), small({3}, kNVTEFloat32);
  NVTETensor *moments[] = {g.handles(), p.handles(), m.handles(), v.handles()};
  NVTETensor *sizes[] = {g.handles(), other.handles(), m.handles(), m.handles()};
  NVTETensor *good[] = {g.handles(), p.handles(), m.handles(), m.handles(), bf16.handles()};
  NVTETensor *empty[] = {none.handles()};
  const auto adam = [&](NVTETensor **lists, size_t count, NVTETensor noop, int mode, int chunk) {
    nvte_multi_tensor_adam_cuda(chunk, noop, lists, count, 2, 0.1f, 0.9f, 0.9f, 0, 1, mode, 1, 0, nullptr);
  };
  EXPECT_THROWS(adam(moments, 4, flag, 1, 64), "nvte_multi_tensor_adam_cuda", "moments", "tensor 0", "Float32 and BFloat16");
  EXPECT_THROWS(adam(sizes, 4, flag, 1, 64), "\"p[1]\"", "3 elements", "got 2");
  EXPECT_THROWS(adam(good, 3, flag, 1, 64), "4 or 5", "got 3");
  EXPECT_THROWS(adam(good, 5, flag, 1, 64), "\"p_master[0]\"", "Float32", "BFloat16");
  EXPECT_THROWS(adam(good, 4, nullptr, 1, 64), "\"noop_flag\"");
  EXPECT_THROWS(adam(good, 4, flag, 2, 64), "\"mode\"", "got 2");
  EXPECT_THROWS(adam(good, 4, flag, 1, 0), "\"chunk_size\"", "got 0");
  EXPECT_THROWS(adam(nullptr, 4, flag, 1, 64), "\"tensor_lists\"", "NULL");
  EXPECT_THROWS(nvte_multi_tensor_l2norm_cuda(64, flag, empty, 1, 1, output, Unset(), ret, Unset(), 0, 0, nullptr), "\"x[0]\"", "no data");
  NVTETensor *one[] = {g.handles()};
  EXPECT_THROWS(nvte_multi_tensor_l2norm_cuda(64, flag, one, 1, 2, small, Unset(), ret, Unset(), 0, 0, nullptr), "\"output\"", "320", "got 3");
  EXPECT_THROWS(nvte_multi_tensor_l2norm_cuda(2, flag, one, 1, 2, output, small, ret, small, 1, 1, nullptr), "\"ret_per_tensor\"", "2 elements");
  EXPECT_THROWS(nvte_multi_tensor_l2norm_cuda(64, flag, one, 2, 2, output, Unset(), ret, Unset(), 0, 0, nullptr), "Expected 1 tensor lists, got 2");
  NVTETensor *mixed[] = {g.handles(), bf16.handles(), bf16.handles()};
  EXPECT_THROWS(nvte_multi_tensor_sgd_cuda(64, flag, mixed, 3, 2, 0, 0, 0, 0.1f, 0, 0, 0, 1, nullptr), "Unsupported dtypes", "g Float32, p BFloat16");
}
