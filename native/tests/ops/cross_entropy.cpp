/* Masked cross-entropy, forward and backward. */
#include <limits>

#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Loss {
  int dtype;
  int64_t tokens, classes, stride;
  int64_t offset;
  double deviation; /* of the logits */
  int ignored;      /* of eight labels */
  float smoothing = 0;
  double least = 0; /* not 0: of logits that grow to twice that, whose sum is no float */
};

std::string loss_text(const Loss &loss) {
  return shape_text({{"tokens", loss.tokens},
                     {"classes", loss.classes},
                     {"stride", loss.stride},
                     {"offset", loss.offset},
                     {"ignored", loss.ignored}}) +
         " deviation=" + std::to_string(loss.deviation) + " smoothing=" + std::to_string(loss.smoothing);
}

struct Batch {
  Doubles logits, log_sum_exp, lse_scale;
  std::vector<int32_t> labels;
  Doubles losses, losses_scale;    /* by token */
  double loss = 0, loss_scale = 0; /* sums */
  int32_t counted = 0;
};

bool taken(const Loss &loss, int32_t label) { return label >= 0 && label < loss.classes; }

Batch make_batch(Session &session, const Loss &loss) {
  Batch batch;
  batch.logits = session.random.normal(format_of(loss.dtype), loss.tokens * loss.stride, loss.deviation);
  for (int64_t t = 0; t < loss.tokens; ++t) {
    double *row = batch.logits.data() + t * loss.stride;
    if (t % 50 == 3 && loss.smoothing == 0) row[0] = -kInfinity; /* a class that cannot be */
    for (int64_t c = 0; loss.least != 0 && c < loss.classes; ++c)
      row[c] = round_to(format_of(loss.dtype), loss.least * (1 + static_cast<double>(c) / static_cast<double>(loss.classes)));
    for (int64_t c = loss.classes; c < loss.stride; ++c) row[c] = c % 2 == 0 ? kInfinity : std::nan(""); /* not read */
    const int32_t outside[] = {-100, -1, static_cast<int32_t>(loss.classes), static_cast<int32_t>(loss.stride)};
    /* Label 0 only where it cannot be -infinity. */
    const int32_t label =
        session.random.below(8) < loss.ignored
            ? outside[session.random.below(4)]
            : static_cast<int32_t>(loss.classes == 1 ? 0 : 1 + session.random.below(loss.classes - 1));
    if (loss.classes == 1) row[0] = 1;
    double sum = 0, largest = -kInfinity;
    for (int64_t c = 0; c < loss.classes; ++c) largest = std::max(largest, row[c]);
    for (int64_t c = 0; c < loss.classes; ++c) sum += std::exp(row[c] - largest);
    batch.log_sum_exp.push_back(largest + std::log(sum));
    batch.lse_scale.push_back(std::fabs(largest) + std::fabs(std::log(sum)) + 1);
    batch.labels.push_back(label);
    batch.losses.push_back(0);
    batch.losses_scale.push_back(0);
    if (!taken(loss, label)) continue;
    const double smoothing = loss.smoothing;
    double average = 0, average_scale = 0;
    for (int64_t c = 0; c < loss.classes && smoothing > 0; ++c) {
      average += row[c] / static_cast<double>(loss.classes);
      average_scale += std::fabs(row[c]) / static_cast<double>(loss.classes);
    }
    batch.losses.back() = batch.log_sum_exp.back() - (1 - smoothing) * row[label] - smoothing * average;
    batch.losses_scale.back() = batch.lse_scale.back() + std::fabs(row[label]) + smoothing * average_scale;
    batch.loss += batch.losses.back();
    batch.loss_scale += batch.losses_scale.back();
    ++batch.counted;
  }
  return batch;
}

std::string divided(const Loss &loss, int32_t divisor) {
  return loss_text(loss) + " divided by " + std::to_string(divisor);
}

/* What multiplies the gradient of a mean. */
enum class Factors { kNumber, kOnDevice };

