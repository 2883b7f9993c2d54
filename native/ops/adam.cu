/* One step of Adam over one range or many, four neighbours a thread. */
#include <optimizer_ranges.cuh>

#include <adam_arguments.cuh>

/* N elements from i on; M: type of the moments. */
template <class Weights, class M, int N>
__device__ inline void update(const AdamNumbers &numbers, const AdamRange &range, const Step &step, int64_t i) {
  M *const means = static_cast<M *>(range.mean) + i, *const squares = static_cast<M *>(range.square) + i;
  const Gradients<N> gradients(numbers, range.gradient, i);
  auto mean = load_pack<N>(static_cast<const M *>(means));
  auto square = load_pack<N>(static_cast<const M *>(squares));
  Weights weights(range, i);
  for (int j = 0; j < N; ++j) {
    float w = weights.get(j), m = to_float(mean.value[j]), v = to_float(square.value[j]);
    move(numbers, step, gradients.get(numbers, j), w, m, v);
    weights.set(j, w);
    from_float(m, mean.value[j]);
    from_float(v, square.value[j]);
  }
  weights.store(range, i);
  store_pack<N>(means, mean);
  store_pack<N>(squares, square);
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
