/* Attention forward and backward against double: layouts, masks, windows, grouped heads, lengths, dtypes. */
#include "attention_double.h"

using attention::Case;
using attention::check_case;

namespace {

constexpr NVTE_Mask_Type kMasks[] = {NVTE_NO_MASK,
                                     NVTE_PADDING_MASK,
                                     NVTE_CAUSAL_MASK,
                                     NVTE_PADDING_CAUSAL_MASK,
                                     NVTE_CAUSAL_BOTTOM_RIGHT_MASK,
                                     NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK};

bool is_thd(int layout) { return attention::format_of(attention::layout_name(layout)) == NVTE_THD; }
bool packs_all(int layout) { return attention::split(attention::layout_name(layout)).size() == 1; }
bool packs_two(int layout) { return attention::split(attention::layout_name(layout)).size() == 2; }
bool exists(int layout) { return attention::layout_name(layout)[0] != '\0'; }

/* Lengths for a layout and mask: without padding all sequences of a dense tensor are full. */
void set_lengths(Case &c, const std::vector<int> &q, const std::vector<int> &kv, int gap) {
  const bool cross = !packs_all(c.layout);
  c.gap = c.padded() ? gap : 0;
  c.q_lengths = q;
  c.kv_lengths = cross ? kv : q;
  if (c.padded()) return;
  c.q_lengths.assign(2, q[1]);
  c.kv_lengths.assign(2, cross ? kv[1] : q[1]);
}

void sweep_masks(Case c) {
  for (const NVTE_Mask_Type mask : kMasks) {
    c.mask = mask;
    if (is_thd(c.layout) && !c.padded()) continue;
    for (const auto &[left, right, corner] :
         {std::tuple<int, int, bool>{-1, -1, false}, {3, 2, false}, {4, -1, true}, {0, 0, true}}) {
      c.left = left;
      c.right = right;
      c.bottom_right_diagonal = corner;
      set_lengths(c, {7, 5, 0, 1}, {4, 9, 3, 1}, 2);
      check_case(c);
    }
  }
}

}  // namespace

TEST(every_layout_with_every_mask_and_window) {
  for (int layout = 0; layout <= NVTE_BHSD_BHSD_BHSD; ++layout) {
    if (!exists(layout)) continue;
    Case c;
    c.layout = static_cast<NVTE_QKV_Layout>(layout);
    sweep_masks(c);
  }
}

TEST(grouped_heads_and_another_head_dimension_of_v) {
  for (int layout = 0; layout <= NVTE_BHSD_BHSD_BHSD; ++layout) {
    if (!exists(layout) || packs_all(layout)) continue;
    Case c;
    c.layout = static_cast<NVTE_QKV_Layout>(layout);
    c.heads = 6;
    c.kv_heads = 2;
    c.dim_qk = 12;
    c.dim_v = packs_two(layout) ? 12 : 20;
    sweep_masks(c);
  }
}

/* One below, at and above the tile of 48, the block of 192, and the sizes that GPU kernels favour. */
TEST(lengths_round_the_tiles) {
  for (const int length : {1, 2, 7, 47, 48, 49, 63, 64, 65, 95, 96, 97, 129, 191, 192, 193}) {
    for (const NVTE_Mask_Type mask : {NVTE_PADDING_MASK, NVTE_PADDING_CAUSAL_MASK}) {
      Case c;
      c.layout = NVTE_T3HD;
      c.mask = mask;
      c.dim_qk = c.dim_v = 16;
      c.q_lengths = c.kv_lengths = {length, 3};
      check_case(c);
      c.layout = NVTE_BSHD_BSHD_BSHD;
      c.mask = mask == NVTE_PADDING_MASK ? NVTE_NO_MASK : NVTE_CAUSAL_MASK;
      c.q_lengths = c.kv_lengths = {length, length};
      check_case(c);
    }
  }
}

TEST(windows_over_several_tiles) {
  for (const auto &[left, right] :
       {std::pair<int, int>{0, 0}, {10, 0}, {60, 60}, {-1, 100}, {100, -1}, {47, 48}, {1000, 1000}}) {
    for (const NVTE_Mask_Type mask : {NVTE_PADDING_MASK, NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK}) {
      Case c;
      c.layout = NVTE_THD_THD_THD;
      c.mask = mask;
      c.left = left;
      c.right = right;
      c.bottom_right_diagonal = true;
      c.q_lengths = {129, 50, 200};
      c.kv_lengths = {150, 50, 97};
      c.gap = 3;
      check_case(c);
    }
  }
}