/* kOnDevice: with a loss scale and a gradient for each token, which is NaN where the token is ignored. */
void backward_case(Session &session, const Loss &loss, const Batch &batch, int32_t divisor,
                   Factors factors = Factors::kNumber) {
  const bool on_device = factors == Factors::kOnDevice;
  Case test(session, "cross_entropy_backward", loss.dtype,
            divided(loss, divisor) + (on_device ? ", gradients by token, scaled" : ""));
  const float gradient = 2.5f;
  const double smoothing = loss.smoothing, miss = smoothing / static_cast<double>(loss.classes);
  Doubles by_token = session.random.normal(format_of(4), loss.tokens, 1);
  for (int64_t t = 0; t < loss.tokens; ++t)
    if (!taken(loss, batch.labels[static_cast<size_t>(t)])) by_token[static_cast<size_t>(t)] = std::nan("");
  Doubles wanted, scale;
  for (int64_t t = 0; t < loss.tokens; ++t)
    for (int64_t c = 0; c < loss.stride; ++c) {
      const int32_t label = batch.labels[static_cast<size_t>(t)];
      const double z = batch.logits[static_cast<size_t>(t * loss.stride + c)];
      const double lse = batch.log_sum_exp[static_cast<size_t>(t)];
      const bool zero = c >= loss.classes || !taken(loss, label) || divisor <= 0;
      const double p = zero ? 0 : std::exp(z - lse), mean = zero ? 0 : gradient / divisor;
      const double share = on_device && !zero ? mean * 1024 * by_token[static_cast<size_t>(t)] : mean;
      wanted.push_back(share * (p - (c == label ? 1 - smoothing : 0) - miss) * (zero ? 0 : 1));
      /* exp turns an absolute error of its argument into a relative one. */
      scale.push_back(zero ? 0 : std::fabs(share) * (1 + (p > 0 ? p * (std::fabs(z) + std::fabs(lse)) : 0)));
    }
  Buffer logits = session.floats(loss.dtype, batch.logits, loss.offset), labels = session.raw(batch.labels);
  Doubles rounded;
  for (double lse : batch.log_sum_exp) rounded.push_back(round_to(kFormats[0], lse));
  Buffer lse = session.floats(4, rounded), counted = session.raw(std::vector<int32_t>{divisor});
  Buffer loss_scale = session.floats(4, {1024}), token_gradients = session.floats(4, by_token);
  if (test.run({&logits}, [&] {
        return session.ops.cross_entropy_backward(logits.data(), labels.data<int32_t>(), lse.data<float>(),
                                                  counted.data<int32_t>(), gradient,
                                                  on_device ? loss_scale.data<float>() : nullptr,
                                                  on_device ? token_gradients.data<float>() : nullptr, loss.smoothing,
                                                  logits.data(), loss.tokens, loss.classes, loss.stride, 0, loss.classes, loss.dtype,
                                                  session.memory.stream());
      }))
    test.close(loss.dtype, test.output(0, loss.dtype), wanted, scale, 8, "dlogits");
}

/* Without a divisor: of the sum of the losses. */
void sum_case(Session &session, const Loss &loss, const Batch &batch) {
  Case test(session, "cross_entropy_backward", loss.dtype, loss_text(loss) + " of the sum");
  Buffer first = session.floats(loss.dtype, batch.logits, loss.offset), second = session.floats(loss.dtype, batch.logits);
  Buffer labels = session.raw(batch.labels), one = session.raw(std::vector<int32_t>{1});
  Buffer lse = session.floats(4, batch.log_sum_exp);
  const auto backward = [&](Buffer &logits, const int32_t *counted) {
    return session.ops.cross_entropy_backward(logits.data(), labels.data<int32_t>(), lse.data<float>(), counted, 0.75f,
                                              nullptr, nullptr, loss.smoothing, logits.data(), loss.tokens, loss.classes,
                                              loss.stride, 0, loss.classes, loss.dtype, session.memory.stream());
  };
  if (test.run({&first, &second},
               [&] { return backward(first, nullptr) | backward(second, one.data<int32_t>()); }))
    test.equal_bytes(test.output(0), test.output(1), "dlogits without a divisor, and divided by 1");
}

