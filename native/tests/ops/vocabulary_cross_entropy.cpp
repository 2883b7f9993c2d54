/* Cross-entropy of logits whose classes are divided among ranks: the steps of all ranks, reduced here, give the whole loss. */
#include <limits>

#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Split {
  int dtype;
  int64_t tokens, classes, columns; /* of all ranks together */
  int ranks;
  int64_t offset;
  float smoothing;
  double least = 0; /* not 0: of logits that grow to twice that, whose sum is no float */
};

/* Of a rank: columns begin..end-1, of which `classes` are classes. */
struct Part {
  int64_t begin, end, first, classes;
};

Part part_of(const Split &split, int rank) {
  const int64_t each = (split.columns + split.ranks - 1) / split.ranks;
  const int64_t begin = std::min(split.columns, rank * each), end = std::min(split.columns, begin + each);
  const int64_t first = std::min(begin, split.classes);
  return {begin, end, first, std::min(end - begin, split.classes - first)};
}

std::string split_text(const Split &split) {
  return shape_text({{"tokens", split.tokens},
                     {"classes", split.classes},
                     {"columns", split.columns},
                     {"ranks", split.ranks},
                     {"offset", split.offset}}) +
         " smoothing=" + std::to_string(split.smoothing);
}

/* A sum of FP32 over ranks, as a collective adds it up. */
void reduce(Doubles &all, const Doubles &own, bool largest) {
  if (all.empty()) all.assign(own.size(), largest ? -kInfinity : 0);
  for (size_t i = 0; i < own.size(); ++i) all[i] = largest ? std::max(all[i], own[i]) : round_to(kFormats[0], all[i] + own[i]);
}

class Ranks {
 public:
  Ranks(Session &session, const Split &split) : session_(session), split_(split) {
    logits_ = session.random.normal(format_of(split.dtype), split.tokens * split.columns, 4);
    for (int64_t t = 0; t < split.tokens; ++t) {
      for (int64_t c = 0; split.least != 0 && c < split.classes; ++c)
        at(t, c) = round_to(format_of(split.dtype),
                            split.least * (1 + static_cast<double>(c) / static_cast<double>(split.classes)));
      if (t % 7 == 3 && split.smoothing == 0 && split.classes > 1) at(t, 0) = -kInfinity; /* a class that cannot be */
      for (int64_t c = split.classes; c < split.columns; ++c) at(t, c) = c % 2 == 0 ? kInfinity : std::nan("");
      const int64_t label = session.random.below(split.classes + 2) - 1;
      labels_.push_back(static_cast<int32_t>(label == 0 && split.classes > 1 ? 1 : label));
    }
  }

  void check() {
    Case test(session_, "vocabulary_cross_entropy", split_.dtype, split_text(split_));
    Doubles maximum, sums;
    for (int rank = 0; rank < split_.ranks; ++rank) reduce(maximum, maximum_of(test, part_of(split_, rank)), true);
    for (int rank = 0; rank < split_.ranks; ++rank) reduce(sums, sums_of(test, part_of(split_, rank), maximum), false);
    expect();
    const int32_t divisor = 3 * counted_ + 1;
    check_loss(test, maximum, sums, nullptr, counted_);
    check_loss(test, maximum, sums, &divisor, divisor);
    for (int rank = 0; rank < split_.ranks; ++rank) check_backward(test, part_of(split_, rank), divisor);
  }

 private:
  double &at(int64_t t, int64_t c) { return logits_[static_cast<size_t>(t * split_.columns + c)]; }
  bool taken(int64_t t) const {
    const int32_t label = labels_[static_cast<size_t>(t)];
    return label >= 0 && label < split_.classes;
  }

  Buffer own_logits(const Part &part) {
    Doubles own;
    for (int64_t t = 0; t < split_.tokens; ++t)
      for (int64_t c = part.begin; c < part.end; ++c) own.push_back(at(t, c));
    return session_.floats(split_.dtype, own, split_.offset);
  }

  Doubles maximum_of(Case &test, const Part &part) {
    Buffer logits = own_logits(part), maximum = session_.floats(4, Doubles(labels_.size(), 7));
    if (!test.run({&maximum}, [&] {
          return session_.ops.vocabulary_cross_entropy_maximum(logits.data(), maximum.data<float>(), split_.tokens,
                                                               part.classes, part.end - part.begin, split_.dtype,
                                                               session_.memory.stream());
        }))
      return Doubles(labels_.size(), 0);
    return test.output(0, 4);
  }

  Doubles sums_of(Case &test, const Part &part, const Doubles &largest) {
    const size_t rows = split_.smoothing == 0 ? 2 : 3;
    Buffer logits = own_logits(part), labels = session_.raw(labels_), maximum = session_.floats(4, largest);
    Buffer sums = session_.floats(4, Doubles(rows * labels_.size(), 7));
    if (!test.run({&sums}, [&] {
          return session_.ops.vocabulary_cross_entropy_sums(
              logits.data(), labels.data<int32_t>(), maximum.data<float>(), split_.smoothing, sums.data<float>(),
              split_.tokens, part.classes, part.end - part.begin, part.first, split_.dtype, session_.memory.stream());
        }))
      return Doubles(rows * labels_.size(), 0);
    return test.output(0, 4);
  }

