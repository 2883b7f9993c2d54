/* Bad arguments: status and text, nothing written; and sizes of zero, which are no error. */
#include <cstdint>
#include <cstring>
#include <functional>

#include "elementwise.h"
#include "harness/report.h"

namespace chagres::tests {

namespace {

/* Pointers that no operation gets to follow. */
void *const p = reinterpret_cast<void *>(uintptr_t{0x1000});
int32_t *const ip = static_cast<int32_t *>(p);
float *const fp = static_cast<float *>(p);
uint8_t *const bp = static_cast<uint8_t *>(p);
int64_t *const lp = static_cast<int64_t *>(p);
void *const odd = reinterpret_cast<void *>(uintptr_t{0x1001});
constexpr int64_t kHuge = int64_t{1} << 62;

class Refusals {
 public:
  explicit Refusals(Session &session) : session_(session), ops(session.ops) {}

  void refused(int status, const char *text) {
    Case test(session_, "arguments", 4, text);
    if (status != OPS_INVALID_ARGUMENT) test.fail("status " + std::to_string(status));
    if (strcmp(ops.last_error(), text) != 0) test.fail(std::string("the text is: ") + ops.last_error());
  }

  /* Of any element-wise operation. */
  void refuse_elements(const Elementwise &operation) {
    void *const function = find_symbol(session_.library, operation.function);
    const std::string name = std::string(operation.function) + ": ";
    const std::vector<const void *> all(operation.inputs.size(), p);
    const auto call = [&](const std::vector<const void *> &x, void *y, int64_t count, int dtype, const std::string &text) {
      refused(call_elementwise(function, x, y, count, dtype, nullptr), (name + text).c_str());
    };
    call(all, p, -1, 4, "count is -1; expected 0 or more");
    call(all, p, 1, 2, "dtype is 2; expected 4 (float32), 5 (float16) or 6 (bfloat16)");
    const std::string result = operation.result;
    call(all, odd, 1, 6, result + " is 0x1001; expected a multiple of 2 bytes");
    call(all, nullptr, 1, 6, result + " is null; expected a device pointer");
    call(all, p, kHuge, 4, "count is too large; expected a product of sizes in bytes below 2^63");
    for (size_t i = 0; i < all.size(); ++i) {
      std::vector<const void *> x = all;
      x[i] = nullptr;
      call(x, p, 1, 4, std::string(operation.inputs[i]) + " is null; expected a device pointer");
    }
    if (operation.amax != nullptr) {
      void *const with = find_symbol(session_.library, operation.amax);
      const std::string text = std::string(operation.amax) + ": amax is null; expected a device pointer";
      refused(call_elementwise_amax(with, all, p, nullptr, 1, 4, nullptr), text.c_str());
    }
    Case test(session_, "arguments", 4, name + "a size of zero");
    const std::vector<const void *> none(all.size(), nullptr);
    if (call_elementwise(function, none, nullptr, 0, 4, nullptr) != OPS_SUCCESS)
      test.fail(std::string("the call was refused: ") + ops.last_error());
  }

  void elementwise() {
    for (const Elementwise &operation : elementwise_operations()) refuse_elements(operation);
    refused(ops.dropout_add(p, p, p, bp, lp, 1.0f, 8, 4, nullptr),
            "ops_dropout_add: probability is 1; expected at least 0 and below 1");
    refused(ops.dropout_add(p, p, p, bp, lp, std::nanf(""), 8, 4, nullptr),
            "ops_dropout_add: probability is nan; expected at least 0 and below 1");
    refused(ops.dropout_add(p, p, p, nullptr, lp, 0.5f, 8, 4, nullptr),
            "ops_dropout_add: mask is null; expected a device pointer");
    refused(ops.dropout_add(p, p, p, bp, nullptr, 0.5f, 8, 4, nullptr),
            "ops_dropout_add: rng_state is null; expected a device pointer");
    refused(ops.dropout_backward(p, bp, p, -0.5f, 8, 4, nullptr),
            "ops_dropout_backward: probability is -0.5; expected at least 0 and below 1");
    refused(ops.dropout_backward(p, bp, nullptr, 0, 8, 4, nullptr),
            "ops_dropout_backward: dx is null; expected a device pointer");
    refused(ops.accumulate(p, nullptr, 1, 8, 4, nullptr), "ops_accumulate: y is null; expected a device pointer");
    refused(ops.cast(p, 4, p, 7, 8, nullptr),
            "ops_cast: y_dtype is 7; expected 4 (float32), 5 (float16) or 6 (bfloat16)");
    refused(ops.cast(p, -4, p, 4, 8, nullptr),
            "ops_cast: x_dtype is -4; expected 4 (float32), 5 (float16) or 6 (bfloat16)");
    refused(ops.clip_scale(nullptr, 1, fp, nullptr), "ops_clip_scale: norm is null; expected a device pointer");
    refused(ops.clip_scale(fp, 0, fp, nullptr), "ops_clip_scale: max_norm is 0; expected a number above 0");
    refused(ops.clip_scale(fp, std::nanf(""), fp, nullptr),
            "ops_clip_scale: max_norm is nan; expected a number above 0");
  }

