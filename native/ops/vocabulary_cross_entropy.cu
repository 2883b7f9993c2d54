/* Cross-entropy by parts of the classes: maximum and sums with one warp a token, the loss with one thread a token. */
#include <common.cuh>

__device__ inline float infinity() { return __int_as_float(0x7f800000); }

/* A power of two below 1 / classes: the sum of logits times this overflows for no finite logits, and rounds as their sum does. */
constexpr float kShare = 1.0f / (1ll << 32);

/* An infinite maximum must not be subtracted from itself. */
__device__ inline float shift(float largest) { return fabsf(largest) == infinity() ? 0.0f : largest; }

template <class T, int N>
__device__ void maximum(const T *logits, float *largest_logit, int64_t tokens, int64_t classes, int64_t stride) {
  for (int64_t t = thread_index() / 32; t < tokens; t += thread_total() / 32) {
    float largest = -infinity();
    for (int64_t c = threadIdx.x % 32 * N; c < classes; c += 32 * N) {
      const auto pack = load_pack<N>(logits + t * stride + c);
      for (int j = 0; j < N; ++j)
        if (c + j < classes) largest = fmaxf(largest, to_float(pack.value[j]));
    }
    for (int distance = 16; distance > 0; distance /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    if (threadIdx.x % 32 == 0) largest_logit[t] = largest;
  }
}

template <class T, int N>
__device__ void sums(const T *logits, const int32_t *labels, const float *largest_logit, float smoothing, float *out,
                     int64_t tokens, int64_t classes, int64_t stride, int64_t first_class) {
  for (int64_t t = thread_index() / 32; t < tokens; t += thread_total() / 32) {
    const float s = shift(largest_logit[t]);
    float sum = 0, total = 0;
    for (int64_t c = threadIdx.x % 32 * N; c < classes; c += 32 * N) {
      const auto pack = load_pack<N>(logits + t * stride + c);
      for (int j = 0; j < N; ++j) {
        if (c + j >= classes) continue;
        const float z = to_float(pack.value[j]);
        sum += expf(z - s);
        total += z * kShare;
      }
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, distance);
      total += __shfl_xor_sync(0xffffffffu, total, distance);
    }
    if (threadIdx.x % 32 != 0) continue;
    const int64_t label = labels[t] - first_class;
    out[t] = sum;
    out[tokens + t] = label >= 0 && label < classes ? to_float(logits[t * stride + label]) : 0.0f;
    if (smoothing != 0) out[2 * tokens + t] = total;
  }
}

KERNEL(vocabulary_cross_entropy_loss, const float *largest_logit, const float *sums, const int32_t *labels,
       float smoothing, float *log_sum_exp, float *token_losses, float *partial_loss, int32_t *partial_count,
       int64_t tokens, int64_t classes) {
  __shared__ float losses[kThreads];
  __shared__ int32_t counts[kThreads];
  const int thread = threadIdx.x;
  float loss = 0;
  int32_t counted = 0;
  for (int64_t t = thread_index(); t < tokens; t += thread_total()) {
    const float lse = shift(largest_logit[t]) + logf(sums[t]), score = sums[tokens + t];
    const bool taken = labels[t] >= 0 && labels[t] < classes;
    float own = 0;
    if (taken) {
      own = lse - score;
      if (smoothing != 0) own = (1 - smoothing) * own + smoothing * (lse - sums[2 * tokens + t] / classes / kShare);
      ++counted;
    }
    log_sum_exp[t] = lse;
    if (token_losses != nullptr) token_losses[t] = own;
    loss += own;
  }
  losses[thread] = loss;
  counts[thread] = counted;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) {
      losses[thread] += losses[thread + half];
      counts[thread] += counts[thread + half];
    }
  }
  if (thread != 0) return;
  partial_loss[blockIdx.x] = losses[0];
  partial_count[blockIdx.x] = counts[0];
}

#define KERNELS(suffix, T, N)                                                                                     \
  KERNEL(vocabulary_cross_entropy_maximum##suffix, const T *logits, float *largest_logit, int64_t tokens,         \
         int64_t classes, int64_t stride) {                                                                       \
    maximum<T, N>(logits, largest_logit, tokens, classes, stride);                                                \
  }                                                                                                               \
  KERNEL(vocabulary_cross_entropy_sums##suffix, const T *logits, const int32_t *labels,                           \
         const float *largest_logit, float smoothing, float *out, int64_t tokens, int64_t classes,                \
         int64_t stride, int64_t first_class) {                                                                   \
    sums<T, N>(logits, labels, largest_logit, smoothing, out, tokens, classes, stride, first_class);              \
  }
#define PACKED(name, T) KERNELS(name, T, kPack<T>)
#define SCALAR(name, T) KERNELS(name, T, 1)

FOR_FLOATS(PACKED, )
FOR_FLOATS(SCALAR, _scalar)
