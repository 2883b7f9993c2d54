/* What the steps of optimizers share: where FP32 weights lie, the numbers of a step, and Adam's arithmetic. */
#pragma once

#include <common.cuh>

/* The low 16 bits of an FP32 master whose BF16 weight is its upper half, rounded: a remainder with its highest bit set
 * says that the upper half was rounded up. */
struct Remainder {
  uint16_t bits;
};

__device__ inline float join(bfloat16 weight, Remainder remainder) {
  const uint32_t upper = static_cast<uint32_t>(weight.bits) - (remainder.bits >> 15);
  return __int_as_float(static_cast<int32_t>(upper << 16 | remainder.bits));
}

__device__ inline void split(float value, bfloat16 &weight, Remainder &remainder) {
  const auto bits = static_cast<uint32_t>(__float_as_int(value));
  remainder.bits = static_cast<uint16_t>(bits);
  weight.bits = static_cast<uint16_t>((bits >> 16) + (remainder.bits >> 15));
}

/* The numbers of this step, the same for all elements of a range. */
struct Step {
  float rate, weight_decay, scale, correction1, correction2;
};

/* 1 - beta^step, without cancellation. */
__device__ inline float correction(float beta, int step) {
  return beta == 0 ? 1.0f : -expm1f(__fmul_rn(static_cast<float>(step), logf(beta)));
}

/* Adam: updates mean, square and weight of one element. Each rounding is written out: a compiler may round a product and its
 * sum together in one kernel and apart in the other, and the two would give other bits. Which of two products is
 * rounded with the sum makes no difference but to the number of registers. */
template <class Numbers>
__device__ inline void move(const Numbers &a, const Step &s, float gradient, float &weight, float &mean, float &square) {
  const float g = fmaf(s.scale, gradient, a.decoupled ? 0.0f : __fmul_rn(s.weight_decay, weight));
  mean = fmaf(1 - a.beta1, g, __fmul_rn(a.beta1, mean));
  square = fmaf(a.beta2, square, __fmul_rn(__fmul_rn(1 - a.beta2, g), g));
  const float direction = (mean / s.correction1) / __fadd_rn(sqrtf(square / s.correction2), a.epsilon);
  const float update = __fadd_rn(direction, a.decoupled ? __fmul_rn(s.weight_decay, weight) : 0.0f);
  weight = fmaf(-s.rate, update, weight);
}

/* The arguments of a step that all ranges have in common. */
template <class Numbers>
__device__ inline Step step_of(const Numbers &numbers) {
  Step step = {0.0f, 0.0f, numbers.gradient_scale[0], 1.0f, 1.0f};
  if (numbers.corrected) {
    step.correction1 = correction(numbers.beta1, numbers.step[0]);
    step.correction2 = correction(numbers.beta2, numbers.step[0]);
  }
  return step;
}

/* Values of NVTEDType. */
constexpr int kGradientFloat32 = 4, kGradientFloat16 = 5;

/* What a kernel knows of the type of its gradients. */
enum class Known { kNothing, kFloat32, k16Bits };

/* N gradients of a range, from i on, as they lie in memory: they become FP32 where they are read, so that no load waits for another.
 * What is not known is a branch that all threads take alike. */
template <int N, Known known = Known::kNothing>
struct Gradients {
  static constexpr int kHalf = (N + 1) / 2;
  uint32_t words[N];

  template <class Numbers>
  __device__ static bool is_wide(const Numbers &numbers) {
    if constexpr (known != Known::kNothing) return known == Known::kFloat32;
    return numbers.gradient_dtype == kGradientFloat32;
  }

  template <class Numbers>
  __device__ Gradients(const Numbers &numbers, const void *gradients, int64_t i) {
    if (is_wide(numbers)) {
      const auto wide = load_pack<N>(static_cast<const uint32_t *>(gradients) + i);
#pragma unroll
      for (int j = 0; j < N; ++j) words[j] = wide.value[j];
    } else if constexpr (N == 1) {
      words[0] = static_cast<const uint16_t *>(gradients)[i];
    } else {
      const auto halves = load_pack<kHalf>(reinterpret_cast<const uint32_t *>(static_cast<const uint16_t *>(gradients) + i));
#pragma unroll
      for (int j = 0; j < kHalf; ++j) words[j] = halves.value[j];
    }
  }

  template <class Numbers>
  __device__ float get(const Numbers &numbers, int j) const {
    if (is_wide(numbers)) return __uint_as_float(words[j]);
    const auto bits = static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16));
    return numbers.gradient_dtype == kGradientFloat16 ? to_float(float16{bits}) : to_float(bfloat16{bits});
  }
};

constexpr int kBlockElements = 4 * kThreads;

/* The last range that begins at or before a block. */
template <class Table>
__device__ inline int range_of(const Table &table, uint32_t block) {
  int first = 0, end = table.count;
  while (end - first > 1) {
    const int middle = first + (end - first) / 2;
    (table.ranges[middle].first_block <= block ? first : end) = middle;
  }
  return first;
}

/* Where the FP32 weight is: the weight itself, a master beside it, or a remainder beside it. */
template <class W, int N>
struct Own {
  Pack<W, N> weight;
  template <class Range>
  __device__ Own(const Range &a, int64_t i) : weight(load_pack<N>(static_cast<const W *>(a.weight) + i)) {}
  __device__ float get(int j) const { return weight.value[j]; }
  __device__ void set(int j, float value) { weight.value[j] = value; }
  template <class Range>
  __device__ void store(const Range &a, int64_t i) { store_pack<N>(static_cast<W *>(a.weight) + i, weight); }
};

template <class W, int N>
struct Master {
  Pack<float, N> master;
  template <class Range>
  __device__ Master(const Range &a, int64_t i)
      : master(load_pack<N>(static_cast<const float *>(a.master) + i)) {}
  __device__ float get(int j) const { return master.value[j]; }
  __device__ void set(int j, float value) { master.value[j] = value; }
  template <class Range>
  __device__ void store(const Range &a, int64_t i) {
    Pack<W, N> weight;
    for (int j = 0; j < N; ++j) from_float(master.value[j], weight.value[j]);
    store_pack<N>(static_cast<float *>(a.master) + i, master);
    store_pack<N>(static_cast<W *>(a.weight) + i, weight);
  }
};

template <class W, int N>
struct Halves {
  Pack<W, N> weight;
  Pack<Remainder, N> remainder;
  template <class Range>
  __device__ Halves(const Range &a, int64_t i)
      : weight(load_pack<N>(static_cast<const W *>(a.weight) + i)),
        remainder(load_pack<N>(static_cast<const Remainder *>(a.master) + i)) {}
  __device__ float get(int j) const { return join(weight.value[j], remainder.value[j]); }
  __device__ void set(int j, float value) { split(value, weight.value[j], remainder.value[j]); }
  template <class Range>
  __device__ void store(const Range &a, int64_t i) {
    store_pack<N>(static_cast<W *>(a.weight) + i, weight);
    store_pack<N>(static_cast<Remainder *>(a.master) + i, remainder);
  }
};
