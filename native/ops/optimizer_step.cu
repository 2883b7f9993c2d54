/*
 * One step of SGD, Lion or schedule-free AdamW over many ranges, and of Adam and Lion whose states have eight bits. Each
 * rounding is written out where a compiler could choose, as in adam.cu.
 */
#include <optimizer_ranges.cuh>

#include <optimizer_step_arguments.cuh>

/* Each thread block takes every gridDim.x-th block of elements: body(range, step, begin, count) has `count` of them from
 * `begin` on. */
template <class Body>
__device__ inline void for_blocks(const StepNumbers &numbers, const StepTable &table, Body &&body) {
  Step step = step_of(numbers);
  const StepRange *range = table.ranges;
  uint32_t end = 0; /* the first block behind the range */
  for (uint32_t block = blockIdx.x; block < static_cast<uint32_t>(table.blocks); block += gridDim.x) {
    if (block >= end) {
      const int found = range_of(table, block);
      range = table.ranges + found;
      end = found + 1 < table.count ? static_cast<uint32_t>(range[1].first_block) : static_cast<uint32_t>(table.blocks);
      step.rate = range->rate[0];
      step.weight_decay = range->weight_decay;
    }
    const int64_t begin = (block - range->first_block) * kBlockElements, rest = range->count - begin;
    body(*range, step, begin, rest < kBlockElements ? static_cast<int>(rest) : kBlockElements);
  }
}

__device__ inline bool is_aligned(const StepRange &range) {
  const auto bits = reinterpret_cast<uint64_t>(range.gradient) | reinterpret_cast<uint64_t>(range.weight) |
                    reinterpret_cast<uint64_t>(range.first) | reinterpret_cast<uint64_t>(range.second) |
                    reinterpret_cast<uint64_t>(range.master);
  return (bits & 15) == 0;
}

/* Update::run<N>(numbers, range, step, i) moves N elements from i on. */
template <class Update>
__device__ inline void step_ranges(const StepNumbers &numbers, const StepTable &table) {
  if (numbers.skip[0] == 1) return;
  for_blocks(numbers, table, [&](const StepRange &range, const Step &step, int64_t begin, int count) {
    const int packs = is_aligned(range) ? count / 4 : 0, thread = static_cast<int>(threadIdx.x);
    if (thread < packs) Update::template run<4>(numbers, range, step, begin + 4 * thread);
    for (int i = 4 * packs + thread; i < count; i += kThreads) Update::template run<1>(numbers, range, step, begin + i);
  });
}

/* With momentum; the second state is not looked at. */
struct Sgd {
  __device__ static void move(const StepNumbers &n, const Step &s, float gradient, float &weight, float &momentum, float &) {
    const float g = fmaf(s.scale, gradient, __fmul_rn(s.weight_decay, weight));
    const bool plain = n.beta1 == 0 || n.step[0] == 1;
    momentum = plain ? g : fmaf(n.beta1, momentum, __fmul_rn(1 - n.beta2, g));
    const float direction = n.method == kMethodNesterov ? fmaf(n.beta1, momentum, g) : momentum;
    weight = fmaf(-s.rate, direction, weight);
  }
};

struct Lion {
  __device__ static void move(const StepNumbers &n, const Step &s, float gradient, float &weight, float &mean, float &) {
    const float g = __fmul_rn(s.scale, gradient), between = fmaf(1 - n.beta1, g, __fmul_rn(n.beta1, mean));
    const float sign = between > 0 ? 1.0f : between < 0 ? -1.0f : between; /* 0 and NaN stay */
    mean = fmaf(1 - n.beta2, g, __fmul_rn(n.beta2, mean));
    weight = fmaf(-s.rate, fmaf(s.weight_decay, weight, sign), weight);
  }
};

struct Adam {
  __device__ static void move(const StepNumbers &n, const Step &s, float gradient, float &weight, float &mean, float &square) {
    ::move(n, s, gradient, weight, mean, square);
  }
};

/* M: type of the one state. */
template <class Method, template <class, int> class Weights, class W, class M>
struct OneState {
  template <int N>
  __device__ static void run(const StepNumbers &numbers, const StepRange &range, const Step &step, int64_t i) {
    M *const states = static_cast<M *>(range.first) + i;
    const auto gradient = load_pack<N>(range.gradient + i);
    auto state = load_pack<N>(static_cast<const M *>(states));
    Weights<W, N> weights(range, i);
    for (int j = 0; j < N; ++j) {
      float w = weights.get(j), s = to_float(state.value[j]), none = 0;
      Method::move(numbers, step, gradient.value[j], w, s, none);
      weights.set(j, w);
      from_float(s, state.value[j]);
    }
    weights.store(range, i);
    store_pack<N>(states, state);
  }
};