TEST(storage_dtypes) {
  for (const NVTEDType dtype : {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16}) {
    for (const int layout : {int{NVTE_T3HD}, int{NVTE_BSHD_BS2HD}, int{NVTE_SBHD_SBHD_SBHD}, int{NVTE_TH3D}}) {
      for (const NVTE_Mask_Type mask : {NVTE_PADDING_MASK, NVTE_PADDING_CAUSAL_MASK}) {
        Case c;
        c.layout = static_cast<NVTE_QKV_Layout>(layout);
        c.mask = mask;
        c.dtype = dtype;
        c.dim_qk = c.dim_v = 64;
        c.scale = 0.125f;
        set_lengths(c, {65, 1, 129, 0}, {64, 2, 100, 5}, 1);
        check_case(c);
      }
    }
  }
}

TEST(head_dimensions) {
  for (const auto &[qk, v] :
       {std::pair<int, int>{1, 1}, {3, 5}, {15, 16}, {17, 31}, {32, 128}, {192, 128}, {256, 256}}) {
    Case c;
    c.layout = NVTE_THD_THD_THD;
    c.dim_qk = qk;
    c.dim_v = v;
    c.scale = static_cast<float>(1 / std::sqrt(qk));
    c.q_lengths = c.kv_lengths = {50, 9};
    check_case(c);
  }
}

TEST(gradients_in_another_packing_than_the_inputs) {
  Case c;
  c.layout = NVTE_THD_THD_THD;
  c.gradient_layout = NVTE_T3HD;
  c.q_lengths = c.kv_lengths = {7, 50};
  c.gap = 2;
  check_case(c);
  c.layout = NVTE_BS3HD;
  c.gradient_layout = NVTE_SBHD_SBH2D;
  check_case(c);
}

TEST(softmax_with_a_sink) {
  for (const NVTE_Softmax_Type softmax : {NVTE_OFF_BY_ONE_SOFTMAX, NVTE_LEARNABLE_SOFTMAX}) {
    for (const NVTE_Mask_Type mask : {NVTE_PADDING_MASK, NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK}) {
      Case c;
      c.layout = NVTE_BSHD_BSHD_BSHD;
      c.softmax = softmax;
      c.mask = mask;
      c.q_lengths = {60, 3, 1};
      c.kv_lengths = {49, 1, 100};
      c.gap = 1;
      check_case(c);
    }
  }
}

/* A bias that sequences or heads share, of each dense format, beside masks, windows, grouped heads and sinks. */
TEST(bias_behind_the_scale) {
  for (const int layout : {int{NVTE_BS3HD}, int{NVTE_SBHD_SBHD_SBHD}, int{NVTE_BSHD_BS2HD}, int{NVTE_BHSD_BHSD_BHSD}})
    for (const NVTE_Mask_Type mask : {NVTE_NO_MASK, NVTE_PADDING_MASK, NVTE_CAUSAL_MASK, NVTE_PADDING_CAUSAL_MASK})
      for (const int shape : {0, 1, 2, 3}) {
        Case c;
        c.layout = static_cast<NVTE_QKV_Layout>(layout);
        c.mask = mask;
        c.bias = NVTE_POST_SCALE_BIAS;
        c.bias_by_sequence = shape % 2 == 1;
        c.bias_by_head = shape >= 2;
        c.heads = 4;
        c.kv_heads = packs_all(layout) ? 4 : 2;
        c.softmax = shape == 1 ? NVTE_LEARNABLE_SOFTMAX : NVTE_VANILLA_SOFTMAX;
        c.dtype = shape == 3 ? kNVTEBFloat16 : kNVTEFloat32;
        c.left = shape == 2 && mask == NVTE_PADDING_CAUSAL_MASK ? 20 : -1;
        set_lengths(c, {49, 60, 1}, {50, 60, 3}, 2);
        check_case(c);
      }
}

TEST(alibi_under_causal_masks) {
  for (const int layout : {int{NVTE_T3HD}, int{NVTE_THD_THD_THD}, int{NVTE_BSHD_BSHD_BSHD}, int{NVTE_SB3HD}})
    for (const int heads : {1, 2, 3, 12}) {
      Case c;
      c.layout = static_cast<NVTE_QKV_Layout>(layout);
      c.mask = is_thd(layout) || heads == 2 ? NVTE_PADDING_CAUSAL_MASK : NVTE_CAUSAL_MASK;
      c.bias = NVTE_ALIBI;
      c.heads = c.kv_heads = heads;
      c.right = 0;
      set_lengths(c, {100, 7, 30}, {100, 30, 9}, 1);
      check_case(c);
    }
}

