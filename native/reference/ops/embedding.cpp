/* Operations: rows of a table by token, and the table's gradient. */
#include "cuda/capture.h"
#include "ops/operations.h"
#include "ops/rows.h"

using namespace chagres;
using namespace chagres::reference;

int ops_embedding_forward(const void *table, const int32_t *ids, void *y, int64_t first, int64_t tokens,
                          int64_t vocabulary, int64_t hidden, int dtype, OpsStream stream) try {
  const int status = ops::check_embedding_forward(table, ids, y, first, tokens, vocabulary, hidden, dtype);
  if (status != OPS_SUCCESS || tokens == 0 || hidden == 0) return status;
  if (recorded_by_value(ops_embedding_forward, table, ids, y, first, tokens, vocabulary, hidden, dtype,
                        stream)) return OPS_SUCCESS;
  return run("ops_embedding_forward", [&] { gather(table, ids, y, first, tokens, hidden * ops::size_of(dtype), vocabulary); });
} OPS_CATCH

int ops_embedding_backward(const void *dy, const int32_t *ids, float *gradient, float beta, int64_t first,
                           int64_t tokens, int64_t vocabulary, int64_t hidden, int dtype, OpsStream stream) try {
  const int status = ops::check_embedding_backward(dy, ids, gradient, first, tokens, vocabulary, hidden, dtype);
  if (status != OPS_SUCCESS || vocabulary == 0 || hidden == 0) return status;
  if (recorded_by_value(ops_embedding_backward, dy, ids, gradient, beta, first, tokens, vocabulary, hidden, dtype,
                        stream)) return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_embedding_backward", [&] {
    parallel_for(0, hidden, kColumns, [&](int64_t begin, int64_t end) {
      const int64_t width = end - begin;
      Scratch sums(vocabulary * width);
      std::fill(sums.data(), sums.data() + vocabulary * width, 0.0f);
      float row[kColumns];
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t v = ids[t] - first;
        if (v < 0 || v >= vocabulary) continue;
        to_float(row, element(dy, t * hidden + begin, type), type, width);
        add_floats(sums.data() + v * width, row, width);
      }
      for (int64_t v = 0; v < vocabulary; ++v)
        finish_sum(gradient + v * hidden + begin, beta, sums.data() + v * width, width);
    });
  });
} OPS_CATCH
