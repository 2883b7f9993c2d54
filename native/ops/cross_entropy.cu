/* Masked cross-entropy: forward with one warp a token, its sum over tokens, and backward one pack a thread. */
#include <common.cuh>

constexpr int kWarps = kThreads / 32;

__device__ inline float infinity() { return __int_as_float(0x7f800000); }

/* A power of two below 1 / classes: the sum of logits times this overflows for no finite logits, and rounds as their sum does. */
constexpr float kShare = 1.0f / (1ll << 32);

/* A running log(sum of exp): sum = sum of exp(z - shift(largest)). */
struct RunningSum {
  float largest;
  float sum;
};

/* An infinite maximum must not be subtracted from itself. */
__device__ inline float shift(float largest) { return fabsf(largest) == infinity() ? 0.0f : largest; }

__device__ inline RunningSum merge(RunningSum a, RunningSum b) {
  const float largest = fmaxf(a.largest, b.largest), s = shift(largest);
  /* An empty part has largest -infinity and sum 0: its factor is 0. */
  return {largest, a.sum * expf(a.largest - s) + b.sum * expf(b.largest - s)};
}

/* kWithTotal: the sum of the logits times kShare goes to *total. */
template <class T, int N, bool kWithTotal>
__device__ inline RunningSum sum_of_exp(const T *logits, int64_t classes, float *total) {
  RunningSum running = {-infinity(), 0.0f};
  float lane_total = 0;
  for (int64_t c = threadIdx.x % 32 * N; c < classes; c += 32 * N) {
    const auto pack = load_pack<N>(logits + c);
    float z[N], largest = running.largest;
    for (int j = 0; j < N; ++j) {
      z[j] = c + j < classes ? to_float(pack.value[j]) : -infinity();
      largest = fmaxf(largest, z[j]);
      if (kWithTotal && c + j < classes) lane_total += z[j] * kShare;
    }
    const float s = shift(largest);
    float sum = running.sum == 0 ? 0.0f : running.sum * expf(running.largest - s);
    for (int j = 0; j < N; ++j) sum += expf(z[j] - s);
    running = {largest, sum};
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const RunningSum other = {__shfl_xor_sync(0xffffffffu, running.largest, distance),
                              __shfl_xor_sync(0xffffffffu, running.sum, distance)};
    running = merge(running, other);
    if (kWithTotal) lane_total += __shfl_xor_sync(0xffffffffu, lane_total, distance);
  }
  if (kWithTotal) *total = lane_total;
  return running;
}

/* Writes log-sum-exp and loss of token t and returns the loss, 0 where the token is ignored. */
template <class T, int N>
__device__ inline float token_loss(const T *logits, int64_t label, float smoothing, float *log_sum_exp,
                                   float *token_losses, int64_t t, int64_t classes, int64_t stride) {
  float total = 0;
  const RunningSum running = smoothing == 0 ? sum_of_exp<T, N, false>(logits + t * stride, classes, &total)
                                            : sum_of_exp<T, N, true>(logits + t * stride, classes, &total);
  const float lse = shift(running.largest) + logf(running.sum);
  float loss = 0;
  if (label >= 0 && label < classes) {
    const float score = to_float(logits[t * stride + label]);
    loss = smoothing == 0 ? lse - score : (1 - smoothing) * (lse - score) + smoothing * (lse - total / classes / kShare);
  }
  if (threadIdx.x % 32 == 0) {
    log_sum_exp[t] = lse;
    if (token_losses != nullptr) token_losses[t] = loss;
  }
  return loss;
}

template <class T, int N>
__device__ void forward(const T *logits, const int32_t *labels, float smoothing, float *log_sum_exp,
                        float *token_losses, float *partial_loss, int32_t *partial_count, int64_t tokens,
                        int64_t classes, int64_t stride) {
  __shared__ float warp_loss[kWarps];
  __shared__ int32_t warp_count[kWarps];
  const int warp = threadIdx.x / 32;
  float loss = 0;
  int32_t counted = 0;
  for (int64_t t = thread_index() / 32; t < tokens; t += thread_total() / 32) {
    const int64_t label = labels[t];
    loss += token_loss<T, N>(logits, label, smoothing, log_sum_exp, token_losses, t, classes, stride);
    if (label >= 0 && label < classes) ++counted;
  }
  if (threadIdx.x % 32 == 0) {
    warp_loss[warp] = loss;
    warp_count[warp] = counted;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) {
    loss += warp_loss[w];
    counted += warp_count[w];
  }
  partial_loss[blockIdx.x] = loss;
  partial_count[blockIdx.x] = counted;
}