  void rows() {
    refused(ops.embedding_forward(p, ip, p, 0, 1, -1, 1, 4, nullptr),
            "ops_embedding_forward: vocabulary is -1; expected 0 or more");
    refused(ops.embedding_forward(nullptr, ip, p, 0, 1, 1, 1, 4, nullptr),
            "ops_embedding_forward: table is null; expected a device pointer");
    refused(ops.embedding_forward(p, ip, p, 0, kHuge, 1, 2, 4, nullptr),
            "ops_embedding_forward: tokens * hidden is too large; expected a product of sizes in bytes below 2^63");
    refused(ops.embedding_backward(p, nullptr, fp, 0, 0, 1, 1, 1, 4, nullptr),
            "ops_embedding_backward: ids is null; expected a device pointer");
    refused(ops.embedding_backward(p, ip, nullptr, 0, 0, 0, 1, 1, 4, nullptr),
            "ops_embedding_backward: gradient is null; expected a device pointer");
    refused(ops.embedding_forward(p, ip, p, -1, 1, 1, 1, 4, nullptr),
            "ops_embedding_forward: first is -1; expected 0 or more");
    refused(ops.embedding_backward(p, ip, fp, 0, -2, 1, 1, 1, 4, nullptr),
            "ops_embedding_backward: first is -2; expected 0 or more");
    refused(ops.row_sum(p, fp, 0, -3, 1, 4, nullptr), "ops_row_sum: rows is -3; expected 0 or more");
    refused(ops.row_sum(p, nullptr, 0, 0, 1, 4, nullptr), "ops_row_sum: sum is null; expected a device pointer");
    refused(ops.gather_rows(p, ip, p, 1, 1, -2, 4, nullptr), "ops_gather_rows: x_rows is -2; expected 0 or more");
    refused(ops.gather_rows(p, ip, p, 1, 1, 1, 3, nullptr),
            "ops_gather_rows: dtype is 3; expected 2 (int32), 4 (float32), 5 (float16) or 6 (bfloat16)");
    refused(ops.scatter_rows(p, nullptr, p, 1, 1, 1, 4, nullptr),
            "ops_scatter_rows: index is null; expected a device pointer");
    refused(ops.scatter_rows(p, ip, nullptr, 1, 1, 1, 4, nullptr),
            "ops_scatter_rows: y is null; expected a device pointer");
  }

  int loss_forward(const int32_t *divisor, float smoothing, float *token_losses, float *loss, int32_t *counted,
                   int64_t tokens, int64_t classes) {
    return ops.cross_entropy_forward(p, ip, divisor, smoothing, fp, token_losses, loss, counted, tokens, classes, 64, 4,
                                     nullptr);
  }

  int loss_backward(const int32_t *counted, const float *scale, const float *gradients, float smoothing,
                    int64_t classes) {
    return ops.cross_entropy_backward(p, ip, fp, counted, 1, scale, gradients, smoothing, p, 4, classes, 64, 0, 64, 4,
                                      nullptr);
  }

