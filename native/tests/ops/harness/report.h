/* What the cases share: the session, comparison with double precision, and the table. */
#ifndef CHAGRES_TESTS_OPS_REPORT_H
#define CHAGRES_TESTS_OPS_REPORT_H

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/library.h"

namespace chagres::tests {

/* One line of the table: an operation in one dtype. */
struct Row {
  int cases = 0;
  double worst = 0; /* largest error as a part of its tolerance */
  int failures = 0;
};

class Report {
 public:
  void failure(const std::string &operation, const std::string &dtype, const std::string &text);
  Row &row(const std::string &operation, const std::string &dtype) { return rows_[{operation, dtype}]; }
  bool print() const; /* the table; true when nothing failed */

 private:
  std::map<std::pair<std::string, std::string>, Row> rows_;
  int printed_ = 0;
};

struct Session {
  Ops ops;
  void *library; /* for functions by name */
  Memory &memory;
  Report &report;
  Random random;
  bool large; /* with sizes that fill a GPU, for which an emulator needs minutes */
  int every;  /* of the cases of attention, one of so many */
  int attention_cases = 0;

  Buffer floats(int dtype, const Doubles &values, int64_t offset_elements = 0) {
    const Format &format = format_of(dtype);
    return Buffer(memory, to_bytes(format, values), static_cast<size_t>(offset_elements * format.size));
  }
  template <class T>
  Buffer raw(const std::vector<T> &values) {
    return Buffer(memory, raw_bytes(values));
  }
};

/* One call with one set of arguments. `text` describes it. */
class Case {
 public:
  Case(Session &session, const char *operation, int dtype, std::string text);

  /* Runs the call twice from the same start and compares the outputs' bits; they are then in `outputs`. False when a
   * call failed. */
  bool run(const std::vector<Buffer *> &outputs, const std::function<int()> &call);
  const Bytes &output(size_t index) const { return results_[index]; }
  Doubles output(size_t index, int dtype) const { return to_doubles(format_of(dtype), results_[index]); }

  /* Every element is the wanted one, NaN for NaN. */
  void equal(const Doubles &got, const Doubles &wanted, const char *what);
  void equal_bytes(const Bytes &got, const Bytes &wanted, const char *what);

  /* |got - wanted| is at most rounding of the result to dtype, plus `slack` FP32 roundings of numbers of size scale:
   * the sum of the absolute terms of a sum. */
  void close(int dtype, const Doubles &got, const Doubles &wanted, const Doubles &scale, double slack,
             const char *what);
  void fail(const std::string &text);

 private:
  Session &session_;
  std::string operation_, dtype_, text_;
  std::vector<Bytes> results_;
};

std::string shape_text(std::initializer_list<std::pair<const char *, int64_t>> sizes);

void elementwise_cases(Session &session);
void clip_cases(Session &session);
void adam_cases(Session &session);
void optimizer_step_cases(Session &session);
void adafactor_cases(Session &session);
void loss_scale_cases(Session &session);
void quantization_statistics_cases(Session &session);
void dequantize_blocks_cases(Session &session);
void dropout_cases(Session &session);
void bias_cases(Session &session);
void drop_path_cases(Session &session);
void token_dropout_cases(Session &session);
void sequence_pool_cases(Session &session);
void rows_cases(Session &session);
void embedding_cases(Session &session);
void row_sum_cases(Session &session);
void matrix_product_cases(Session &session);
void residual_norm_cases(Session &session);
void gated_gradient_cases(Session &session);
void cross_entropy_cases(Session &session);
void vocabulary_cross_entropy_cases(Session &session);
void rotary_cases(Session &session);
void attention_cases(Session &session);
void attention_score_cases(Session &session);
void attention_argument_cases(Session &session);
void attention_merge_cases(Session &session);
void argument_cases(Session &session);
void graph_cases(Session &session);
void range_cases(Session &session);
void activity_cases(Session &session);
void print_times(Session &session, const std::string &only); /* of a stem, or, where it is empty, of all */

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_REPORT_H */