/* The bits of the loss; `divisor` null: divided by the tokens that are counted. */
Bytes forward_case(Session &session, const Loss &loss, const Batch &batch, const int32_t *divisor) {
  const int32_t number = divisor != nullptr ? *divisor : batch.counted;
  Case test(session, "cross_entropy_forward", loss.dtype, divided(loss, number));
  Buffer logits = session.floats(loss.dtype, batch.logits, loss.offset), labels = session.raw(batch.labels);
  Buffer lse = session.floats(4, Doubles(batch.labels.size(), 7)), mean = session.floats(4, {7});
  Buffer counted = session.raw(std::vector<int32_t>{7}), given = session.raw(std::vector<int32_t>{number});
  Buffer losses = session.floats(4, Doubles(batch.labels.size(), 7));
  const bool by_token = divisor != nullptr;
  if (!test.run({&lse, &mean, &counted, &losses}, [&] {
        return session.ops.cross_entropy_forward(
            logits.data(), labels.data<int32_t>(), divisor != nullptr ? given.data<int32_t>() : nullptr, loss.smoothing,
            lse.data<float>(), by_token ? losses.data<float>() : nullptr, mean.data<float>(), counted.data<int32_t>(), loss.tokens, loss.classes, loss.stride,
            loss.dtype, session.memory.stream());
      }))
    return {};
  const double share = number > 0 ? 1.0 / number : 0;
  test.close(4, test.output(0, 4), batch.log_sum_exp, batch.lse_scale, 8, "log_sum_exp");
  test.close(4, test.output(1, 4), {batch.loss * share}, {batch.loss_scale * share}, 16, "loss");
  if (by_token) test.close(4, test.output(3, 4), batch.losses, batch.losses_scale, 16, "token_losses");
  if (from_raw<int32_t>(test.output(2))[0] != batch.counted)
    test.fail("counted is not " + std::to_string(batch.counted));
  return test.output(1);
}

void loss_case(Session &session, const Loss &loss) {
  const Batch batch = make_batch(session, loss);
  const Bytes mean = forward_case(session, loss, batch, nullptr);
  Case test(session, "cross_entropy_forward", loss.dtype, loss_text(loss));
  if (forward_case(session, loss, batch, &batch.counted) != mean)
    test.fail("divided by a given number, which is that of the counted tokens: the loss has other bits");
  backward_case(session, loss, batch, batch.counted);
  backward_case(session, loss, batch, batch.counted, Factors::kOnDevice);
  sum_case(session, loss, batch);
  for (int32_t divisor : {3 * batch.counted + 1, 0, -5}) {
    forward_case(session, loss, batch, &divisor);
    backward_case(session, loss, batch, divisor);
  }
}

/* log-sum-exp where the largest logit is infinite, or all are -infinity. */
void infinite_case(Session &session, double first, double others, double wanted) {
  Case test(session, "cross_entropy_forward", 4, "logits " + std::to_string(first) + ", " + std::to_string(others));
  Doubles row(40, others);
  row[0] = first;
  Buffer logits = session.floats(4, row), labels = session.raw(std::vector<int32_t>{-1});
  Buffer lse = session.floats(4, {7}), mean = session.floats(4, {7}), counted = session.raw(std::vector<int32_t>{7});
  if (test.run({&lse, &mean}, [&] {
        return session.ops.cross_entropy_forward(logits.data(), labels.data<int32_t>(), nullptr, 0, lse.data<float>(),
                                                 nullptr, mean.data<float>(), counted.data<int32_t>(), 1, 40, 40, 4,
                                                 session.memory.stream());
      })) {
    test.equal(test.output(0, 4), {wanted}, "log_sum_exp");
    test.equal(test.output(1, 4), {0}, "loss");
  }
}

}  // namespace

void cross_entropy_cases(Session &session) {
  const int64_t shapes[][3] = {{0, 33, 64},    {1, 1, 1},       {7, 33, 64},  {8, 33, 33},
                               {9, 64, 64},    {70, 33, 64},    {40, 31, 40}, {3, 1000, 1000},
                               {17, 257, 264}, {16384, 33, 64}, {9000, 2, 3}, {300, 32000, 32000}};
  for (const auto &[tokens, classes, stride] : shapes) {
    if (tokens * stride > 20000 && !session.large) continue;
    for (const Format &format : kFormats)
      for (int64_t offset : {0, 1}) {
        loss_case(session, {format.dtype, tokens, classes, stride, offset, 2, 6});
        loss_case(session, {format.dtype, tokens, classes, stride, offset, 50, 1});
        loss_case(session, {format.dtype, tokens, classes, stride, offset, 2, 2, 0.1f});
      }
  }
  loss_case(session, {6, 100, 33, 64, 0, 1, 8}); /* every label ignored: the loss is 0 */
  loss_case(session, {4, 9, 33, 64, 0, 2, 2, 1}); /* every class is as right as the label */
  for (const int dtype : {4, 6})
    for (const double least : {6e37, -6e37}) loss_case(session, {dtype, 1, 33, 64, 0, 2, 0, 0.1f, least});
  infinite_case(session, kInfinity, 1, kInfinity);
  infinite_case(session, -kInfinity, -kInfinity, -kInfinity);
  infinite_case(session, std::nan(""), 1, std::nan(""));
}

}  // namespace chagres::tests