  void losses() {
    refused(loss_forward(nullptr, 0, nullptr, fp, ip, 4, 65), "ops_cross_entropy_forward: classes is 65; expected 1 to 64");
    refused(loss_forward(nullptr, 0, nullptr, fp, ip, kHuge, 33),
            "ops_cross_entropy_forward: tokens is 4611686018427387904; expected 0 to 2147483647");
    refused(loss_forward(nullptr, 0, nullptr, nullptr, ip, 0, 33),
            "ops_cross_entropy_forward: loss is null; expected a device pointer");
    int32_t *const other = ip + 1, *const misplaced = static_cast<int32_t *>(odd);
    refused(loss_forward(misplaced, 0, nullptr, fp, other, 4, 33),
            "ops_cross_entropy_forward: divisor is 0x1001; expected a multiple of 4 bytes");
    refused(loss_forward(other, 0, nullptr, fp, other, 4, 33),
            "ops_cross_entropy_forward: divisor is the address of counted; expected another, or null to divide by the "
            "tokens counted here");
    refused(loss_forward(nullptr, 1.5f, nullptr, fp, ip, 4, 33),
            "ops_cross_entropy_forward: label_smoothing is 1.5; expected 0 to 1");
    refused(loss_forward(nullptr, 0, static_cast<float *>(odd), fp, ip, 4, 33),
            "ops_cross_entropy_forward: token_losses is 0x1001; expected a multiple of 4 bytes");
    refused(loss_backward(static_cast<int32_t *>(odd), nullptr, nullptr, 0, 33),
            "ops_cross_entropy_backward: counted is 0x1001; expected a multiple of 4 bytes");
    refused(loss_backward(ip, static_cast<float *>(odd), nullptr, 0, 33),
            "ops_cross_entropy_backward: loss_scale is 0x1001; expected a multiple of 4 bytes");
    refused(loss_backward(ip, nullptr, static_cast<float *>(odd), 0, 33),
            "ops_cross_entropy_backward: token_gradients is 0x1001; expected a multiple of 4 bytes");
    refused(loss_backward(ip, nullptr, nullptr, std::nanf(""), 33),
            "ops_cross_entropy_backward: label_smoothing is nan; expected 0 to 1");
    refused(loss_backward(ip, nullptr, nullptr, 0, -1), "ops_cross_entropy_backward: classes is -1; expected 0 to 64");
    refused(ops.cross_entropy_backward(p, ip, fp, ip, 1, nullptr, nullptr, 0, p, 4, 9, 64, 3, 11, 4, nullptr),
            "ops_cross_entropy_backward: first is 3; expected 0 to 2");
    refused(ops.cross_entropy_backward(p, ip, fp, ip, 1, nullptr, nullptr, 0, p, 4, 9, 64, 0, 8, 4, nullptr),
            "ops_cross_entropy_backward: all_classes is 8; expected 9 or more");
    refused(ops.attention_merge(p, fp, fp, nullptr, 4, 8, 0, 4, nullptr),
            "ops_attention_merge: merged_log_sum_exp is null; expected a device pointer");
    refused(ops.attention_merge(p, fp, fp, fp, 4, 8, 2, 4, nullptr), "ops_attention_merge: first is 2; expected 0 to 1");
    refused(ops.attention_merge(p, fp, fp, fp, 4, 0, 0, 4, nullptr),
            "ops_attention_merge: columns is 0; expected 1 or more");
    refused(ops.vocabulary_cross_entropy_maximum(p, nullptr, 4, 9, 64, 4, nullptr),
            "ops_vocabulary_cross_entropy_maximum: maximum is null; expected a device pointer");
    refused(ops.vocabulary_cross_entropy_maximum(p, fp, 4, 65, 64, 4, nullptr),
            "ops_vocabulary_cross_entropy_maximum: classes is 65; expected 0 to 64");
    refused(ops.vocabulary_cross_entropy_sums(p, ip, fp, 2, fp, 4, 9, 64, 0, 4, nullptr),
            "ops_vocabulary_cross_entropy_sums: label_smoothing is 2; expected 0 to 1");
    refused(ops.vocabulary_cross_entropy_sums(p, ip, fp, 0, fp, 4, 9, 64, -1, 4, nullptr),
            "ops_vocabulary_cross_entropy_sums: first is -1; expected 0 or more");
    refused(ops.vocabulary_cross_entropy_sums(nullptr, ip, fp, 0, fp, 4, 9, 64, 0, 4, nullptr),
            "ops_vocabulary_cross_entropy_sums: logits is null; expected a device pointer");
    refused(ops.vocabulary_cross_entropy_loss(fp, fp, ip, nullptr, 0, fp, nullptr, fp, other, 4, 0, nullptr),
            "ops_vocabulary_cross_entropy_loss: classes is 0; expected 1 or more");
    refused(ops.vocabulary_cross_entropy_loss(fp, nullptr, ip, nullptr, 0, fp, nullptr, fp, other, 4, 9, nullptr),
            "ops_vocabulary_cross_entropy_loss: sums is null; expected a device pointer");
    refused(ops.vocabulary_cross_entropy_loss(fp, fp, ip, other, 0, fp, nullptr, fp, other, 4, 9, nullptr),
            "ops_vocabulary_cross_entropy_loss: divisor is the address of counted; expected another, or null to divide by "
            "the tokens counted here");
  }

  void loss_scales() {
    refused(ops.loss_scale_clip(fp, nullptr, 1, fp, ip, nullptr),
            "ops_loss_scale_clip: loss_scale is null; expected a device pointer");
    refused(ops.loss_scale_clip(fp, fp, 1, fp, nullptr, nullptr),
            "ops_loss_scale_clip: skip is null; expected a device pointer");
    refused(ops.loss_scale_clip(fp, fp, -1, fp, ip, nullptr),
            "ops_loss_scale_clip: max_norm is -1; expected a number above 0");
    const auto update = [&](int32_t *counts, float growth, float backoff, int32_t interval) {
      return ops.loss_scale_update(ip, fp, counts, ip, growth, backoff, interval, nullptr);
    };
    refused(update(nullptr, 2, 0.5f, 1), "ops_loss_scale_update: counts is null; expected a device pointer");
    refused(update(ip, 1, 0.5f, 1), "ops_loss_scale_update: growth_factor is 1; expected a finite number above 1");
    refused(update(ip, 2, 1, 1), "ops_loss_scale_update: backoff_factor is 1; expected a number above 0 and below 1");
    refused(update(ip, 2, std::nanf(""), 1),
            "ops_loss_scale_update: backoff_factor is nan; expected a number above 0 and below 1");
    refused(update(ip, 2, 0.5f, 0), "ops_loss_scale_update: growth_interval is 0; expected 1 or more");
    refused(ops.loss_scale_restore(nullptr, fp, fp, 1, nullptr),
            "ops_loss_scale_restore: skip is null; expected a device pointer");
    refused(ops.loss_scale_restore(ip, fp, nullptr, 1, nullptr),
            "ops_loss_scale_restore: values is null; expected a device pointer");
    refused(ops.loss_scale_restore(ip, fp, fp, -1, nullptr), "ops_loss_scale_restore: count is -1; expected 0 or more");
  }