/* Without training there is no dropout, and the statistics are there all the same. */
TEST(inference) {
  for (const int layout : {int{NVTE_THD_THD_THD}, int{NVTE_THD_T2HD}, int{NVTE_BSHD_BSHD_BSHD}, int{NVTE_SBHD_SB2HD}}) {
    Case c;
    c.layout = static_cast<NVTE_QKV_Layout>(layout);
    c.mask = NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK;
    c.heads = 4;
    c.q_lengths = {7, 0, 60, 3};
    c.kv_lengths = {70, 5, 60, 0};
    c.gap = 1;
    c.training = false;
    c.dropout = 0.5f;
    attention::Problem problem(c);
    problem.forward();
    EXPECT_EQUAL(problem.pack.size, size_t{2});
    attention::Double exact(problem);
    exact.forward();
    attention::compare(problem, "o", *problem.o, exact.o, attention::tolerance(c.dtype).forward);
    attention::compare_stats(problem, exact);
  }
}

TEST(stats_of_one_token_are_its_score) {
  Case c;
  c.q_lengths = c.kv_lengths = {1};
  attention::Problem problem(c);
  problem.forward();
  for (int h = 0; h < c.heads; ++h) {
    double score = 0;
    for (int d = 0; d < c.dim_qk; ++d) score += problem.in.q->get(0, 0, h, d) * problem.in.k->get(0, 0, h, d);
    EXPECT(check::close(problem.stat(0, 0, 0, h), score * double{c.scale}, 1e-6, 1e-6));
    for (int d = 0; d < c.dim_v; ++d) EXPECT_EQUAL(problem.o->get(0, 0, h, d), problem.in.v->get(0, 0, h, d));
  }
}

/* Scores of several thousands: the running maximum keeps every exponential in range. */
TEST(large_scores_do_not_overflow) {
  Case c;
  c.q_lengths = c.kv_lengths = {120};
  c.scale = 500;
  attention::Problem problem(c);
  problem.forward();
  attention::Double exact(problem);
  exact.forward();
  /* A score near 5000 is rounded by 2^-12 in FP32: probabilities differ by that much. */
  attention::compare(problem, "o", *problem.o, exact.o, 2e-3);
}

TEST(a_nan_stays_in_its_head_and_sequence) {
  Case c;
  c.q_lengths = c.kv_lengths = {60, 50};
  attention::Problem problem(c);
  problem.in.k->set(0, 5, 1, 2, std::numeric_limits<double>::quiet_NaN());
  problem.forward();
  problem.o->each([&](size_t b, int i, int h, int col) {
    const bool touched = b == 0 && h == 1;
    if (std::isnan(problem.o->get(b, i, h, col)) != touched)
      check::report(__FILE__, __LINE__, "NaN at sequence ", b, " token ", i, " head ", h);
  });
  EXPECT(std::isnan(problem.stat(0, 0, 59, 1)));
}

/* The same sequence packed or padded, at any place in the batch, alone or not: equal bits. */
TEST(packing_does_not_change_a_bit) {
  Case packed;
  packed.q_lengths = packed.kv_lengths = {30, 111, 64};
  attention::Problem together(packed);
  together.forward();
  together.backward();
  for (const int layout : {int{NVTE_BS3HD}, int{NVTE_SBHD_SBHD_SBHD}, int{NVTE_TH3D}}) {
    Case alone = packed;
    alone.layout = static_cast<NVTE_QKV_Layout>(layout);
    alone.q_lengths = alone.kv_lengths = {111};
    alone.gap = 2;
    attention::Problem single(alone);
    for (const auto &[from, to] : {std::pair{together.in.q.get(), single.in.q.get()},
                                   {together.in.k.get(), single.in.k.get()},
                                   {together.in.v.get(), single.in.v.get()},
                                   {together.d_o.get(), single.d_o.get()}})
      to->each(
          [&, from = from, to = to](size_t, int i, int h, int col) { to->set(0, i, h, col, from->get(1, i, h, col)); });
    single.forward();
    single.backward();
    for (const auto &[from, to] : {std::pair{together.o.get(), single.o.get()},
                                   {together.out.q.get(), single.out.q.get()},
                                   {together.out.k.get(), single.out.k.get()},
                                   {together.out.v.get(), single.out.v.get()}}) {
      bool equal = true;
      to->each([&, from = from, to = to](size_t, int i, int h, int col) {
        equal = equal && to->get(0, i, h, col) == from->get(1, i, h, col);
      });
      EXPECT(equal);
    }
  }
}

TEST(equal_calls_give_equal_bits) {
  Case c;
  c.layout = NVTE_THD_THD_THD;
  c.heads = 4;
  c.q_lengths = c.kv_lengths = {200, 150, 90, 3};
  attention::Problem problem(c);
  problem.forward();
  problem.backward();
  const std::vector<double> dq = problem.out.q->buffer().values(), dk = problem.out.k->buffer().values();
  for (int repeat = 0; repeat < 5; ++repeat) {
    problem.backward();
    EXPECT(problem.out.q->buffer().values() == dq);
    EXPECT(problem.out.k->buffer().values() == dk);
  }
}