/* One block: adds the blocks' sums in a fixed order. divisor: null for the number of counted tokens. */
KERNEL(cross_entropy_mean, const float *partial_loss, const int32_t *partial_count, const int32_t *divisor, float *loss,
       int32_t *counted, int blocks) {
  __shared__ float sums[kThreads];
  __shared__ int32_t counts[kThreads];
  const int thread = threadIdx.x;
  float sum = 0;
  int32_t count = 0;
  for (int i = thread; i < blocks; i += kThreads) {
    sum += partial_loss[i];
    count += partial_count[i];
  }
  sums[thread] = sum;
  counts[thread] = count;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) {
      sums[thread] += sums[thread + half];
      counts[thread] += counts[thread + half];
    }
  }
  if (thread != 0) return;
  const int32_t divided_by = divisor != nullptr ? divisor[0] : counts[0];
  loss[0] = divided_by > 0 ? sums[0] / divided_by : 0.0f;
  counted[0] = counts[0];
}

template <class T, int N>
__device__ void backward(const T *logits, const int32_t *labels, const float *log_sum_exp, const int32_t *counted,
                         float gradient, const float *loss_scale, const float *token_gradients, float smoothing,
                         T *dlogits, int64_t tokens, int64_t classes, int64_t stride, int64_t first_class,
                         int64_t all_classes) {
  const int64_t packs = stride / N;
  const float sum = loss_scale == nullptr ? gradient : gradient * loss_scale[0];
  const float scale = counted == nullptr ? sum : counted[0] > 0 ? sum / counted[0] : 0.0f;
  const float miss = smoothing / all_classes, hit = 1 - smoothing + miss;
  for (int64_t i = thread_index(); i < tokens * packs; i += thread_total()) {
    const int64_t t = divide(i, packs), first = (i - t * packs) * N;
    const int64_t label = labels[t];
    const bool taken = label >= 0 && label < all_classes;
    const float lse = log_sum_exp[t], factor = token_gradients == nullptr ? scale : scale * token_gradients[t];
    auto pack = load_pack<N>(logits + i * N);
    for (int j = 0; j < N; ++j) {
      const int64_t c = first + j;
      const float slope = expf(to_float(pack.value[j]) - lse) - (first_class + c == label ? hit : miss);
      from_float(taken && c < classes ? factor * slope : 0.0f, pack.value[j]);
    }
    store_pack<N>(dlogits + i * N, pack);
  }
}

#define KERNELS(suffix, T, N)                                                                                      \
  KERNEL(cross_entropy_forward##suffix, const T *logits, const int32_t *labels, float smoothing,                   \
         float *log_sum_exp, float *token_losses, float *partial_loss, int32_t *partial_count, int64_t tokens,     \
         int64_t classes, int64_t stride) {                                                                        \
    forward<T, N>(logits, labels, smoothing, log_sum_exp, token_losses, partial_loss, partial_count, tokens,       \
                  classes, stride);                                                                                \
  }                                                                                                                \
  KERNEL(cross_entropy_backward##suffix, const T *logits, const int32_t *labels, const float *log_sum_exp,         \
         const int32_t *counted, float gradient, const float *loss_scale, const float *token_gradients,            \
         float smoothing, T *dlogits, int64_t tokens, int64_t classes, int64_t stride, int64_t first_class,        \
         int64_t all_classes) {                                                                                    \
    backward<T, N>(logits, labels, log_sum_exp, counted, gradient, loss_scale, token_gradients, smoothing, dlogits, \
                   tokens, classes, stride, first_class, all_classes);                                             \
  }
#define PACKED(name, T) KERNELS(name, T, kPack<T>)
#define SCALAR(name, T) KERNELS(name, T, 1)

FOR_FLOATS(PACKED, )
FOR_FLOATS(SCALAR, _scalar)
