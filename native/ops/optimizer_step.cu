/*
 * One step of SGD, Lion or schedule-free AdamW over many ranges, and of Adam and Lion whose states have eight bits. Each
 * rounding is written out where a compiler could choose, as in adam.cu.
 */
#include <optimizer_ranges.cuh>

#include <optimizer_step_arguments.cuh>

/* From block `first` of elements on every `apart`-th: body(range, step, begin, count) has `count` elements from `begin` on. */
template <class Body>
__device__ inline void for_blocks(const StepNumbers &numbers, const StepTable &table, uint32_t first, uint32_t apart, Body &&body) {
  Step step = step_of(numbers);
  const StepRange *range = table.ranges;
  uint32_t end = 0; /* the first block behind the range */
  for (uint32_t block = first; block < static_cast<uint32_t>(table.blocks); block += apart) {
    if (block >= end) {
      const int found = range_of(table, block);
      range = table.ranges + found;
      end = found + 1 < table.count ? static_cast<uint32_t>(range[1].first_block) : static_cast<uint32_t>(table.blocks);
      step.rate = numbers.method == kMethodAverage ? 0.0f : range->rate[0];
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
  for_blocks(numbers, table, blockIdx.x, gridDim.x, [&](const StepRange &range, const Step &step, int64_t begin, int count) {
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

/* As in adam.cu, but with the GPU's approximate root and quotient: a state of eight bits has lost more than the last bits. */
struct Adam {
  __device__ static void move(const StepNumbers &n, const Step &s, float gradient, float &weight, float &mean, float &square) {
    const float g = fmaf(s.scale, gradient, n.decoupled ? 0.0f : s.weight_decay * weight);
    mean = fmaf(1 - n.beta1, g, n.beta1 * mean);
    square = fmaf(n.beta2, square, (1 - n.beta2) * g * g);
    const float size = square * reciprocal(s.correction2);
    const float root = size * reciprocal_root(fmaxf(size, 1e-37f));
    const float direction = mean * reciprocal(s.correction1 * (root + n.epsilon));
    weight = fmaf(-s.rate, n.decoupled ? fmaf(s.weight_decay, weight, direction) : direction, weight);
  }
};

/* M: type of the one state. */
template <class Method, template <class, int> class Weights, class W, class M>
struct OneState {
  template <int N>
  __device__ static void run(const StepNumbers &numbers, const StepRange &range, const Step &step, int64_t i) {
    M *const states = static_cast<M *>(range.first) + i;
    const Gradients<N> gradients(numbers, range.gradient, i);
    auto state = load_pack<N>(static_cast<const M *>(states));
    Weights<W, N> weights(range, i);
    for (int j = 0; j < N; ++j) {
      float w = weights.get(j), s = to_float(state.value[j]), none = 0;
      Method::move(numbers, step, gradients.get(numbers, j), w, s, none);
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
      const Gradients<N> gradients(n, range.gradient, i);
      auto square = load_pack<N>(static_cast<const float *>(squares));
      const float share = range.share[0];
      for (int j = 0; j < N; ++j) {
        float &x = average.value[j], &z = state.value[j], &v = square.value[j];
        const float g = __fmul_rn(s.scale, gradients.get(n, j));
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

/* A moving average of FP32 weights, which are read alone. */
template <template <class, int> class Weights, class W>
struct Average {
  template <int N>
  __device__ static void run(const StepNumbers &n, const StepRange &range, const Step &, int64_t i) {
    float *const averages = static_cast<float *>(range.first) + i;
    auto average = load_pack<N>(static_cast<const float *>(averages));
    const Weights<W, N> weights(range, i);
    for (int j = 0; j < N; ++j)
      average.value[j] = fmaf(1 - n.beta1, __fadd_rn(weights.get(j), -average.value[j]), average.value[j]);
    store_pack<N>(averages, average);
  }
};

/* ---- States of eight bits ---- */

constexpr int kCodes = 256;  /* of a byte */
constexpr int kZero = 127;   /* the code of 0 among signed numbers, for which the byte is 0 */
constexpr int kScaled = 256; /* elements that share a scale: a warp's, eight a thread */
constexpr int kEach = kScaled / 32;
constexpr int kDecades = 7; /* from 1e-6 to 1, each with twice as many numbers as the one before */

/* Where a decade's numbers lie among the codes of their sign: cell factor * size + offset, counted from code `first` on. */
struct alignas(16) Decade {
  float factor, offset, last;
  int first;
};

__device__ inline Decade decade_of(int decade, bool is_signed) {
  const int count = (is_signed ? 1 : 2) << decade;
  float inverse = 1; /* of the decade's end */
  for (int i = decade + 1; i < kDecades; ++i) inverse *= 10;
  const auto cells = static_cast<float>(count);
  return {cells / 0.9f * inverse, cells / -9, cells - 1, is_signed ? count : count - 1};
}

/* The number that a code stands for. */
__device__ inline float code_value(int code, bool is_signed) {
  const float decades[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  if (code == kCodes - 1) return 1;
  const int place = is_signed ? (code > kZero ? code - kZero : kZero - code) : code; /* 0: zero; then by size */
  if (place == 0) return 0;
  int count = is_signed ? 1 : 2, first = 1, decade = 0;
  while (place >= first + count) {
    first += count;
    count *= 2;
    ++decade;
  }
  const float middle = (static_cast<float>(place - first) + 0.5f) / static_cast<float>(count);
  const float value = decades[decade] * fmaf(0.9f, middle, 0.1f);
  return is_signed && code < kZero ? -value : value;
}

/* Numbers that are all signed, or all not. */
template <bool is_signed>
struct Codes {
  float values[1 + kCodes]; /* behind one below all numbers, so that the first one has a neighbour there */
  Decade decades[kDecades];

  __device__ void fill(int thread) {
    values[1 + thread] = code_value(thread, is_signed);
    if (thread < kDecades) decades[thread] = decade_of(thread, is_signed);
    if (thread == 0) values[0] = -1e30f;
  }

  __device__ float value(uint8_t byte) const { return values[1 + (is_signed ? static_cast<uint8_t>(byte + kZero) : byte)]; }

  /* The byte whose number is nearest; of two the smaller number's. The cell that holds the size is that number's or its
   * neighbour's, so the number on the value's other side decides. A size near a decade's end may count as the next decade's. */
  __device__ uint8_t nearest(float value) const {
    const float size = is_signed ? fabsf(value) : value, number = fmaf(0.30103f, logarithm(size), kDecades);
    const Decade decade = decades[static_cast<int>(fminf(fmaxf(number, 0.0f), kDecades - 1))];
    const float cell = fminf(fmaxf(fmaf(size, decade.factor, decade.offset), 0.0f), decade.last);
    const int place = decade.first + static_cast<int>(cell);
    const int here = 1 + (!is_signed ? place : value < 0 ? kZero - place : kZero + place);
    const int lower = value < values[here] ? here - 1 : here;
    const bool is_upper = value - values[lower] > values[lower + 1] - value;
    return static_cast<uint8_t>(lower - 1 + (is_upper ? 1 : 0) - (is_signed ? kZero : 0));
  }

  /* Writes bytes of the new states of a thread, by a new scale. */
  template <int N>
  __device__ void store(const float (&state)[kEach], float largest, uint8_t *bytes, float *scale, int count) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float lift = largest < 1e-30f ? 0x1p64f : 1.0f; /* the inverse of a smaller number could be infinite */
    const float inverse = largest > 0 ? reciprocal(largest * lift) : 0.0f;
#pragma unroll
    for (int k = 0; k < kEach; k += N) {
      const int i = k * 32 + lane * N;
      if (i >= count) continue;
      Pack<uint8_t, N> pack;
#pragma unroll
      for (int j = 0; j < N; ++j) pack.value[j] = nearest(state[k + j] * lift * inverse);
      store_pack<N>(bytes + i, pack);
    }
    if (lane == 0) *scale = largest;
  }
};

/* The largest of a warp. */
__device__ inline float largest_of_warp(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

/* What shares a scale, by a warp whose threads have N neighbours at a time. */
template <class Method, int kStates, class Weights, Known known, int N>
__device__ inline void step_scaled(const StepNumbers &numbers, const StepRange &range, const Step &step, int64_t first, int count,
                                   const Codes<true> &signed_codes, const Codes<false> &unsigned_codes) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float *const scale1 = range.first_scale + first / kScaled, *const scale2 = range.second_scale + first / kScaled;
  uint8_t *const bytes1 = static_cast<uint8_t *>(range.first) + first, *const bytes2 = static_cast<uint8_t *>(range.second) + first;
  const float old1 = *scale1, old2 = kStates == 2 ? *scale2 : 0.0f;
  float a[kEach] = {}, b[kEach] = {}, largest1 = 0, largest2 = 0;
#pragma unroll
  for (int k = 0; k < kEach; k += N) {
    const int i = k * 32 + lane * N;
    if (i >= count) continue;
    Weights weights(range, first + i);
    const Gradients<N, known> gradients(numbers, range.gradient, first + i);
    const auto states1 = load_pack<N>(static_cast<const uint8_t *>(bytes1) + i);
    Pack<uint8_t, N> states2 = {};
    if (kStates == 2) states2 = load_pack<N>(static_cast<const uint8_t *>(bytes2) + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float w = weights.get(j);
      a[k + j] = old1 * signed_codes.value(states1.value[j]);
      if (kStates == 2) b[k + j] = old2 * unsigned_codes.value(states2.value[j]);
      Method::move(numbers, step, gradients.get(numbers, j), w, a[k + j], b[k + j]);
      weights.set(j, w);
      largest1 = fmaxf(largest1, fabsf(a[k + j]));
      largest2 = fmaxf(largest2, b[k + j]);
    }
    weights.store(range, first + i);
  }
  signed_codes.template store<N>(a, largest_of_warp(largest1), bytes1, scale1, count);
  if (kStates == 2) unsigned_codes.template store<N>(b, largest_of_warp(largest2), bytes2, scale2, count);
}

/* kStates: 1 or 2. */
template <Known known, class Method, int kStates, template <class, int> class Weights, class W>
__device__ inline void step_codes(const StepNumbers &numbers, const StepTable &table) {
  __shared__ Codes<true> signed_codes;
  __shared__ Codes<false> unsigned_codes;
  if (numbers.skip[0] == 1) return;
  const int thread = static_cast<int>(threadIdx.x);
  signed_codes.fill(thread);
  unsigned_codes.fill(thread);
  __syncthreads();
  constexpr int kParts = kBlockElements / kScaled;
  const uint32_t warps = kThreads / 32 / kParts; /* blocks of elements that a thread block has at a time */
  const uint32_t mine = thread / 32 / kParts;
  for_blocks(numbers, table, blockIdx.x * warps + mine, gridDim.x * warps,
             [&](const StepRange &range, const Step &step, int64_t begin, int in_block) {
               const int part = thread / 32 % kParts * kScaled, rest = in_block - part;
               if (rest <= 0) return;
               if (rest >= kScaled && is_aligned(range)) {
                 step_scaled<Method, kStates, Weights<W, kEach>, known, kEach>(numbers, range, step, begin + part, kScaled, signed_codes,
                                                                        unsigned_codes);
               } else {
                 step_scaled<Method, kStates, Weights<W, 1>, known, 1>(numbers, range, step, begin + part,
                                                                rest < kScaled ? rest : kScaled, signed_codes, unsigned_codes);
               }
             });
}

#define STEP(name, ...) \
  KERNEL(name, StepNumbers numbers, StepTable table) { step_ranges<__VA_ARGS__>(numbers, table); }
/* These are short of registers, and a branch for each gradient would cost them some. */
#define CODES(name, ...)                                                                                       \
  KERNEL_OF(3, name, StepNumbers numbers, StepTable table) {                                                   \
    if (numbers.gradient_dtype == kGradientFloat32) return step_codes<Known::kFloat32, __VA_ARGS__>(numbers, table); \
    step_codes<Known::k16Bits, __VA_ARGS__>(numbers, table);                                                   \
  }
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
STEP(step_average_own, Average<Own, float32>)
STEP(step_average_master, Average<Master, bfloat16>)
STEP(step_average_remainder, Average<Halves, bfloat16>)
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
