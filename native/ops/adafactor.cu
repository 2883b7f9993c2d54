/*
 * Adafactor. Sums over rows, columns and matrices have a fixed order, so that ranks which have the same matrix keep the same
 * weights. A warp adds up a row, and a thread a column; a block adds up a matrix, or the one row of a vector.
 */
#include <optimizer_ranges.cuh>

#include <adafactor_arguments.cuh>

/* The sum of a block's values in all its threads. */
__device__ inline float block_sum(float value) {
  __shared__ float values[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads(); /* the sum before was read */
  values[thread] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) values[thread] += values[thread + half];
  }
  __syncthreads();
  return values[0];
}

__device__ inline float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

/* The maps are the caller's: a number that is none of a row or column must not reach other memory. */
__device__ inline int64_t mapped(const int32_t *map, int64_t i, int64_t count) {
  return map == nullptr ? i : map[i] < 0 ? 0 : map[i] < count ? map[i] : count - 1;
}

struct RowSums {
  float first, second;
};

/* For each row that the range has elements of: element(i, column, sums) for each, then store(row, sums). */
template <class Element, class Store>
__device__ inline void for_rows(const AdafactorRange &range, Element &&element, Store &&store) {
  const bool is_vector = range.rows == 1;
  const int thread = static_cast<int>(threadIdx.x), lanes = is_vector ? kThreads : 32, lane = thread % lanes;
  const int64_t last = range.first + range.count, end = divide(last + range.columns - 1, range.columns);
  const int64_t together = kThreads / lanes;
  for (int64_t row = divide(range.first, range.columns) + blockIdx.x * together + thread / lanes; row < end; row += gridDim.x * together) {
    const int64_t row_begin = row * range.columns, row_end = row_begin + range.columns;
    const int64_t begin = row_begin > range.first ? row_begin : range.first, behind = row_end < last ? row_end : last;
    RowSums sums = {0.0f, 0.0f};
    for (int64_t i = begin + lane; i < behind; i += lanes) element(i - range.first, i - row_begin, sums);
    sums.first = is_vector ? block_sum(sums.first) : warp_sum(sums.first);
    sums.second = is_vector ? block_sum(sums.second) : warp_sum(sums.second);
    if (lane == 0) store(mapped(range.row_map, row, range.rows), sums);
  }
}

__device__ inline float square_of(const AdafactorRange &range, float scale, int64_t i) {
  const float g = __fmul_rn(scale, range.gradient[i]);
  return __fmul_rn(g, g);
}

template <template <class, int> class Weights, class W>
__device__ inline void sums_of(const AdafactorNumbers &n, const AdafactorRange *ranges) {
  if (n.skip[0] == 1) return;
  const AdafactorRange &range = ranges[blockIdx.y];
  if (range.count == 0) return;
  const float scale = n.gradient_scale[0];
  for_rows(
      range,
      [&](int64_t i, int64_t, RowSums &sums) {
        sums.first = __fadd_rn(sums.first, square_of(range, scale, i));
        if (!n.scaled) return;
        const float w = Weights<W, 1>(range, i).get(0);
        sums.second = fmaf(w, w, sums.second);
      },
      [&](int64_t row, const RowSums &sums) {
        range.row_squares[row] = sums.first;
        range.row_weights[row] = sums.second;
      });
  const int64_t last = range.first + range.count;
  for (int64_t column = thread_index(); column < range.columns; column += thread_total()) {
    int64_t i = divide(range.first, range.columns) * range.columns + column;
    if (i < range.first) i += range.columns;
    float sum = 0;
    bool has = i < last;
#pragma unroll 4
    for (; i < last; i += range.columns) sum = __fadd_rn(sum, square_of(range, scale, i - range.first));
    if (has) range.column_squares[mapped(range.column_map, column, range.whole_columns)] = sum;
  }
}

/* next = (1 - share) state + share (sum / count + epsilon). */
__device__ inline float moved(float state, float share, float sum, int64_t count, float epsilon) {
  return fmaf(share, sum / static_cast<float>(count) + epsilon, __fmul_rn(1 - share, state));
}

__device__ inline float rate_of(const AdafactorNumbers &n, float rate) {
  const auto step = static_cast<float>(n.step[0]);
  if (n.relative != kRateCapped && n.relative != kRateWarmUp) return rate;
  return fminf(n.relative == kRateWarmUp ? rate * step / 10000.0f : rate, 1.0f / sqrtf(step));
}