  void statistics() {
    const auto call = [&](float *out, int64_t rows, int64_t columns, int64_t stride, int scaling, int fp8) {
      return ops.quantization_statistics(fp, ip, fp, out, rows, columns, stride, scaling, 4, fp8, nullptr);
    };
    refused(call(nullptr, 1, 1, 0, 0, 7), "ops_quantization_statistics: statistics is null; expected a device pointer");
    refused(call(fp, 1, 1, 0, 0, 6), "ops_quantization_statistics: fp8 is 6; expected 7 to 8");
    refused(call(fp, 1, 1, 0, 1, 7), "ops_quantization_statistics: scaling is 1; expected 0, 2 or 3");
    refused(call(fp, 5, 1, 4, 2, 7), "ops_quantization_statistics: stride is 4; expected 5 or more");
    refused(call(fp, 1, 129, 1, 3, 7), "ops_quantization_statistics: stride is 1; expected 2 or more");
    refused(call(fp, -1, 1, 0, 0, 7), "ops_quantization_statistics: rows is -1; expected 0 or more");
    for (int scaling : {2, 3})
      refused(call(fp, 300, 300, kHuge, scaling, 7),
              "ops_quantization_statistics: stride is too large; expected a product of sizes in bytes below 2^63");
  }

  void gated_gradient() {
    const auto call = [&](void *q, int64_t rows, int64_t columns, int gate, float limit, float alpha, int fp8) {
      return ops.gated_gradient(fp, fp, q, fp, fp, nullptr, nullptr, rows, columns, gate, limit, alpha, 1, 6, fp8, nullptr);
    };
    const int clamped = OPS_CLAMPED_SWIGLU;
    refused(call(nullptr, 16, 16, 0, 1, 1, 7), "ops_gated_gradient: q is null; expected a device pointer");
    refused(call(fp, 16, 16, 0, 1, 1, 6), "ops_gated_gradient: fp8 is 6; expected 7 to 8");
    refused(call(fp, 16, 16, 7, 1, 1, 7), "ops_gated_gradient: gate is 7; expected 0 to 6");
    refused(call(fp, 24, 16, 0, 1, 1, 7), "ops_gated_gradient: rows is 24; expected a multiple of 16");
    refused(call(fp, 16, 8, 0, 1, 1, 7), "ops_gated_gradient: columns is 8; expected a multiple of 16");
    refused(call(fp, -16, 16, 0, 1, 1, 7), "ops_gated_gradient: rows is -16; expected 0 or more");
    refused(call(fp, 16, 16, clamped, 0, 1, 7), "ops_gated_gradient: limit is 0; expected a finite number above 0");
    refused(call(fp, 16, 16, clamped, 1, INFINITY, 7), "ops_gated_gradient: alpha is inf; expected a finite number");
    refused(call(fp, kHuge, 16, 0, 1, 1, 7),
            "ops_gated_gradient: rows * columns is too large; expected a product of sizes in bytes below 2^63");
  }

  void dequantize() {
    const auto call = [&](void *y, int64_t rows, int64_t columns, int64_t stride, int scaling, int fp8) {
      return ops.dequantize_blocks(ip, fp, y, rows, columns, stride, scaling, 4, fp8, nullptr);
    };
    refused(call(nullptr, 1, 1, 1, 2, 7), "ops_dequantize_blocks: y is null; expected a device pointer");
    refused(call(fp, 1, 1, 1, 2, 9), "ops_dequantize_blocks: fp8 is 9; expected 7 to 8");
    refused(call(fp, 1, 1, 1, 0, 7), "ops_dequantize_blocks: scaling is 0; expected 2 to 3");
    refused(call(fp, 5, 1, 4, 2, 7), "ops_dequantize_blocks: stride is 4; expected 5 or more");
    refused(call(fp, 1, 129, 1, 3, 7), "ops_dequantize_blocks: stride is 1; expected 2 or more");
    refused(call(fp, 1, -1, 1, 3, 7), "ops_dequantize_blocks: columns is -1; expected 0 or more");
    for (int scaling : {2, 3})
      refused(call(fp, 300, 300, kHuge, scaling, 7),
              "ops_dequantize_blocks: stride is too large; expected a product of sizes in bytes below 2^63");
  }

  int adam(void *master, float beta1, float epsilon, int decoupled, int64_t count, int weights, int moments, int masters,
           int gradients = 4) {
    return ops.adam(fp, p, p, p, master, fp, ip, fp, ip, beta1, 0.9f, epsilon, 0, decoupled, 1, count, gradients, weights,
                    moments, masters, nullptr);
  }

