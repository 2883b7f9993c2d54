/* The double formulas of backward, and the reference's gradients, against central differences of the double forward. */
#include "attention_double.h"

using attention::Case;
using attention::Double;
using attention::Problem;
using attention::Table;

namespace {

/* The error of a central difference of step e is about e^2 and 1e-16 / e: 1e-5 leaves 1e-10. */
constexpr double kStep = 1e-5;

std::vector<double> differences(Double &exact, std::vector<double> &values) {
  std::vector<double> gradient(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double kept = values[i];
    values[i] = kept + kStep;
    const double above = exact.loss();
    values[i] = kept - kStep;
    const double below = exact.loss();
    values[i] = kept;
    gradient[i] = (above - below) / (2 * kStep);
  }
  return gradient;
}

void check_gradients(const Case &c) {
  Problem problem(c);
  problem.forward();
  problem.backward();
  Double exact(problem);
  exact.forward();
  exact.backward();
  struct Side {
    const char *name;
    Table &input, &formula;
    attention::Piece &actual;
  };
  for (const Side &side : {Side{"dq", exact.q, exact.dq, *problem.out.q}, Side{"dk", exact.k, exact.dk, *problem.out.k},
                           Side{"dv", exact.v, exact.dv, *problem.out.v}}) {
    Table numeric = side.formula;
    numeric.values = differences(exact, side.input.values);
    EXPECT_CLOSE(side.formula.values, numeric.values, 1e-7, 1e-8);
    attention::compare(problem, side.name, side.actual, numeric, attention::tolerance(c.dtype).backward, exact.terms);
  }
  if (c.biased()) EXPECT_CLOSE(exact.dbias, differences(exact, exact.bias), 1e-7, 1e-8);
  if (c.softmax == NVTE_VANILLA_SOFTMAX) return;
  EXPECT_CLOSE(exact.dsink, differences(exact, exact.sink), 1e-7, 1e-8);
}

Case small() {
  Case c;
  c.layout = NVTE_THD_THD_THD;
  c.q_lengths = {3, 0, 5};
  c.kv_lengths = {4, 2, 5};
  c.dim_qk = 3;
  c.dim_v = 4;
  c.gap = 1;
  return c;
}

}  // namespace

TEST(gradients_of_every_mask) {
  for (const NVTE_Mask_Type mask :
       {NVTE_PADDING_MASK, NVTE_PADDING_CAUSAL_MASK, NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK}) {
    Case c = small();
    c.mask = mask;
    check_gradients(c);
    c.left = 1;
    c.right = 1;
    check_gradients(c);
  }
}

TEST(gradients_with_grouped_heads) {
  Case c = small();
  c.heads = 4;
  c.kv_heads = 2;
  check_gradients(c);
}

TEST(gradients_with_dropout) {
  Case c = small();
  c.dropout = 0.4f;
  check_gradients(c);
}

TEST(gradients_with_a_sink) {
  Case c = small();
  c.layout = NVTE_BSHD_BSHD_BSHD;
  c.softmax = NVTE_LEARNABLE_SOFTMAX;
  check_gradients(c);
  c.dropout = 0.3f;
  check_gradients(c);
}

TEST(gradients_with_a_bias) {
  for (const bool by_sequence : {false, true})
    for (const bool by_head : {false, true}) {
      Case c = small();
      c.layout = NVTE_BSHD_BSHD_BSHD;
      c.bias = NVTE_POST_SCALE_BIAS;
      c.bias_by_sequence = by_sequence;
      c.bias_by_head = by_head;
      c.softmax = by_head ? NVTE_LEARNABLE_SOFTMAX : NVTE_VANILLA_SOFTMAX;
      c.dropout = by_sequence ? 0.3f : 0;
      check_gradients(c);
    }
}

TEST(gradients_with_alibi) {
  Case c = small();
  c.mask = NVTE_PADDING_CAUSAL_MASK;
  c.bias = NVTE_ALIBI;
  c.heads = c.kv_heads = 3;
  check_gradients(c);
}

TEST(gradients_over_dense_formats) {
  for (const int layout : {int{NVTE_SBHD_SBHD_SBHD}, int{NVTE_BHSD_BHSD_BHSD}, int{NVTE_BSHD_SBHD_SBHD}}) {
    Case c = small();
    c.layout = static_cast<NVTE_QKV_Layout>(layout);
    c.mask = NVTE_CAUSAL_BOTTOM_RIGHT_MASK;
    c.q_lengths = {3, 3};
    c.kv_lengths = {5, 5};
    c.gap = 0;
    check_gradients(c);
  }
}
