/* Fused attention in FP8: what it wants beside the data, and results that every rounding leaves as they are. Drawn cases stand
 * beside those of the api. */
#include "check.h"

using check::Array;

namespace {

constexpr size_t kBatch = 2, kLength = 5, kHeads = 2, kDim = 128;
constexpr int kLengths[] = {0, 5, 8}; /* the second sequence has three tokens, and two rows of padding */

void attach(Array &array, NVTETensorParam param, Array &cell) {
  NVTEBasicTensor record = {cell.data(), kNVTEFloat32, chagres::reference::make_shape({1})};
  nvte_set_tensor_param_v2(array.handle(), param, &record, sizeof(record));
}

/* A tensor with scale, inverse and amax. */
struct Scaled {
  Scaled(std::vector<size_t> shape, NVTEDType dtype, double by)
      : array(shape, dtype), scale({1}, kNVTEFloat32), inverse({1}, kNVTEFloat32), amax({1}, kNVTEFloat32) {
    scale.fill(by);
    inverse.fill(1 / by);
    amax.fill(0);
    attach(array, kNVTEScale, scale);
    attach(array, kNVTERowwiseScaleInv, inverse);
    attach(array, kNVTEAmax, amax);
  }
  Array array, scale, inverse, amax;
};

struct Fp8Problem {
  Fp8Problem() {
    nvte_tensor_pack_create(&pack);
    for (Scaled *input : {&q, &k, &v, &d_o}) input->array.normal(1);
    for (size_t i = 0; i < 3; ++i) lengths.set(i, kLengths[i]);
    pack.size = 2;
    NVTEBasicTensor record = {stats.data(), kNVTEFloat32, chagres::reference::make_shape({kBatch, kHeads, kLength, 1})};
    nvte_set_tensor_param_v2(pack.tensors[0], kNVTERowwiseData, &record, sizeof(record));
    record = {rng.data(), kNVTEInt64, chagres::reference::make_shape({2})};
    nvte_set_tensor_param_v2(pack.tensors[1], kNVTERowwiseData, &record, sizeof(record));
  }
  ~Fp8Problem() { nvte_tensor_pack_destroy(&pack); }

  void forward() {
    nvte_fused_attn_fwd(q.array.handle(), k.array.handle(), v.array.handle(), unset, unset, s.array.handle(),
                        o.array.handle(), &pack, lengths.handle(), lengths.handle(), unset, unset, unset, unset, rng.handle(),
                        kLength, kLength, true, false, false, 0.1f, 0, NVTE_BSHD_BSHD_BSHD, NVTE_BSHD,
                        NVTE_QKV_Format_NOT_SET, NVTE_NO_BIAS, NVTE_PADDING_CAUSAL_MASK, NVTE_VANILLA_SOFTMAX, -1, 0, false,
                        workspace.handle(), nullptr);
  }

  void backward() {
    nvte_fused_attn_bwd(q.array.handle(), k.array.handle(), v.array.handle(), o.array.handle(), d_o.array.handle(),
                        s.array.handle(), dp.array.handle(), &pack, dq.array.handle(), dk.array.handle(), dv.array.handle(),
                        unset, unset, lengths.handle(), lengths.handle(), unset, unset, kLength, kLength, 0.1f, 0,
                        NVTE_BSHD_BSHD_BSHD, NVTE_BSHD, NVTE_BSHD, NVTE_BSHD_BSHD_BSHD, NVTE_QKV_Format_NOT_SET,
                        NVTE_QKV_Format_NOT_SET, NVTE_NO_BIAS, NVTE_PADDING_CAUSAL_MASK, NVTE_VANILLA_SOFTMAX, -1, 0, false,
                        false, false, workspace.handle(), nullptr);
  }

  static std::vector<size_t> heads(size_t count) { return {kBatch, kLength, count, kDim}; }
  static size_t at(size_t batch, size_t row, size_t count, size_t head) {
    return ((batch * kLength + row) * count + head) * kDim;
  }