  void optimizers() {
    refused(adam(p, 1, 0, 1, 8, 4, 4, 0), "ops_adam: beta1 is 1; expected at least 0 and below 1");
    refused(adam(p, 0.9f, -1, 1, 8, 4, 4, 0), "ops_adam: epsilon is -1; expected 0 or more");
    refused(adam(p, 0.9f, 0, 2, 8, 4, 4, 0), "ops_adam: decoupled is 2; expected 0 to 1");
    refused(adam(p, 0.9f, 0, 1, -8, 4, 4, 0), "ops_adam: count is -8; expected 0 or more");
    refused(adam(p, 0.9f, 0, 1, 8, 4, 4, 0, 2),
            "ops_adam: gradient_dtype is 2; expected 4 (float32), 5 (float16) or 6 (bfloat16)");
    refused(adam(p, 0.9f, 0, 1, 8, 2, 4, 0),
            "ops_adam: weight_dtype is 2; expected 4 (float32), 5 (float16) or 6 (bfloat16)");
    refused(adam(p, 0.9f, 0, 1, 8, 4, 5, 0), "ops_adam: moment_dtype is 5; expected 4 (float32) or 6 (bfloat16)");
    refused(adam(p, 0.9f, 0, 1, 8, 4, 4, 3), "ops_adam: masters is 3; expected 0 to 2");
    refused(adam(p, 0.9f, 0, 1, 8, 6, 4, 0),
            "ops_adam: masters is 0 (none); expected 1 (float32) for weights of 16 bits, or 2 (remainder) for bfloat16");
    refused(adam(p, 0.9f, 0, 1, 8, 4, 4, 1), "ops_adam: masters is 1 (float32); expected 0 (none) for weights of float32");
    refused(adam(p, 0.9f, 0, 1, 8, 5, 4, 2), "ops_adam: masters is 2 (remainder); expected weights of bfloat16 with it");
    refused(adam(nullptr, 0.9f, 0, 1, 8, 6, 4, 2), "ops_adam: master is null; expected a device pointer");
    const auto ranges = [&](const void *table, int64_t count, int64_t blocks, float beta1, const int32_t *step, int weights) {
      return ops.adam_ranges(static_cast<const OpsAdamRange *>(table), count, blocks, step, fp, ip, beta1, 0.9f, 0, 1, 1,
                             4, weights, 4, 0, nullptr);
    };
    refused(ranges(p, 1, 1, 1, ip, 4), "ops_adam_ranges: beta1 is 1; expected at least 0 and below 1");
    refused(ranges(p, -1, 1, 0.9f, ip, 4), "ops_adam_ranges: range_count is -1; expected 0 to 2147483647");
    refused(ranges(p, 1, -1, 0.9f, ip, 4), "ops_adam_ranges: blocks is -1; expected 0 to 2147483647");
    refused(ranges(nullptr, 1, 1, 0.9f, ip, 4), "ops_adam_ranges: ranges is null; expected a device pointer");
    refused(ranges(p, 1, 1, 0.9f, nullptr, 4), "ops_adam_ranges: step is null; expected a device pointer");
    refused(ranges(p, 1, 1, 0.9f, ip, 6),
            "ops_adam_ranges: masters is 0 (none); expected 1 (float32) for weights of 16 bits, or 2 (remainder) for bfloat16");
    const auto step = [&](const void *table, int method, float beta1, int weights, int states, int masters, int gradients = 4) {
      return ops.optimizer_step(static_cast<const OpsStepRange *>(table), 1, 1, ip, fp, ip, method, beta1, 0.9f, 0, 1, 1, gradients,
                                weights, states, masters, nullptr);
    };
    refused(step(p, 7, 0, 4, 4, 0), "ops_optimizer_step: method is 7; expected 0 to 6");
    refused(step(p, OPS_METHOD_SGD, 1, 4, 4, 0), "ops_optimizer_step: beta1 is 1; expected at least 0 and below 1");
    refused(step(p, OPS_METHOD_SGD, 0, 4, 6, 0), "ops_optimizer_step: state_dtype is 6; expected 4 (float32)");
    refused(step(p, OPS_METHOD_LION, 0, 4, 5, 0),
            "ops_optimizer_step: state_dtype is 5; expected 0 (byte), 4 (float32) or 6 (bfloat16)");
    refused(step(p, OPS_METHOD_ADAM, 0, 4, 4, 0),
            "ops_optimizer_step: state_dtype is 4; expected 0 (byte); ops_adam_ranges has others");
    refused(step(p, OPS_METHOD_LION, 0, 6, 4, 0),
            "ops_optimizer_step: masters is 0 (none); expected 1 (float32) for weights of 16 bits, or 2 (remainder) for bfloat16");
    refused(step(p, OPS_METHOD_SCHEDULE_FREE, 0, 4, 4, 0),
            "ops_optimizer_step: masters is 0; expected 1 (float32), which is the average");
    refused(step(p, OPS_METHOD_SCHEDULE_FREE, 0, 4, 4, 1, 7),
            "ops_optimizer_step: gradient_dtype is 7; expected 4 (float32), 5 (float16) or 6 (bfloat16)");
    refused(step(nullptr, OPS_METHOD_LION, 0, 4, 4, 0), "ops_optimizer_step: ranges is null; expected a device pointer");
    const auto share = [&](const float *rates, float power, float rate_power, int64_t count) {
      return ops.average_share(rates, ip, ip, static_cast<float *>(p), static_cast<float *>(p), power, rate_power, count, nullptr);
    };
    refused(share(fp, -1, 2, 1), "ops_average_share: power is -1; expected 0 or more");
    refused(share(fp, 0, -2, 1), "ops_average_share: rate_power is -2; expected 0 or more");
    refused(share(fp, 0, 2, -1), "ops_average_share: count is -1; expected 0 or more");
    refused(share(nullptr, 0, 2, 1), "ops_average_share: rates is null; expected a device pointer");
    const auto factored = [&](const void *table, int64_t count, int phase, float power, float threshold, int relative, int weights) {
      return ops.adafactor(static_cast<const OpsAdafactorRange *>(table), count, ip, fp, ip, phase, power, 1e-30f, 1e-3f, threshold, 0,
                           relative, 1, weights, OPS_MASTER_NONE, nullptr);
    };
    refused(factored(p, 1, 5, 0.8f, 1, 1, 4), "ops_adafactor: phase is 5; expected 0 to 4");
    refused(factored(p, 1, 0, -1, 1, 1, 4), "ops_adafactor: power is -1; expected 0 or more");
    refused(factored(p, 1, 0, 0.8f, 0, 1, 4), "ops_adafactor: threshold is 0; expected above 0");
    refused(factored(p, 1, 0, 0.8f, 1, 3, 4), "ops_adafactor: relative is 3; expected 0 to 2");
    refused(factored(p, 65536, 0, 0.8f, 1, 1, 4), "ops_adafactor: range_count is 65536; expected 0 to 65535");
    refused(factored(nullptr, 1, 0, 0.8f, 1, 1, 4), "ops_adafactor: ranges is null; expected a device pointer");
    refused(factored(p, 1, 0, 0.8f, 1, 1, 6),
            "ops_adafactor: masters is 0 (none); expected 1 (float32) for weights of 16 bits, or 2 (remainder) for bfloat16");
  }