  /* What the whole loss is, in double precision. */
  void expect() {
    const double smoothing = split_.smoothing;
    for (int64_t t = 0; t < split_.tokens; ++t) {
      double largest = -kInfinity, sum = 0, total = 0, magnitude = 0;
      for (int64_t c = 0; c < split_.classes; ++c) largest = std::max(largest, at(t, c));
      for (int64_t c = 0; c < split_.classes; ++c) {
        sum += std::exp(at(t, c) - largest);
        if (smoothing == 0) continue;
        total += at(t, c);
        magnitude += std::fabs(at(t, c));
      }
      lse_.push_back(largest + std::log(sum));
      lse_scale_.push_back(std::fabs(largest) + std::fabs(std::log(sum)) + 1);
      losses_.push_back(0);
      losses_scale_.push_back(0);
      if (!taken(t)) continue;
      const auto classes = static_cast<double>(split_.classes), score = at(t, labels_[static_cast<size_t>(t)]);
      losses_.back() = lse_.back() - (1 - smoothing) * score - smoothing * total / classes;
      losses_scale_.back() = lse_scale_.back() + std::fabs(score) + smoothing * magnitude / classes;
      loss_ += losses_.back();
      loss_scale_ += losses_scale_.back();
      ++counted_;
    }
  }

  void check_loss(Case &test, const Doubles &largest, const Doubles &added, const int32_t *divisor, int32_t number) {
    Buffer maximum = session_.floats(4, largest), sums = session_.floats(4, added), labels = session_.raw(labels_);
    Buffer lse = session_.floats(4, Doubles(labels_.size(), 7)), losses = session_.floats(4, Doubles(labels_.size(), 7));
    Buffer loss = session_.floats(4, {7}), counted = session_.raw(std::vector<int32_t>{7});
    Buffer given = session_.raw(std::vector<int32_t>{number});
    const bool by_token = divisor != nullptr;
    if (!test.run({&lse, &loss, &counted, &losses}, [&] {
          return session_.ops.vocabulary_cross_entropy_loss(
              maximum.data<float>(), sums.data<float>(), labels.data<int32_t>(),
              by_token ? given.data<int32_t>() : nullptr, split_.smoothing, lse.data<float>(),
              by_token ? losses.data<float>() : nullptr, loss.data<float>(), counted.data<int32_t>(), split_.tokens,
              split_.classes, session_.memory.stream());
        }))
      return;
    const double share = number > 0 ? 1.0 / number : 0;
    test.close(4, test.output(0, 4), lse_, lse_scale_, 16, "log_sum_exp");
    test.close(4, test.output(1, 4), {loss_ * share}, {loss_scale_ * share}, 24, "loss");
    if (by_token) test.close(4, test.output(3, 4), losses_, losses_scale_, 24, "token_losses");
    if (from_raw<int32_t>(test.output(2))[0] != counted_) test.fail("counted is not " + std::to_string(counted_));
  }

  void check_backward(Case &test, const Part &part, int32_t divisor) {
    const double smoothing = split_.smoothing, share = 2.5 / divisor;
    Doubles wanted, scale, rounded;
    for (int64_t t = 0; t < split_.tokens; ++t) {
      const double lse = lse_[static_cast<size_t>(t)];
      rounded.push_back(round_to(kFormats[0], lse));
      for (int64_t c = part.begin; c < part.end; ++c) {
        const bool zero = c >= split_.classes || !taken(t);
        const double p = zero ? 0 : std::exp(at(t, c) - lse), miss = smoothing / static_cast<double>(split_.classes);
        const double target = (c == labels_[static_cast<size_t>(t)] ? 1 - smoothing : 0) + miss;
        wanted.push_back(zero ? 0 : share * (p - target));
        scale.push_back(zero ? 0 : share * (1 + (p > 0 ? p * (std::fabs(at(t, c)) + std::fabs(lse)) : 0)));
      }
    }
    Buffer logits = own_logits(part), labels = session_.raw(labels_), lse = session_.floats(4, rounded);
    Buffer counted = session_.raw(std::vector<int32_t>{divisor});
    if (test.run({&logits}, [&] {
          return session_.ops.cross_entropy_backward(logits.data(), labels.data<int32_t>(), lse.data<float>(),
                                                     counted.data<int32_t>(), 2.5f, nullptr, nullptr, split_.smoothing,
                                                     logits.data(), split_.tokens, part.classes, part.end - part.begin,
                                                     part.first, split_.classes, split_.dtype,
                                                     session_.memory.stream());
        }))
      test.close(split_.dtype, test.output(0, split_.dtype), wanted, scale, 8, "dlogits");
  }

  Session &session_;
  const Split split_;
  Doubles logits_, lse_, lse_scale_, losses_, losses_scale_;
  std::vector<int32_t> labels_;
  double loss_ = 0, loss_scale_ = 0;
  int32_t counted_ = 0;
};

}  // namespace

void vocabulary_cross_entropy_cases(Session &session) {
  const int64_t shapes[][3] = {{0, 33, 64},  {1, 1, 1},     {7, 33, 64},   {70, 33, 33},
                               {9, 64, 64},  {3, 1000, 1000}, {300, 32, 40}, {9000, 33, 64}, {300, 32000, 32000}};
  for (const auto &[tokens, classes, columns] : shapes) {
    if (tokens * columns > 20000 && !session.large) continue;
    for (const Format &format : kFormats)
      for (int ranks : {1, 2, 4, 8})
        for (float smoothing : {0.0f, 0.1f})
          Ranks(session, {format.dtype, tokens, classes, columns, ranks, ranks % 3 == 1 ? 0 : 1, smoothing}).check();
  }
  for (const int dtype : {4, 6})
    for (const double least : {6e37, -6e37}) Ranks(session, {dtype, 1, 33, 64, 2, 0, 0.1f, least}).check();
}

}  // namespace chagres::tests
