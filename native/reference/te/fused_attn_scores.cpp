/* Modifications of fused attention's scores before the softmax. */
#include <cmath>

#include "te/fused_attn_problem.h"

namespace chagres::reference {

namespace {

/* The bias or its gradient, checked to have the extents of the configuration. */
void *bias_data(NVTETensor handle, const char *argument, const FusedAttnInputs &inputs, const Caller &caller) {
  const View bias = view(handle, argument, {static_cast<NVTEDType>(inputs.config.qkv_dtype)}, caller);
  const NVTEShape expected = bias_shape(inputs.config);
  if (static_cast<size_t>(bias.count()) != element_count(expected))
    fail(caller, text("Tensor \"", argument, "\" must have shape ", shape_text(expected), ", got ", shape_text(bias.shape)));
  return bias.data;
}

/* With n the largest power of two up to `heads`: 2^(-8 / n), 2^(-16 / n), ..., 2^-8 for the first n heads, and every second of
 * those that 2 n heads would have for the rest. */
std::vector<float> alibi_slopes(int64_t heads) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<float> slopes(static_cast<size_t>(heads));
  for (int64_t head = 0; head < heads; ++head) {
    const double steps =
        head < power ? static_cast<double>(head + 1) : static_cast<double>(2 * (head - power) + 1) / 2;
    slopes[static_cast<size_t>(head)] = static_cast<float>(std::exp2(-8 * steps / static_cast<double>(power)));
  }
  return slopes;
}

}  // namespace

bool has_bias(const FusedAttnConfig &config) { return config.bias_type == NVTE_POST_SCALE_BIAS; }

NVTEShape bias_shape(const FusedAttnConfig &config) {
  return make_shape({config.bias_batch_size, config.bias_num_heads, config.bias_seqlen_q, config.bias_seqlen_kv});
}

void FusedAttnScores::change(AttentionProblem &problem, NVTETensor bias, const char *argument, const FusedAttnInputs &inputs,
                             const Caller &caller) {
  const FusedAttnConfig &config = inputs.config;
  if (config.bias_type == NVTE_ALIBI) {
    slopes_ = alibi_slopes(problem.heads);
    problem.scores.alibi_slopes = slopes_.data();
  }
  if (!has_bias(config)) return;
  const auto heads = static_cast<int64_t>(config.bias_num_heads), keys = static_cast<int64_t>(config.bias_seqlen_kv);
  const int64_t head = static_cast<int64_t>(config.bias_seqlen_q) * keys;
  ScoreTensor &scores = problem.scores.bias;
  scores.data = bias_data(bias, argument, inputs, caller);
  scores.dtype = static_cast<NVTEDType>(config.qkv_dtype);
  scores.sequence = config.bias_batch_size == 1 ? 0 : heads * head;
  scores.head = heads == 1 ? 0 : head;
  scores.query = keys;
}

void FusedAttnScores::differentiate(AttentionProblem &problem, NVTETensor dbias, const FusedAttnInputs &inputs,
                                    const Caller &caller) {
  if (!has_bias(inputs.config)) return;
  dbias_ = bias_data(dbias, "DBias", inputs, caller);
  dtype_ = static_cast<NVTEDType>(inputs.config.qkv_dtype);
  sums_.assign(element_count(bias_shape(inputs.config)), 0.0f);
  problem.scores.dbias = sums_.data();
}

void FusedAttnScores::store() const {
  if (dbias_ != nullptr) from_float(dbias_, sums_.data(), dtype_, static_cast<int64_t>(sums_.size()));
}

}  // namespace chagres::reference