  void bias_add() {
    const auto call = [&](const void *x, const void *bias, void *y, int64_t rows, int64_t columns, int dtype) {
      return ops.bias_add(x, bias, nullptr, y, rows, columns, dtype, nullptr);
    };
    const std::string name = "ops_bias_add: ";
    const auto told = [&](int status, const char *text) { refused(status, (name + text).c_str()); };
    told(call(p, p, p, 2, 4, 2), "dtype is 2; expected 4 (float32), 5 (float16) or 6 (bfloat16)");
    told(call(p, p, p, -1, 4, 4), "rows is -1; expected 0 or more");
    told(call(p, p, p, 2, -4, 4), "columns is -4; expected 0 or more");
    told(call(nullptr, p, p, 2, 4, 4), "x is null; expected a device pointer");
    told(call(p, nullptr, p, 2, 4, 4), "bias is null; expected a device pointer");
    told(call(p, p, nullptr, 2, 4, 4), "y is null; expected a device pointer");
  }

  void drop_path() {
    refused(ops.drop_path_factors(lp, 1, fp, 2, nullptr),
            "ops_drop_path_factors: probability is 1; expected at least 0 and below 1");
    refused(ops.drop_path_factors(lp, 0.5f, fp, -1, nullptr),
            "ops_drop_path_factors: sequences is -1; expected 0 or more");
    refused(ops.drop_path_factors(nullptr, 0.5f, fp, 2, nullptr),
            "ops_drop_path_factors: rng_state is null; expected a device pointer");
    refused(ops.drop_path_factors(lp, 0.5f, nullptr, 2, nullptr),
            "ops_drop_path_factors: factors is null; expected a device pointer");
    const auto call = [&](const void *x, void *y, const float *factors, const int32_t *seqlens, int layout,
                          int64_t tokens, int64_t extent, int64_t columns, int dtype) {
      return ops.scale_sequences_add(x, nullptr, y, factors, seqlens, layout, 0, tokens, tokens, extent, columns, dtype,
                                     nullptr);
    };
    const std::string name = "ops_scale_sequences_add: ";
    const auto told = [&](int status, const char *text) { refused(status, (name + text).c_str()); };
    told(call(p, p, fp, ip, OPS_THD, 8, 2, 4, 2), "dtype is 2; expected 4 (float32), 5 (float16) or 6 (bfloat16)");
    told(call(p, p, fp, ip, 3, 8, 2, 4, 4), "layout is 3; expected 0 to 2");
    told(call(p, p, fp, ip, OPS_THD, -1, 2, 4, 4), "tokens is -1; expected 0 to 2147483647");
    told(call(p, p, fp, ip, OPS_THD, 8, 0, 4, 4), "extent is 0; expected 1 or more");
    told(call(p, p, fp, ip, OPS_THD, 8, 2, -4, 4), "columns is -4; expected 0 or more");
    told(call(p, p, fp, nullptr, OPS_THD, 8, 2, 4, 4), "cu_seqlens is null; expected a device pointer");
    told(call(p, p, fp, ip, OPS_BSHD, 8, 2, 4, 4),
         "cu_seqlens is given; expected null for a layout other than OPS_THD (0)");
    told(call(p, p, fp, nullptr, OPS_SBHD, 8, 3, 4, 4), "whole is 8; expected a multiple of extent 3");
    told(ops.scale_sequences_add(p, nullptr, p, fp, ip, OPS_THD, -1, 8, 12, 2, 4, 4, nullptr),
         "first is -1; expected 0 to 4");
    told(ops.scale_sequences_add(p, nullptr, p, fp, ip, OPS_THD, 5, 8, 12, 2, 4, 4, nullptr),
         "first is 5; expected 0 to 4");
    told(ops.scale_sequences_add(p, nullptr, p, fp, nullptr, OPS_BSHD, 3, 8, 12, 5, 4, 4, nullptr),
         "whole is 12; expected a multiple of extent 5");
    told(call(p, p, fp, nullptr, OPS_SBHD, 8, 2, kHuge, 4),
         "tokens * columns is too large; expected a product of sizes in bytes below 2^63");
    told(call(nullptr, p, fp, ip, OPS_THD, 8, 2, 4, 4), "x is null; expected a device pointer");
    told(call(p, nullptr, fp, ip, OPS_THD, 8, 2, 4, 4), "y is null; expected a device pointer");
    told(call(p, p, nullptr, ip, OPS_THD, 8, 2, 4, 4), "factors is null; expected a device pointer");
    told(ops.scale_sequences_add(p, odd, p, fp, ip, OPS_THD, 0, 8, 8, 2, 4, 6, nullptr),
         "residual is 0x1001; expected a multiple of 2 bytes");
  }

