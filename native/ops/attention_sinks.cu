/* The gradients of attention's sinks: a block sums those of one head, its threads every 128th query of each sequence. */
#include <attention_scores.cuh>

KERNEL_WITH(kAttentionThreads, 1, attention_d_sinks, const AttentionArguments a) {
  DYNAMIC_SHARED(shared);
  const int head = blockIdx.x, thread = threadIdx.x;
  float sum = 0;
  for (int b = 0; b < a.sequences; ++b) {
    const Place place = place_at<Own::kQueries>(a, b, head, 0);
    const float *const sums = query_rows(static_cast<const float *>(a.log_sum_exp), a, place, a.statistics);
    const float *const delta = query_rows(static_cast<const float *>(a.delta), a, place, a.statistics);
    for (int row = thread; row < place.queries.length; row += kAttentionThreads) {
      const float log_sum = sums[row * a.statistics.token];
      /* -infinity: the sink is, too */
      const float weight = log_sum == minus_infinity() ? 0.0f : exp2f(sink_of(a, place) - log_sum * kLog2E);
      sum -= weight * delta[row * a.statistics.token];
    }
  }
  shared[thread] = sum;
  for (int step = kAttentionThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (thread < step) shared[thread] += shared[thread + step];
  }
  if (thread == 0) a.scores.d_sinks[head] = shared[0];
}