  Scaled q{heads(kHeads), kNVTEFloat8E4M3, 1}, k{heads(1), kNVTEFloat8E4M3, 1}, v{heads(1), kNVTEFloat8E4M3, 1};
  Scaled s{{0}, kNVTEFloat8E4M3, 256}, o{heads(kHeads), kNVTEFloat8E4M3, 1};
  Scaled d_o{heads(kHeads), kNVTEFloat8E5M2, 1}, dp{{0}, kNVTEFloat8E5M2, 64};
  Scaled dq{heads(kHeads), kNVTEFloat8E5M2, 1}, dk{heads(1), kNVTEFloat8E5M2, 1}, dv{heads(1), kNVTEFloat8E5M2, 1};
  Array stats{{kBatch, kHeads, kLength, 1}, kNVTEFloat32}, lengths{{kBatch + 1}, kNVTEInt32}, rng{{2}, kNVTEInt64};
  Array workspace{{1}, kNVTEByte};
  check::Unset unset;
  NVTETensorPack pack = {};
};

}  // namespace

/* The first query of a sequence sees one key: its weight is 1 and its output that key's value, bit by bit. */
TEST(queries_of_one_key) {
  Fp8Problem problem;
  problem.forward();
  for (size_t b = 0; b < kBatch; ++b)
    for (size_t h = 0; h < kHeads; ++h)
      for (size_t c = 0; c < kDim; ++c)
        EXPECT_EQUAL(problem.o.array.get(Fp8Problem::at(b, 0, kHeads, h) + c),
                     problem.v.array.get(Fp8Problem::at(b, 0, 1, 0) + c));
  EXPECT_EQUAL(problem.s.amax.get(0), 1.0);
  EXPECT(problem.o.amax.get(0) > 0);
  for (size_t row = 3; row < kLength; ++row)
    for (size_t c = 0; c < kDim; ++c) EXPECT_EQUAL(problem.o.array.get(Fp8Problem::at(1, row, kHeads, 1) + c), 0.0);
}

/* Where one query alone has a gradient, and one key alone that it sees, the value's gradient is the output's; scores have none. */
TEST(gradients_of_one_key) {
  Fp8Problem problem;
  problem.d_o.array.fill(0);
  for (size_t c = 0; c < kDim; ++c) problem.d_o.array.set(Fp8Problem::at(0, 0, kHeads, 1) + c, c % 7);
  problem.forward();
  problem.backward();
  for (size_t c = 0; c < kDim; ++c) {
    EXPECT_EQUAL(problem.dv.array.get(Fp8Problem::at(0, 0, 1, 0) + c), static_cast<double>(c % 7));
    EXPECT_EQUAL(problem.dv.array.get(Fp8Problem::at(0, 1, 1, 0) + c), 0.0);
  }
  EXPECT_EQUAL(problem.dv.amax.get(0), 6.0);
  for (const double value : problem.dq.array.values()) EXPECT(std::fabs(value) <= 0.25);
}

TEST(cells_that_are_missing) {
  const auto text_without = [](Scaled Fp8Problem::*of, NVTETensorParam param, bool backward) {
    Fp8Problem problem;
    if (backward) problem.forward();
    NVTEBasicTensor nothing = {nullptr, kNVTEFloat32, chagres::reference::make_shape({0})};
    nvte_set_tensor_param_v2((problem.*of).array.handle(), param, &nothing, sizeof(nothing));
    return check::thrown_text([&] { backward ? problem.backward() : problem.forward(); });
  };
  const auto has = [](const std::string &text, const char *part) { return text.find(part) != std::string::npos; };
  EXPECT(has(text_without(&Fp8Problem::q, kNVTERowwiseScaleInv, false), "\"Q\" takes part in FP8 attention"));
  EXPECT(has(text_without(&Fp8Problem::s, kNVTEScale, false), "\"S\" takes part in FP8 attention, so it must have a scale"));
  EXPECT(has(text_without(&Fp8Problem::o, kNVTEAmax, false), "\"O\" takes part in FP8 attention, so it must have a amax"));
  EXPECT(has(text_without(&Fp8Problem::dp, kNVTERowwiseScaleInv, true), "\"DP\" takes part in FP8 attention"));
  EXPECT(has(text_without(&Fp8Problem::dk, kNVTEScale, true), "\"DK\" takes part in FP8 attention"));
}