  void token_dropout() {
    const auto call = [&](const int32_t *ids, const int32_t *seqlens, const int32_t *padded, float *factors, float kept,
                          int layout, int64_t tokens, int64_t sequences) {
      return ops.token_dropout_factors(ids, seqlens, padded, factors, kept, 32, layout, tokens, sequences, nullptr);
    };
    const std::string name = "ops_token_dropout_factors: ";
    const auto told = [&](int status, const char *text) { refused(status, (name + text).c_str()); };
    told(call(ip, ip, nullptr, fp, 0.88f, 3, 8, 2), "layout is 3; expected 0 to 2");
    told(call(ip, ip, nullptr, fp, 0.88f, OPS_THD, -1, 2), "tokens is -1; expected 0 to 2147483647");
    told(call(ip, ip, nullptr, fp, 0.88f, OPS_THD, 8, 0), "sequences is 0; expected 1 to 2147483647");
    told(call(ip, ip, nullptr, fp, -1, OPS_THD, 8, 2), "kept is -1; expected a finite number of at least 0");
    told(call(ip, ip, nullptr, fp, 0.88f, OPS_BSHD, 9, 2), "tokens is 9; expected a multiple of sequences 2");
    told(call(ip, ip, ip, fp, 0.88f, OPS_SBHD, 8, 2),
         "cu_seqlens_padded is given; expected null for a layout other than OPS_THD (0)");
    told(call(nullptr, ip, nullptr, fp, 0.88f, OPS_THD, 8, 2), "ids is null; expected a device pointer");
    told(call(ip, nullptr, nullptr, fp, 0.88f, OPS_BSHD, 8, 2), "cu_seqlens is null; expected a device pointer");
    told(call(ip, ip, nullptr, nullptr, 0.88f, OPS_THD, 8, 2), "factors is null; expected a device pointer");
  }

  void sequence_pool() {
    const auto call = [&](const void *x, const int32_t *seqlens, const int32_t *padded, void *y, int32_t *argument, int pool,
                          int layout, int64_t tokens, int64_t sequences, int64_t columns) {
      return ops.sequence_pool_forward(x, seqlens, padded, y, argument, pool, layout, tokens, sequences, columns, 4, nullptr);
    };
    const std::string name = "ops_sequence_pool_forward: ";
    const auto told = [&](int status, const char *text) { refused(status, (name + text).c_str()); };
    told(call(p, ip, nullptr, p, nullptr, 3, OPS_THD, 8, 2, 4), "pool is 3; expected 0 to 2");
    told(call(p, ip, nullptr, p, nullptr, OPS_POOL_MEAN, 3, 8, 2, 4), "layout is 3; expected 0 to 2");
    told(call(p, ip, nullptr, p, nullptr, OPS_POOL_MEAN, OPS_BSHD, 9, 2, 4), "tokens is 9; expected a multiple of sequences 2");
    told(call(p, ip, nullptr, p, nullptr, OPS_POOL_MEAN, OPS_THD, 8, 2, -1), "columns is -1; expected 0 or more");
    told(call(p, ip, nullptr, p, ip, OPS_POOL_MEAN, OPS_THD, 8, 2, 4),
         "argument is given; expected null for a pool other than OPS_POOL_MAX (2)");
    told(call(p, ip, nullptr, p, nullptr, OPS_POOL_MAX, OPS_THD, 8, 2, 4), "argument is null; expected a device pointer");
    told(call(nullptr, ip, nullptr, p, nullptr, OPS_POOL_MEAN, OPS_THD, 8, 2, 4), "x is null; expected a device pointer");
    told(call(p, nullptr, nullptr, p, nullptr, OPS_POOL_MEAN, OPS_THD, 8, 2, 4), "cu_seqlens is null; expected a device pointer");
    told(call(p, ip, nullptr, nullptr, nullptr, OPS_POOL_MEAN, OPS_THD, 8, 2, 4), "y is null; expected a device pointer");
    refused(ops.sequence_pool_backward(nullptr, ip, nullptr, nullptr, p, OPS_POOL_FIRST, OPS_THD, 8, 2, 4, 4, nullptr),
            "ops_sequence_pool_backward: dy is null; expected a device pointer");
  }

  static OpsRotary good_rotary() {
    OpsRotary rotary = {};
    rotary.cu_seqlens = ip;
    rotary.angles = fp;
    rotary.tokens = rotary.positions = 8;
    rotary.extent = rotary.heads = rotary.kv_heads = 1;
    rotary.head_dim = rotary.rotated_dim = 8;
    rotary.direction = 1;
    rotary.dtype = 6;
    return rotary;
  }

