/* One step of Adam, four neighbours a thread. */
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

/* The numbers of this step, the same for all elements. */
struct Step {
  float rate, scale, correction1, correction2;
};

/* 1 - beta^step, without the digits that the difference would lose. */
__device__ inline float correction(float beta, int step) { return beta == 0 ? 1.0f : -expm1f(step * logf(beta)); }

/* Moves mean, square and weight of one element. */
__device__ inline void move(const AdamArguments &a, const Step &s, float gradient, float &weight, float &mean,
                            float &square) {
  const float g = s.scale * gradient + (a.decoupled ? 0.0f : a.weight_decay * weight);
  mean = a.beta1 * mean + (1 - a.beta1) * g;
  square = a.beta2 * square + (1 - a.beta2) * g * g;
  const float direction = (mean / s.correction1) / (sqrtf(square / s.correction2) + a.epsilon);
  weight -= s.rate * (direction + (a.decoupled ? a.weight_decay * weight : 0.0f));
}

/* Where the FP32 weight is: the weight itself, a master beside it, or a remainder beside it. */
template <class W, int N>
struct Own {
  Pack<W, N> weight;
  __device__ Own(const AdamArguments &a, int64_t i) : weight(load_pack<N>(static_cast<const W *>(a.weight) + i)) {}
  __device__ float get(int j) const { return weight.value[j]; }
  __device__ void set(int j, float value) { weight.value[j] = value; }
  __device__ void store(const AdamArguments &a, int64_t i) { store_pack<N>(static_cast<W *>(a.weight) + i, weight); }
};

template <class W, int N>
struct Master {
  Pack<float, N> master;
  __device__ Master(const AdamArguments &a, int64_t i)
      : master(load_pack<N>(static_cast<const float *>(a.master) + i)) {}
  __device__ float get(int j) const { return master.value[j]; }
  __device__ void set(int j, float value) { master.value[j] = value; }
  __device__ void store(const AdamArguments &a, int64_t i) {
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
  __device__ Halves(const AdamArguments &a, int64_t i)
      : weight(load_pack<N>(static_cast<const W *>(a.weight) + i)),
        remainder(load_pack<N>(static_cast<const Remainder *>(a.master) + i)) {}
  __device__ float get(int j) const { return join(weight.value[j], remainder.value[j]); }
  __device__ void set(int j, float value) { split(value, weight.value[j], remainder.value[j]); }
  __device__ void store(const AdamArguments &a, int64_t i) {
    store_pack<N>(static_cast<W *>(a.weight) + i, weight);
    store_pack<N>(static_cast<Remainder *>(a.master) + i, remainder);
  }
};

/* N elements from i on; M: type of the moments. */
template <class Weights, class M, int N>
__device__ inline void update(const AdamArguments &a, const Step &step, int64_t i) {
  M *const means = static_cast<M *>(a.mean) + i, *const squares = static_cast<M *>(a.square) + i;
  const auto gradient = load_pack<N>(a.gradient + i);
  auto mean = load_pack<N>(static_cast<const M *>(means));
  auto square = load_pack<N>(static_cast<const M *>(squares));
  Weights weights(a, i);
  for (int j = 0; j < N; ++j) {
    float w = weights.get(j), m = to_float(mean.value[j]), v = to_float(square.value[j]);
    move(a, step, gradient.value[j], w, m, v);
    weights.set(j, w);
    from_float(m, mean.value[j]);
    from_float(v, square.value[j]);
  }
  weights.store(a, i);
  store_pack<N>(means, mean);
  store_pack<N>(squares, square);
}

template <template <class, int> class Weights, class W, class M>
__device__ void adam(const AdamArguments &a) {
  if (a.skip[0] == 1) return;
  Step step = {a.rate[0], a.gradient_scale[0], 1.0f, 1.0f};
  if (a.corrected) {
    step.correction1 = correction(a.beta1, a.step[0]);
    step.correction2 = correction(a.beta2, a.step[0]);
  }
  for (int64_t i = thread_index(); i < a.packs; i += thread_total()) update<Weights<W, 4>, M, 4>(a, step, 4 * i);
  for (int64_t i = 4 * a.packs + thread_index(); i < a.count; i += thread_total())
    update<Weights<W, 1>, M, 1>(a, step, i);
}

#define ADAM(name, weights, W, M) \
  KERNEL(adam_##name, AdamArguments arguments) { adam<weights, W, M>(arguments); }

ADAM(own_float32, Own, float32, float32)
ADAM(own_bfloat16, Own, float32, bfloat16)
ADAM(master_float16_float32, Master, float16, float32)
ADAM(master_float16_bfloat16, Master, float16, bfloat16)
ADAM(master_bfloat16_float32, Master, bfloat16, float32)
ADAM(master_bfloat16_bfloat16, Master, bfloat16, bfloat16)
ADAM(remainder_float32, Halves, bfloat16, float32)
ADAM(remainder_bfloat16, Halves, bfloat16, bfloat16)
