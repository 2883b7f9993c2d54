/* Partial outputs of attention, merged by their log-sum-exp: one warp a row. */
#include <common.cuh>

template <class T, int N>
__device__ void attention_merge(const T *partial, const float *log_sum_exp, float *merged, float *merged_log_sum_exp,
                                int64_t rows, int64_t columns, int first) {
  const float none = -__int_as_float(0x7f800000);
  for (int64_t row = thread_index() / 32; row < rows; row += thread_total() / 32) {
    const float own = log_sum_exp[row], before = first != 0 ? none : merged_log_sum_exp[row];
    __syncwarp(); /* by now each thread has read the number that the first one writes */
    const bool empty = own == none && before == none;
    const float largest = fmaxf(own, before);
    const float kept = before == none ? 0.0f : expf(before - largest), added = own == none ? 0.0f : expf(own - largest);
    const float sum = kept + added;
    for (int64_t c = threadIdx.x % 32 * N; c < columns; c += 32 * N) {
      float *target = merged + row * columns + c;
      Pack<float, N> value = {};
      if (before != none) value = load_pack<N>(static_cast<const float *>(target));
      for (int j = 0; j < N; ++j) value.value[j] *= empty ? 0.0f : kept / sum;
      if (own != none) {
        const auto terms = load_pack<N>(partial + row * columns + c);
        for (int j = 0; j < N; ++j) value.value[j] = fmaf(added / sum, to_float(terms.value[j]), value.value[j]);
      }
      store_pack<N>(target, value);
    }
    if (threadIdx.x % 32 == 0) merged_log_sum_exp[row] = empty ? none : largest + logf(sum);
  }
}

#define MERGE(name, T, N)                                                                                         \
  KERNEL(name, const T *partial, const float *log_sum_exp, float *merged, float *merged_log_sum_exp, int64_t rows, \
         int64_t columns, int first) {                                                                            \
    attention_merge<T, N>(partial, log_sum_exp, merged, merged_log_sum_exp, rows, columns, first);                \
  }
#define PACKED(name, T) MERGE(name, T, 4)
#define SCALAR(name, T) MERGE(name, T, 1)

FOR_FLOATS(PACKED, attention_merge)
FOR_FLOATS(SCALAR, attention_merge_scalar)
