/* Dropout of attention: which elements are kept, how many, and that backward drops the same ones. */
#include "attention_double.h"

using attention::Case;
using attention::Problem;

namespace {

Case dropped(int layout, float probability) {
  Case c;
  c.layout = static_cast<NVTE_QKV_Layout>(layout);
  c.q_lengths = c.kv_lengths = {50, 1, 101};
  c.gap = 1;
  c.dropout = probability;
  return c;
}

/* With v the unit vectors of the keys, o is the row of weights itself. */
std::vector<double> weights(Problem &problem, int h, int i) {
  std::vector<double> row;
  for (int c = 0; c < problem.c.dim_v; ++c) row.push_back(problem.o->get(0, i, h, c));
  return row;
}

}  // namespace

TEST(forward_and_backward_with_dropout) {
  for (const int layout : {int{NVTE_T3HD}, int{NVTE_SBHD_SBH2D}, int{NVTE_BSHD_BSHD_BSHD}})
    for (const float probability : {0.1f, 0.5f, 0.9f}) attention::check_case(dropped(layout, probability));
  Case grouped = dropped(NVTE_THD_THD_THD, 0.3f);
  grouped.heads = 4;
  grouped.mask = NVTE_PADDING_CAUSAL_MASK;
  grouped.kv_lengths = {60, 7, 33};
  attention::check_case(grouped);
}

TEST(seed_and_offset_use_all_their_bits) {
  Case c = dropped(NVTE_T3HD, 0.5f);
  c.seed = -2;
  c.offset = (int64_t{1} << 40) + 17;
  attention::check_case(c);
}

TEST(inference_drops_nothing) {
  Case c = dropped(NVTE_T3HD, 0.5f);
  c.training = false;
  Problem problem(c);
  problem.forward();
  attention::Double exact(problem);
  exact.forward();
  attention::compare(problem, "o", *problem.o, exact.o, attention::tolerance(c.dtype).forward);
}

/* 2 x 300 x 300 elements: the kept share is within four standard deviations of 1 - p, in all and by head. */
TEST(share_of_kept_elements) {
  for (const float probability : {0.1f, 0.25f, 0.5f}) {
    Case c;
    c.q_lengths = c.kv_lengths = {300};
    c.dim_qk = c.dim_v = 300;
    c.dropout = probability;
    c.scale = 0;
    Problem problem(c);
    problem.in.v->each([&](size_t b, int i, int h, int col) { problem.in.v->set(b, i, h, col, i == col); });
    problem.forward();
    const double kept_weight = 1.0 / 300 / (1 - double{probability});
    double kept[2] = {};
    for (int h = 0; h < 2; ++h)
      for (int i = 0; i < 300; ++i)
        for (const double weight : weights(problem, h, i)) {
          EXPECT(weight == 0 || check::close(weight, kept_weight, 1e-5, 0));
          kept[h] += weight != 0;
        }
    const double elements = 300 * 300,
                 deviation = std::sqrt(elements * double{probability} * (1 - double{probability}));
    for (const double count : kept) EXPECT(check::close(count, elements * (1 - double{probability}), 0, 4 * deviation));
  }
}

/* Neighbouring rows, heads and offsets agree in about half of the elements when half of them are dropped. */
TEST(masks_are_independent) {
  Case c;
  c.q_lengths = c.kv_lengths = {256};
  c.dim_qk = c.dim_v = 256;
  c.dropout = 0.5f;
  c.scale = 0;
  const auto mask = [](const Case &wanted) {
    Problem problem(wanted);
    problem.in.v->each([&](size_t b, int i, int h, int col) { problem.in.v->set(b, i, h, col, i == col); });
    problem.forward();
    std::vector<bool> kept;
    for (int h = 0; h < 2; ++h)
      for (int i = 0; i < 256; ++i)
        for (const double weight : weights(problem, h, i)) kept.push_back(weight != 0);
    return kept;
  };
  const auto agreement = [](const std::vector<bool> &a, const std::vector<bool> &b, size_t shift) {
    double equal = 0;
    const size_t count = a.size() - shift;
    for (size_t i = 0; i < count; ++i) equal += a[i + shift] == b[i];
    return std::fabs(equal - static_cast<double>(count) / 2) / std::sqrt(static_cast<double>(count) / 4);
  };
  const std::vector<bool> first = mask(c);
  for (const size_t shift : {1, 2, 3, 4, 48, 256, 1024, 256 * 256}) EXPECT(agreement(first, first, shift) < 4.5);
  EXPECT(mask(c) == first);
  c.offset += 16;
  EXPECT(agreement(mask(c), first, 0) < 4.5);
  c.offset += int64_t{1} << 32;
  EXPECT(agreement(mask(c), first, 0) < 4.5);
  c.seed += 1;
  EXPECT(agreement(mask(c), first, 0) < 4.5);
}

/* Known answer of Philox4x32-10 through the documented counter: Random123's kat_vectors, all words ones. */
TEST(known_answer_of_the_generator) {
  const auto words = chagres::reference::philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0});
  EXPECT_EQUAL(words.word[0], 0x408f276du);
  EXPECT_EQUAL(words.word[1], 0x41c83b0eu);
  EXPECT_EQUAL(words.word[2], 0xa20bc7c6u);
  EXPECT_EQUAL(words.word[3], 0x6d5451fdu);
}
