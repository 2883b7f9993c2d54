/* One step of Adam over one range or many, four neighbours a thread. */
#include <common.cuh>

#include <adam_arguments.cuh>

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

/* Updates mean, square and weight of one element. Each rounding is written out: a compiler may round a product and its
 * sum together in one kernel and apart in the other, and the two would give other bits. Which of two products is
 * rounded with the sum makes no difference but to the number of registers. */
__device__ inline void move(const AdamNumbers &a, const Step &s, float gradient, float &weight, float &mean,
                            float &square) {
  const float g = fmaf(s.scale, gradient, a.decoupled ? 0.0f : __fmul_rn(s.weight_decay, weight));
  mean = fmaf(1 - a.beta1, g, __fmul_rn(a.beta1, mean));
  square = fmaf(a.beta2, square, __fmul_rn(__fmul_rn(1 - a.beta2, g), g));
  const float direction = (mean / s.correction1) / __fadd_rn(sqrtf(square / s.correction2), a.epsilon);
  const float update = __fadd_rn(direction, a.decoupled ? __fmul_rn(s.weight_decay, weight) : 0.0f);
  weight = fmaf(-s.rate, update, weight);
}

/* Where the FP32 weight is: the weight itself, a master beside it, or a remainder beside it. */
template <class W, int N>
struct Own {
  Pack<W, N> weight;
  __device__ Own(const AdamRange &a, int64_t i) : weight(load_pack<N>(static_cast<const W *>(a.weight) + i)) {}
  __device__ float get(int j) const { return weight.value[j]; }
  __device__ void set(int j, float value) { weight.value[j] = value; }
  __device__ void store(const AdamRange &a, int64_t i) { store_pack<N>(static_cast<W *>(a.weight) + i, weight); }
};