/* Where gradients are taken: between the state and the average. */
__device__ inline float point(const StepNumbers &n, float average, float state) {
  return fmaf(n.beta1, average, __fmul_rn(1 - n.beta1, state));
}

/* Schedule-free AdamW: master x is the average, first z, second the mean square; the weight is where gradients are taken. */
template <class W>
struct Averaged {
  template <int N>
  __device__ static void run(const StepNumbers &n, const StepRange &range, const Step &s, int64_t i) {
    float *const averages = static_cast<float *>(range.master) + i, *const states = static_cast<float *>(range.first) + i;
    auto average = load_pack<N>(static_cast<const float *>(averages)), state = load_pack<N>(static_cast<const float *>(states));
    if (n.method != kMethodPoint) {
      float *const squares = static_cast<float *>(range.second) + i;
      const auto gradient = load_pack<N>(range.gradient + i);
      auto square = load_pack<N>(static_cast<const float *>(squares));
      const float share = range.share[0];
      for (int j = 0; j < N; ++j) {
        float &x = average.value[j], &z = state.value[j], &v = square.value[j];
        const float g = __fmul_rn(s.scale, gradient.value[j]);
        v = fmaf(n.beta2, v, __fmul_rn(__fmul_rn(1 - n.beta2, g), g));
        const float direction = g / __fadd_rn(sqrtf(v / s.correction2), n.epsilon);
        z = fmaf(-s.rate, fmaf(s.weight_decay, point(n, x, z), direction), z);
        x = fmaf(share, __fadd_rn(z, -x), x);
      }
      store_pack<N>(averages, average);
      store_pack<N>(states, state);
      store_pack<N>(squares, square);
    }
    Pack<W, N> weight;
    for (int j = 0; j < N; ++j) from_float(point(n, average.value[j], state.value[j]), weight.value[j]);
    store_pack<N>(static_cast<W *>(range.weight) + i, weight);
  }
};

/* ---- States of eight bits ---- */

constexpr int kCodes = 256;        /* of a byte */
constexpr int kZero = 127;         /* the code of 0 among signed numbers, for which the byte is 0 */
constexpr int kScaled = 256;       /* elements that share a scale */
constexpr int kScaledThreads = 64; /* which each have four of them */