  void rotary() {
    const auto refuse = [&](const char *text, const std::function<void(OpsRotary &)> &spoil) {
      OpsRotary rotary = good_rotary();
      spoil(rotary);
      refused(ops.rotary_packed(p, &rotary, nullptr), (std::string("ops_rotary_packed: ") + text).c_str());
      refused(ops.rotary_split(p, p, p, p, &rotary, nullptr), (std::string("ops_rotary_split: ") + text).c_str());
      refused(ops.rotary_join(p, p, p, p, &rotary, nullptr), (std::string("ops_rotary_join: ") + text).c_str());
    };
    refuse("direction is 0; expected 1 or -1", [](OpsRotary &r) { r.direction = 0; });
    refuse("layout is 3; expected 0 to 2", [](OpsRotary &r) { r.layout = 3; });
    refuse("pairing is 2; expected 0 to 1", [](OpsRotary &r) { r.pairing = 2; });
    refuse("head_dim is 7; expected an even number", [](OpsRotary &r) { r.head_dim = r.rotated_dim = 7; });
    refuse("head_dim is 8194; expected 2 to 8192", [](OpsRotary &r) { r.head_dim = 8194; });
    refuse("rotated_dim is 10; expected 0 to 8", [](OpsRotary &r) { r.rotated_dim = 10; });
    refuse("rotated_dim is 3; expected an even number", [](OpsRotary &r) { r.rotated_dim = 3; });
    refuse("heads is 70000; expected 0 to 65535", [](OpsRotary &r) { r.heads = 70000; });
    refuse("kv_heads is -1; expected 0 to 65535", [](OpsRotary &r) { r.kv_heads = -1; });
    refuse("cu_seqlens is null; expected a device pointer", [](OpsRotary &r) { r.cu_seqlens = nullptr; });
    refuse("cu_seqlens is given; expected null for a layout other than OPS_THD (0)",
           [](OpsRotary &r) { r.layout = OPS_BSHD; });
    const auto dense = [](OpsRotary &r, int layout, int64_t extent) {
      r.cu_seqlens = nullptr;
      r.layout = layout;
      r.extent = extent;
    };
    refuse("tokens is 8; expected a multiple of extent 3", [&](OpsRotary &r) { dense(r, OPS_SBHD, 3); });
    refuse("extent is 0; expected 1 or more", [&](OpsRotary &r) { dense(r, OPS_BSHD, 0); });
    refused(ops.rotary_packed(p, nullptr, nullptr), "ops_rotary_packed: rotary is null; expected a host struct");
    const OpsRotary good = good_rotary();
    refused(ops.rotary_packed(nullptr, &good, nullptr), "ops_rotary_packed: qkv is null; expected a device pointer");
    refused(ops.rotary_split(odd, p, p, p, &good, nullptr),
            "ops_rotary_split: qkv is 0x1001; expected a multiple of 2 bytes");
    refused(ops.rotary_split(p, nullptr, p, p, &good, nullptr),
            "ops_rotary_split: q is null; expected a device pointer");
    refused(ops.rotary_split(p, p, nullptr, p, &good, nullptr),
            "ops_rotary_split: k is null; expected a device pointer");
    refused(ops.rotary_join(p, p, p, nullptr, &good, nullptr),
            "ops_rotary_join: qkv is null; expected a device pointer");
    refused(ops.rotary_join(p, p, odd, p, &good, nullptr),
            "ops_rotary_join: v is 0x1001; expected a multiple of 2 bytes");
  }

  void other() {
    refused(ops.compile_all(9, 0, nullptr), "ops_compile_all: compiled is null; expected an int");
    Case test(session_, "arguments", 4, "sizes of zero");
    const int statuses[] = {ops.cast(nullptr, 4, nullptr, 5, 0, nullptr),
                            ops.embedding_forward(nullptr, nullptr, nullptr, 0, 0, 5, 5, 4, nullptr),
                            ops.embedding_backward(nullptr, nullptr, nullptr, 0, 0, 3, 0, 3, 4, nullptr),
                            ops.row_sum(nullptr, nullptr, 0, 5, 0, 4, nullptr),
                            ops.drop_path_factors(nullptr, 0.5f, nullptr, 0, nullptr),
                            ops.scale_sequences_add(nullptr, nullptr, nullptr, nullptr, nullptr, OPS_BSHD, 0, 0, 0, 3,
                                                    4, 4, nullptr),
                            ops.token_dropout_factors(nullptr, nullptr, nullptr, nullptr, 1, 32, OPS_THD, 0, 1, nullptr),
                            ops.gather_rows(nullptr, nullptr, nullptr, 0, 3, 3, 4, nullptr),
                            ops.scatter_rows(nullptr, nullptr, nullptr, 3, 0, 3, 4, nullptr)};
    for (int status : statuses)
      if (status != OPS_SUCCESS) test.fail(std::string("a call was refused: ") + ops.last_error());
  }

 private:
  Session &session_;
  const Ops &ops;
};

}  // namespace

void argument_cases(Session &session) {
  Refusals refusals(session);
  refusals.elementwise();
  refusals.rows();
  refusals.losses();
  refusals.loss_scales();
  refusals.statistics();
  refusals.dequantize();
  refusals.gated_gradient();
  refusals.optimizers();
  refusals.bias_add();
  refusals.drop_path();
  refusals.token_dropout();
  refusals.sequence_pool();
  refusals.rotary();
  refusals.other();
}

}  // namespace chagres::tests