KERNEL(adafactor_factors, const AdafactorNumbers n, const AdafactorRange *ranges) {
  if (n.skip[0] == 1) return;
  const AdafactorRange &range = ranges[blockIdx.y];
  const float share = powf(static_cast<float>(n.step[0]), -n.power);
  float rows = 0, weights = 0;
  for (int64_t i = threadIdx.x; i < range.rows; i += kThreads) {
    weights += range.row_weights[i];
    if (range.rows == 1) continue;
    const float next = moved(range.row[i], share, range.row_squares[i], range.whole_columns, n.epsilon1);
    range.row[i] = next;
    rows += next;
  }
  for (int64_t i = threadIdx.x; i < range.whole_columns; i += kThreads)
    range.column[i] = moved(range.column[i], share, range.column_squares[i], range.rows, n.epsilon1);
  rows = block_sum(rows);
  weights = block_sum(weights);
  if (threadIdx.x != 0) return;
  const float size = n.scaled ? fmaxf(n.epsilon2, sqrtf(weights / (static_cast<float>(range.rows) * static_cast<float>(range.whole_columns)))) : 1.0f;
  range.numbers[0] = rows / static_cast<float>(range.rows);
  range.numbers[1] = rate_of(n, range.rate[0]) * size;
}

__device__ inline float row_factor(const AdafactorRange &range, int64_t row) {
  return range.rows == 1 ? 1.0f : 1.0f / sqrtf(range.row[row] / range.numbers[0]);
}

/* u of an element, but for the factor of its row. */
__device__ inline float in_column(const AdafactorRange &range, float scale, int64_t i, int64_t column) {
  return __fmul_rn(scale, range.gradient[i]) / sqrtf(range.column[mapped(range.column_map, column, range.whole_columns)]);
}

KERNEL(adafactor_updates, const AdafactorNumbers n, const AdafactorRange *ranges) {
  if (n.skip[0] == 1) return;
  const AdafactorRange &range = ranges[blockIdx.y];
  if (range.count == 0) return;
  const float scale = n.gradient_scale[0];
  for_rows(
      range,
      [&](int64_t i, int64_t column, RowSums &sums) {
        const float u = in_column(range, scale, i, column);
        sums.first = fmaf(u, u, sums.first);
      },
      [&](int64_t row, const RowSums &sums) {
        const float factor = row_factor(range, row);
        range.row_updates[row] = __fmul_rn(__fmul_rn(factor, factor), sums.first);
      });
}

KERNEL(adafactor_clip, const AdafactorNumbers n, const AdafactorRange *ranges) {
  if (n.skip[0] == 1) return;
  const AdafactorRange &range = ranges[blockIdx.y];
  float sum = 0;
  for (int64_t i = threadIdx.x; i < range.rows; i += kThreads) sum += range.row_updates[i];
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  const float size = sqrtf(sum / (static_cast<float>(range.rows) * static_cast<float>(range.whole_columns)));
  range.numbers[2] = range.numbers[1] / fmaxf(1.0f, size / n.threshold);
}

template <template <class, int> class Weights, class W>
__device__ inline void step_of_ranges(const AdafactorNumbers &n, const AdafactorRange *ranges) {
  if (n.skip[0] == 1) return;
  const AdafactorRange &range = ranges[blockIdx.y];
  const float scale = n.gradient_scale[0];
  for (int64_t i = thread_index(); i < range.count; i += thread_total()) {
    const int64_t row = divide(range.first + i, range.columns), column = range.first + i - row * range.columns;
    const float u = __fmul_rn(in_column(range, scale, i, column), row_factor(range, mapped(range.row_map, row, range.rows)));
    float direction = __fmul_rn(range.numbers[2], u);
    if (n.beta1 > 0) {
      direction = fmaf(n.beta1, range.mean[i], __fmul_rn(1 - n.beta1, direction));
      range.mean[i] = direction;
    }
    Weights<W, 1> weight(range, i);
    const float w = weight.get(0);
    weight.set(0, __fadd_rn(fmaf(-__fmul_rn(range.numbers[1], range.weight_decay), w, w), -direction));
    weight.store(range, i);
  }
}

#define SUMS(name, Weights, W) \
  KERNEL(adafactor_sums_##name, const AdafactorNumbers n, const AdafactorRange *ranges) { sums_of<Weights, W>(n, ranges); }
#define STEPS(name, Weights, W) \
  KERNEL(adafactor_step_##name, const AdafactorNumbers n, const AdafactorRange *ranges) { step_of_ranges<Weights, W>(n, ranges); }

SUMS(own, Own, float32)
SUMS(master, Master, bfloat16) /* reads masters alone, whatever the weights are */
SUMS(remainder, Halves, bfloat16)
STEPS(own, Own, float32)
STEPS(master_float16, Master, float16)
STEPS(master_bfloat16, Master, bfloat16)
STEPS(remainder, Halves, bfloat16)