template <class W, int N>
struct Master {
  Pack<float, N> master;
  __device__ Master(const AdamRange &a, int64_t i)
      : master(load_pack<N>(static_cast<const float *>(a.master) + i)) {}
  __device__ float get(int j) const { return master.value[j]; }
  __device__ void set(int j, float value) { master.value[j] = value; }
  __device__ void store(const AdamRange &a, int64_t i) {
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
  __device__ Halves(const AdamRange &a, int64_t i)
      : weight(load_pack<N>(static_cast<const W *>(a.weight) + i)),
        remainder(load_pack<N>(static_cast<const Remainder *>(a.master) + i)) {}
  __device__ float get(int j) const { return join(weight.value[j], remainder.value[j]); }
  __device__ void set(int j, float value) { split(value, weight.value[j], remainder.value[j]); }
  __device__ void store(const AdamRange &a, int64_t i) {
    store_pack<N>(static_cast<W *>(a.weight) + i, weight);
    store_pack<N>(static_cast<Remainder *>(a.master) + i, remainder);
  }
};

/* N elements from i on; M: type of the moments. */
template <class Weights, class M, int N>
__device__ inline void update(const AdamNumbers &numbers, const AdamRange &range, const Step &step, int64_t i) {
  M *const means = static_cast<M *>(range.mean) + i, *const squares = static_cast<M *>(range.square) + i;
  const auto gradient = load_pack<N>(range.gradient + i);
  auto mean = load_pack<N>(static_cast<const M *>(means));
  auto square = load_pack<N>(static_cast<const M *>(squares));
  Weights weights(range, i);
  for (int j = 0; j < N; ++j) {
    float w = weights.get(j), m = to_float(mean.value[j]), v = to_float(square.value[j]);
    move(numbers, step, gradient.value[j], w, m, v);
    weights.set(j, w);
    from_float(m, mean.value[j]);
    from_float(v, square.value[j]);
  }
  weights.store(range, i);
  store_pack<N>(means, mean);
  store_pack<N>(squares, square);
}

/* The arguments of a step that all ranges have in common. */
__device__ inline Step step_of(const AdamNumbers &numbers) {
  Step step = {0.0f, 0.0f, numbers.gradient_scale[0], 1.0f, 1.0f};
  if (numbers.corrected) {
    step.correction1 = correction(numbers.beta1, numbers.step[0]);
    step.correction2 = correction(numbers.beta2, numbers.step[0]);
  }
  return step;
}

/* packs: runs of four elements, each on a boundary of four; 0 when a pointer is not. */
template <template <class, int> class Weights, class W, class M>
__device__ void adam(const AdamNumbers &numbers, const AdamRange &range, int64_t packs) {
  if (numbers.skip[0] == 1) return;
  Step step = step_of(numbers);
  step.rate = range.rate[0];
  step.weight_decay = range.weight_decay;
  for (int64_t i = thread_index(); i < packs; i += thread_total()) update<Weights<W, 4>, M, 4>(numbers, range, step, 4 * i);
  for (int64_t i = 4 * packs + thread_index(); i < range.count; i += thread_total())
    update<Weights<W, 1>, M, 1>(numbers, range, step, i);
}

constexpr int kBlockElements = 4 * kThreads;

/* The last range that begins at or before a block. */
__device__ inline int range_of(const AdamTable &table, uint32_t block) {
  int first = 0, end = table.count;
  while (end - first > 1) {
    const int middle = first + (end - first) / 2;
    (table.ranges[middle].first_block <= block ? first : end) = middle;
  }
  return first;
}

__device__ inline bool is_aligned(const AdamRange &range) {
  const auto bits = reinterpret_cast<uint64_t>(range.gradient) | reinterpret_cast<uint64_t>(range.weight) |
                    reinterpret_cast<uint64_t>(range.mean) | reinterpret_cast<uint64_t>(range.square) |
                    reinterpret_cast<uint64_t>(range.master);
  return (bits & 15) == 0;
}

/* Each thread block takes every gridDim.x-th block of elements, and looks for the range where it leaves the one before. Addresses
 * are read from the table each time: kept in registers they would leave room for fewer threads. */
template <template <class, int> class Weights, class W, class M>
__device__ void adam_ranges(const AdamNumbers &numbers, const AdamTable &table) {
  if (numbers.skip[0] == 1) return;
  Step step = step_of(numbers);
  const AdamRange *range = table.ranges;
  bool packed = false;
  uint32_t end = 0; /* the first block behind the range */
  for (uint32_t block = blockIdx.x; block < static_cast<uint32_t>(table.blocks); block += gridDim.x) {
    if (block >= end) {
      const int found = range_of(table, block);
      range = table.ranges + found;
      end = found + 1 < table.count ? static_cast<uint32_t>(range[1].first_block) : static_cast<uint32_t>(table.blocks);
      packed = is_aligned(*range);
      step.rate = range->rate[0];
      step.weight_decay = range->weight_decay;
    }
    const int64_t begin = (block - range->first_block) * kBlockElements, rest = range->count - begin;
    const int count = rest < kBlockElements ? static_cast<int>(rest) : kBlockElements;
    const int packs = packed ? count / 4 : 0, thread = static_cast<int>(threadIdx.x);
    if (thread < packs) update<Weights<W, 4>, M, 4>(numbers, *range, step, begin + 4 * thread);
    for (int i = 4 * packs + thread; i < count; i += kThreads) update<Weights<W, 1>, M, 1>(numbers, *range, step, begin + i);
  }
}

#define ADAM(name, weights, W, M)                                                                                    \
  KERNEL(adam_##name, AdamNumbers numbers, AdamRange range, int64_t packs) { adam<weights, W, M>(numbers, range, packs); } \
  KERNEL_OF(4, adam_ranges_##name, AdamNumbers numbers, AdamTable table) { adam_ranges<weights, W, M>(numbers, table); }

ADAM(own_float32, Own, float32, float32)
ADAM(own_bfloat16, Own, float32, bfloat16)
ADAM(master_float16_float32, Master, float16, float32)
ADAM(master_float16_bfloat16, Master, float16, bfloat16)
ADAM(master_bfloat16_float32, Master, bfloat16, float32)
ADAM(master_bfloat16_bfloat16, Master, bfloat16, bfloat16)
ADAM(remainder_float32, Halves, bfloat16, float32)
ADAM(remainder_bfloat16, Halves, bfloat16, bfloat16)