/* The number that a code stands for: decades from 1e-6 to 1, each with twice as many numbers as the one before. */
__device__ inline float code_value(int code, bool is_signed) {
  const float decades[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  if (code == kCodes - 1) return 1;
  const int place = is_signed ? (code > 127 ? code - 127 : 127 - code) : code; /* 0: zero; then by size */
  if (place == 0) return 0;
  int count = is_signed ? 1 : 2, first = 1, decade = 0;
  while (place >= first + count) {
    first += count;
    count *= 2;
    ++decade;
  }
  const float middle = (static_cast<float>(place - first) + 0.5f) / static_cast<float>(count);
  const float value = decades[decade] * fmaf(0.9f, middle, 0.1f);
  return is_signed && code < 127 ? -value : value;
}

/* The code whose number is nearest; the smaller one of two. */
__device__ inline uint8_t nearest_code(const float *values, float value) {
  int first = 0, last = kCodes - 1; /* values[last] >= value, or it is the largest */
  while (first < last) {
    const int middle = (first + last) / 2;
    if (values[middle] >= value) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  if (last > 0 && value - values[last - 1] <= values[last] - value) --last;
  return static_cast<uint8_t>(last);
}

/* The largest of the threads that share a scale; `places` has room for one of each warp. */
__device__ inline float largest_of_scaled(float value, float *places) {
  for (int distance = 16; distance > 0; distance /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0) places[warp] = value;
  __syncthreads();
  return fmaxf(places[warp & ~1], places[warp | 1]);
}

/* Codes of the new states, by a new scale. */
__device__ inline void store_codes(const float *values, const float (&state)[4], float largest, uint8_t *codes, float *scale,
                                   int zero, int count) {
  const int lane = static_cast<int>(threadIdx.x) % kScaledThreads;
  for (int k = 0; k < 4; ++k) {
    const int i = k * kScaledThreads + lane;
    if (i < count) codes[i] = static_cast<uint8_t>(nearest_code(values, largest > 0 ? state[k] / largest : 0.0f) - zero);
  }
  if (lane == 0 && count > 0) *scale = largest;
}

/* kStates: 1 or 2. A warp has a quarter of what shares a scale at a time, so that neighbours read neighbours. */
template <class Method, int kStates, template <class, int> class Weights, class W>
__device__ inline void step_codes(const StepNumbers &numbers, const StepTable &table) {
  __shared__ float signed_values[kCodes], unsigned_values[kCodes];
  __shared__ float places[2][kThreads / 32];
  if (numbers.skip[0] == 1) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kScaledThreads, part = thread / kScaledThreads;
  signed_values[thread] = code_value(thread, true);
  unsigned_values[thread] = code_value(thread, false);
  __syncthreads();
  for_blocks(numbers, table, [&](const StepRange &range, const Step &step, int64_t begin, int in_block) {
    const int64_t first = begin + part * kScaled, place = first / kScaled;
    const int rest = in_block - part * kScaled, count = rest < 0 ? 0 : rest < kScaled ? rest : kScaled;
    uint8_t *const firsts = static_cast<uint8_t *>(range.first) + first, *const seconds = static_cast<uint8_t *>(range.second) + first;
    const float scale1 = count > 0 ? range.first_scale[place] : 0.0f;
    const float scale2 = kStates == 2 && count > 0 ? range.second_scale[place] : 0.0f;
    float a[4] = {}, b[4] = {}, largest1 = 0, largest2 = 0;
    for (int k = 0; k < 4; ++k) {
      const int i = k * kScaledThreads + lane;
      if (i >= count) continue;
      Weights<W, 1> weight(range, first + i);
      float w = weight.get(0);
      a[k] = scale1 * signed_values[static_cast<uint8_t>(firsts[i] + kZero)];
      if (kStates == 2) b[k] = scale2 * unsigned_values[seconds[i]];
      Method::move(numbers, step, range.gradient[first + i], w, a[k], b[k]);
      weight.set(0, w);
      weight.store(range, first + i);
      largest1 = fmaxf(largest1, fabsf(a[k]));
      largest2 = fmaxf(largest2, b[k]);
    }
    largest1 = largest_of_scaled(largest1, places[0]);
    if (kStates == 2) largest2 = largest_of_scaled(largest2, places[1]);
    store_codes(signed_values, a, largest1, firsts, range.first_scale + place, kZero, count);
    if (kStates == 2) store_codes(unsigned_values, b, largest2, seconds, range.second_scale + place, 0, count);
    __syncthreads(); /* before `places` is written again */
  });
}

#define STEP(name, ...) \
  KERNEL(name, StepNumbers numbers, StepTable table) { step_ranges<__VA_ARGS__>(numbers, table); }
#define CODES(name, ...) \
  KERNEL(name, StepNumbers numbers, StepTable table) { step_codes<__VA_ARGS__>(numbers, table); }
#define ONE_STATE(name, Method, M)                              \
  STEP(name##_own, OneState<Method, Own, float32, M>)           \
  STEP(name##_master_float16, OneState<Method, Master, float16, M>)   \
  STEP(name##_master_bfloat16, OneState<Method, Master, bfloat16, M>) \
  STEP(name##_remainder, OneState<Method, Halves, bfloat16, M>)
#define CODED(name, Method, states)                            \
  CODES(name##_own, Method, states, Own, float32)              \
  CODES(name##_master_float16, Method, states, Master, float16)      \
  CODES(name##_master_bfloat16, Method, states, Master, bfloat16)    \
  CODES(name##_remainder, Method, states, Halves, bfloat16)

ONE_STATE(step_sgd, Sgd, float32)
ONE_STATE(step_lion, Lion, float32)
ONE_STATE(step_lion_bfloat16, Lion, bfloat16)
CODED(step_lion_codes, Lion, 1)
CODED(step_adam_codes, Adam, 2)
STEP(step_averaged_float32, Averaged<float32>)
STEP(step_averaged_float16, Averaged<float16>)
STEP(step_averaged_bfloat16, Averaged<bfloat16>)

/* The share of this step in the average of each group's steps. sums: the weights so far, and the highest rate, of each. */
KERNEL(average_share, const float *rates, const int32_t *step, const int32_t *skip, float *sums, float *shares, float power,
       float rate_power, int64_t count) {
  if (skip[0] == 1) return;
  for (int64_t i = thread_index(); i < count; i += thread_total()) {
    const float highest = fmaxf(sums[2 * i + 1], rates[i]);
    const float weight = __fmul_rn(powf(static_cast<float>(step[0]), power), powf(highest, rate_power));
    const float sum = __fadd_rn(sums[2 * i], weight);
    sums[2 * i] = sum;
    sums[2 * i + 1] = highest;
    shares[i] = sum > 0 ? weight / sum : 0.0f;
  }
}
