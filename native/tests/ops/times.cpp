/* Times at the sizes of training: 16,384 tokens, BF16 (attention: 35,000, FP32). GB/s counts every byte that must be
 * read or written once. */
#include <chrono>
#include <cstdio>
#include <functional>

#include "elementwise.h"
#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr int64_t kTokens = 16384;
constexpr int kBf16 = 6;

class Stopwatch {
 public:
  explicit Stopwatch(Session &session) : session_(session) {
    printf("\n%-24s %-28s %10s %10s %12s\n", "operation", "sizes", "us", "GB/s", "us to enqueue");
  }

  /* Returns microseconds of a call. */
  double measure(const char *operation, const std::string &sizes, double bytes, const std::function<int()> &call) {
    struct Context {
      const std::function<int()> &call;
      int status;
    } context = {call, 0};
    const auto repeat = [](void *opaque) {
      auto &inner = *static_cast<Context *>(opaque);
      inner.status |= inner.call();
    };
    const int repetitions = session_.memory.on_device() ? 50 : 2;
    session_.memory.time(3, repeat, &context);
    const auto start = std::chrono::steady_clock::now();
    double enqueue = 0;
    const auto timed = [&] {
      const int status = call();
      enqueue = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
      return status;
    };
    const std::function<int()> wrapped = timed;
    Context timed_context = {wrapped, 0};
    const double microseconds = session_.memory.time(repetitions, repeat, &timed_context) / repetitions;
    const int status = context.status | timed_context.status;
    printf("%-24s %-28s %10.1f %10.0f %12.2f%s\n", operation, sizes.c_str(), microseconds, bytes / microseconds / 1e3,
           enqueue / repetitions, status == 0 ? "" : "  FAILED");
    return microseconds;
  }

 private:
  Session &session_;
};

Buffer zeros(Session &session, int64_t bytes) { return Buffer(session.memory, Bytes(static_cast<size_t>(bytes), 0)); }

Buffer make_ids(Session &session, int64_t bound) {
  std::vector<int32_t> ids(kTokens);
  for (int32_t &id : ids) id = static_cast<int32_t>(session.random.below(bound));
  return session.raw(ids);
}

void hidden_times(Session &session, Stopwatch &watch, int64_t hidden) {
  const Ops &ops = session.ops;
  const OpsStream stream = session.memory.stream();
  const int64_t count = kTokens * hidden;
  const std::string sizes = shape_text({{"T", kTokens}, {"H", hidden}});
  Buffer x = zeros(session, 2 * count), y = zeros(session, 2 * count), z = zeros(session, 4 * count);
  Buffer mask = zeros(session, count / 8), state = session.raw(std::vector<int64_t>{1, 2});
  Buffer ids = make_ids(session, 33), table = zeros(session, 64 * hidden * 2),
         gradient = zeros(session, 64 * hidden * 4);
  Buffer amax = session.floats(4, {0});
  const auto bytes = static_cast<double>(count);
  for (const Elementwise &operation : elementwise_operations()) {
    const auto inputs = operation.inputs.size();
    void *const function = find_symbol(session.library, operation.function);
    const std::vector<const void *> tensors(inputs, x.data());
    watch.measure(operation.function, sizes, 2.0 * static_cast<double>(inputs + 1) * bytes,
                  [&] { return call_elementwise(function, tensors, z.data(), count, kBf16, stream); });
    if (operation.amax == nullptr) continue;
    void *const with = find_symbol(session.library, operation.amax);
    watch.measure(operation.amax, sizes, 2.0 * static_cast<double>(inputs + 1) * bytes, [&] {
      return call_elementwise_amax(with, tensors, z.data(), amax.data<float>(), count, kBf16, stream);
    });
  }
  watch.measure("dropout_add", sizes, 6.125 * bytes, [&] {
    return ops.dropout_add(x.data(), y.data(), z.data(), mask.data<uint8_t>(), state.data<int64_t>(), 0.1f, count,
                           kBf16, stream);
  });
  watch.measure("dropout_backward", sizes, 4.125 * bytes, [&] {
    return ops.dropout_backward(x.data(), mask.data<uint8_t>(), y.data(), 0.1f, count, kBf16, stream);
  });
  std::vector<int32_t> seqlens;
  for (int64_t t = 0; t <= kTokens; t += 256) seqlens.push_back(static_cast<int32_t>(t));
  Buffer cu_seqlens = session.raw(seqlens), factors = session.floats(4, Doubles(seqlens.size(), 1.25));
  watch.measure("scale_sequences_add", sizes, 6 * bytes, [&] {
    return ops.scale_sequences_add(x.data(), y.data(), z.data(), factors.data<float>(), cu_seqlens.data<int32_t>(),
                                   OPS_THD, 0, kTokens, kTokens, static_cast<int64_t>(seqlens.size()) - 1, hidden, kBf16,
                                   stream);
  });
  Buffer token_factors = zeros(session, 4 * kTokens);
  watch.measure("token_dropout_factors", sizes, 8.0 * kTokens, [&] {
    return ops.token_dropout_factors(ids.data<int32_t>(), cu_seqlens.data<int32_t>(), nullptr, token_factors.data<float>(),
                                     0.88f, 32, OPS_THD, kTokens, static_cast<int64_t>(seqlens.size()) - 1, stream);
  });
  watch.measure("sequence_pool_forward", sizes, 2 * bytes, [&] {
    return ops.sequence_pool_forward(x.data(), cu_seqlens.data<int32_t>(), nullptr, y.data(), nullptr, OPS_POOL_MEAN,
                                     OPS_THD, kTokens, static_cast<int64_t>(seqlens.size()) - 1, hidden, kBf16, stream);
  });
  watch.measure("sequence_pool_backward", sizes, 2 * bytes, [&] {
    return ops.sequence_pool_backward(x.data(), cu_seqlens.data<int32_t>(), nullptr, nullptr, y.data(), OPS_POOL_MEAN,
                                      OPS_THD, kTokens, static_cast<int64_t>(seqlens.size()) - 1, hidden, kBf16, stream);
  });
  watch.measure("cast to float32", sizes, 6 * bytes,
                [&] { return ops.cast(x.data(), kBf16, z.data(), 4, count, stream); });
  watch.measure("accumulate", sizes, 10 * bytes,
                [&] { return ops.accumulate(x.data(), z.data<float>(), 1, count, kBf16, stream); });
  watch.measure("embedding_forward V=64", sizes, 2 * bytes, [&] {
    return ops.embedding_forward(table.data(), ids.data<int32_t>(), y.data(), 0, kTokens, 64, hidden, kBf16, stream);
  });
  watch.measure("embedding_backward V=64", sizes, 2 * bytes, [&] {
    return ops.embedding_backward(x.data(), ids.data<int32_t>(), gradient.data<float>(), 1, 0, kTokens, 64, hidden,
                                  kBf16, stream);
  });
  watch.measure("gather_rows", sizes, 4 * bytes, [&] {
    return ops.gather_rows(x.data(), ids.data<int32_t>(), y.data(), kTokens, hidden, kTokens, kBf16, stream);
  });
}

void row_sum_times(Session &session, Stopwatch &watch, int64_t rows, int64_t columns) {
  Buffer x = zeros(session, 2 * rows * columns), sum = zeros(session, 4 * columns);
  const double bytes = 2.0 * static_cast<double>(rows * columns) + 8.0 * static_cast<double>(columns);
  watch.measure("row_sum", shape_text({{"R", rows}, {"C", columns}}), bytes, [&] {
    return session.ops.row_sum(x.data(), sum.data<float>(), 1, rows, columns, kBf16, session.memory.stream());
  });
}

/* y = x W^T of [kTokens, hidden] and [hidden, hidden]. */
void product_times(Session &session, Stopwatch &watch, int64_t hidden) {
  constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
  Buffer x = zeros(session, 2 * kTokens * hidden), w = zeros(session, 2 * hidden * hidden);
  Buffer y = zeros(session, 2 * kTokens * hidden), workspace = zeros(session, kWorkspaceBytes);
  OpsMatrixProduct product = {};
  product.a = x.data();
  product.b = w.data();
  product.d = y.data();
  product.workspace = workspace.data();
  product.workspace_bytes = kWorkspaceBytes;
  product.m = kTokens;
  product.n = product.k = hidden;
  product.trans_b = 1;
  product.a_dtype = product.b_dtype = product.d_dtype = kBf16;
  for (int plan : {OPS_PLAN_FIRST, OPS_PLAN_MEASURED}) {
    product.plan = plan;
    watch.measure(plan == OPS_PLAN_FIRST ? "matrix_product first" : "matrix_product measured",
                  shape_text({{"T", kTokens}, {"H", hidden}}), 2.0 * static_cast<double>((2 * kTokens + hidden) * hidden),
                  [&] { return session.ops.matrix_product(&product, session.memory.stream()); });
  }
}

void statistics_times(Session &session, Stopwatch &watch, int64_t columns) {
  Buffer x = zeros(session, 2 * kTokens * columns), q = zeros(session, kTokens * columns);
  Buffer inverse = zeros(session, 4), out = zeros(session, 24);
  watch.measure("quantization_statistics", shape_text({{"R", kTokens}, {"C", columns}}),
                3.0 * static_cast<double>(kTokens * columns), [&] {
                  return session.ops.quantization_statistics(x.data(), q.data(), inverse.data<float>(), out.data<float>(),
                                                             kTokens, columns, 0, 0, kBf16, 7, session.memory.stream());
                });
}

void dequantize_times(Session &session, Stopwatch &watch, int64_t columns) {
  Buffer q = zeros(session, kTokens * columns), y = zeros(session, 2 * kTokens * columns);
  Buffer inverse = zeros(session, 4 * kTokens * (columns / 128));
  watch.measure("dequantize_blocks", shape_text({{"R", kTokens}, {"C", columns}}),
                3.0 * static_cast<double>(kTokens * columns), [&] {
                  return session.ops.dequantize_blocks(q.data(), inverse.data<float>(), y.data(), kTokens, columns,
                                                       kTokens, 2, kBf16, 7, session.memory.stream());
                });
}

void gate_times(Session &session, Stopwatch &watch, int64_t columns) {
  Buffer dy = zeros(session, 2 * kTokens * columns), x = zeros(session, 4 * kTokens * columns);
  Buffer q = zeros(session, 2 * kTokens * columns), transposed = zeros(session, 2 * kTokens * columns);
  Buffer scale = zeros(session, 4), amax = zeros(session, 4);
  watch.measure("gated_gradient", shape_text({{"R", kTokens}, {"C", columns}}),
                10.0 * static_cast<double>(kTokens * columns), [&] {
                  return session.ops.gated_gradient(dy.data(), x.data(), q.data(), transposed.data(), scale.data<float>(),
                                                    amax.data<float>(), nullptr, kTokens, columns, OPS_SWIGLU, 0, 0, 0,
                                                    kBf16, 8, session.memory.stream());
                });
}

void norm_times(Session &session, Stopwatch &watch, int64_t columns) {
  const Ops &ops = session.ops;
  const OpsStream stream = session.memory.stream();
  const double bytes = 2.0 * static_cast<double>(kTokens * columns);
  const std::string sizes = shape_text({{"R", kTokens}, {"C", columns}});
  Buffer x = zeros(session, 2 * kTokens * columns), residual = zeros(session, 2 * kTokens * columns);
  Buffer y = zeros(session, 2 * kTokens * columns), vector = zeros(session, 2 * columns);
  Buffer mean = zeros(session, 4 * kTokens), inverse = zeros(session, 4 * kTokens);
  Buffer dgamma = zeros(session, 4 * columns), dbeta = zeros(session, 4 * columns);
  OpsResidualNorm norm = {};
  norm.x = norm.h = x.data();
  norm.residual = norm.dresidual = norm.dh = residual.data();
  norm.gamma = norm.beta = vector.data();
  norm.y = y.data();
  norm.dy = y.data();
  norm.mean = mean.data<float>();
  norm.inverse = inverse.data<float>();
  norm.dgamma = dgamma.data<float>();
  norm.dbeta = dbeta.data<float>();
  norm.rows = norm.filled_rows = kTokens;
  norm.columns = columns;
  norm.epsilon = 1e-5f;
  norm.dtype = kBf16;
  watch.measure("residual_norm_forward", sizes, 4 * bytes, [&] { return ops.residual_norm_forward(&norm, stream); });
  watch.measure("residual_norm_backward", sizes, 4 * bytes, [&] { return ops.residual_norm_backward(&norm, stream); });
  Buffer y8 = zeros(session, kTokens * columns), y8_transposed = zeros(session, kTokens * columns);
  Buffer scale = session.raw(std::vector<float>{1}), amax = session.raw(std::vector<float>{0});
  norm.scale = scale.data<float>();
  norm.amax = amax.data<float>();
  norm.y = nullptr;
  norm.y8 = y8.data();
  watch.measure("residual_norm_forward, FP8", sizes, 3.5 * bytes,
                [&] { return ops.residual_norm_forward(&norm, stream); });
  norm.y8_transposed = y8_transposed.data();
  watch.measure("residual_norm_forward, FP8 and its transpose", sizes, 4 * bytes,
                [&] { return ops.residual_norm_forward(&norm, stream); });
}

void rotary_times(Session &session, Stopwatch &watch, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  constexpr int64_t kLength = 1024;
  std::vector<int32_t> seqlens;
  for (int64_t t = 0; t <= kTokens; t += kLength / 4) seqlens.push_back(static_cast<int32_t>(t));
  const int64_t width = heads * head_dim, kv_width = kv_heads * head_dim;
  Buffer qkv = zeros(session, 2 * kTokens * (width + 2 * kv_width)), angles = zeros(session, 4 * kLength * head_dim);
  Buffer q = zeros(session, 2 * kTokens * width), k = zeros(session, 2 * kTokens * kv_width),
         v = zeros(session, 2 * kTokens * kv_width);
  Buffer cu_seqlens = session.raw(seqlens);
  OpsRotary rotary = {};
  rotary.cu_seqlens = cu_seqlens.data<int32_t>();
  rotary.angles = angles.data<float>();
  rotary.tokens = kTokens;
  rotary.extent = static_cast<int64_t>(seqlens.size()) - 1;
  rotary.positions = kLength;
  rotary.heads = heads;
  rotary.kv_heads = kv_heads;
  rotary.head_dim = rotary.rotated_dim = head_dim;
  rotary.layout = OPS_THD;
  rotary.direction = 1;
  rotary.dtype = kBf16;
  const Ops &ops = session.ops;
  const OpsStream stream = session.memory.stream();
  const std::string sizes = shape_text({{"T", kTokens}, {"h", heads}, {"g", kv_heads}, {"d", head_dim}});
  const double rotated = 4.0 * static_cast<double>(kTokens * (width + kv_width));
  const double all = 4.0 * static_cast<double>(kTokens * (width + 2 * kv_width));
  watch.measure("rotary_packed", sizes, rotated, [&] { return ops.rotary_packed(qkv.data(), &rotary, stream); });
  watch.measure("rotary_split", sizes, all,
                [&] { return ops.rotary_split(qkv.data(), q.data(), k.data(), v.data(), &rotary, stream); });
  watch.measure("rotary_join", sizes, all,
                [&] { return ops.rotary_join(q.data(), k.data(), v.data(), qkv.data(), &rotary, stream); });
}

void loss_times(Session &session, Stopwatch &watch, int64_t classes, int64_t stride) {
  const Ops &ops = session.ops;
  const OpsStream stream = session.memory.stream();
  const auto elements = static_cast<double>(kTokens * stride);
  const std::string sizes = shape_text({{"T", kTokens}, {"classes", classes}, {"stride", stride}});
  Buffer logits = zeros(session, 2 * kTokens * stride), labels = make_ids(session, classes);
  Buffer lse = zeros(session, 4 * kTokens), loss = zeros(session, 4), counted = zeros(session, 4);
  watch.measure("cross_entropy_forward", sizes, 2 * elements, [&] {
    return ops.cross_entropy_forward(logits.data(), labels.data<int32_t>(), nullptr, 0, lse.data<float>(), nullptr,
                                     loss.data<float>(), counted.data<int32_t>(), kTokens, classes, stride, kBf16,
                                     stream);
  });
  watch.measure("cross_entropy_backward", sizes, 4 * elements, [&] {
    return ops.cross_entropy_backward(logits.data(), labels.data<int32_t>(), lse.data<float>(), counted.data<int32_t>(),
                                      1, nullptr, nullptr, 0, logits.data(), kTokens, classes, stride, 0, classes, kBf16,
                                      stream);
  });
  Buffer maximum = zeros(session, 4 * kTokens), sums = zeros(session, 8 * kTokens);
  watch.measure("vocabulary_cross_entropy_maximum", sizes, 2 * elements, [&] {
    return ops.vocabulary_cross_entropy_maximum(logits.data(), maximum.data<float>(), kTokens, classes, stride, kBf16,
                                                stream);
  });
  watch.measure("vocabulary_cross_entropy_sums", sizes, 2 * elements, [&] {
    return ops.vocabulary_cross_entropy_sums(logits.data(), labels.data<int32_t>(), maximum.data<float>(), 0,
                                             sums.data<float>(), kTokens, classes, stride, 0, kBf16, stream);
  });
  watch.measure("vocabulary_cross_entropy_loss", sizes, 20.0 * kTokens, [&] {
    return ops.vocabulary_cross_entropy_loss(maximum.data<float>(), sums.data<float>(), labels.data<int32_t>(), nullptr,
                                             0, lse.data<float>(), nullptr, loss.data<float>(),
                                             counted.data<int32_t>(), kTokens, classes, stream);
  });
}

void attention_merge_times(Session &session, Stopwatch &watch, int64_t heads, int64_t head_dim) {
  const int64_t rows = kTokens * heads;
  Buffer partial = zeros(session, 2 * rows * head_dim), merged = zeros(session, 4 * rows * head_dim);
  Buffer lse = zeros(session, 4 * rows), merged_lse = zeros(session, 4 * rows);
  watch.measure("attention_merge", shape_text({{"T", kTokens}, {"h", heads}, {"d", head_dim}}),
                10.0 * static_cast<double>(rows * head_dim) + 12.0 * static_cast<double>(rows), [&] {
                  return session.ops.attention_merge(partial.data(), lse.data<float>(), merged.data<float>(),
                                                     merged_lse.data<float>(), rows, head_dim, 0, kBf16,
                                                     session.memory.stream());
                });
}

/* FP32, 100 packed sequences of 350 tokens. A product of the scores' size is 2 h d sum(n^2) operations: two forward,
 * five that backward needs (it does seven). */
void attention_times(Session &session, Stopwatch &watch, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  constexpr int64_t kSequences = 100, kLength = 350, kPacked = kSequences * kLength;
  const int64_t width = heads * head_dim, kv_width = kv_heads * head_dim, all = width + 2 * kv_width;
  std::vector<int32_t> seqlens;
  for (int64_t b = 0; b <= kSequences; ++b) seqlens.push_back(static_cast<int32_t>(b * kLength));
  Buffer qkv = zeros(session, 4 * kPacked * all), gradients = zeros(session, 4 * kPacked * all);
  Buffer o = zeros(session, 4 * kPacked * width), d_o = zeros(session, 4 * kPacked * width);
  Buffer sums = zeros(session, 4 * kPacked * heads), delta = zeros(session, 4 * kPacked * heads);
  Buffer cu_seqlens = session.raw(seqlens);
  OpsAttention attention = {};
  attention.q = qkv.data<float>();
  attention.k = qkv.data<float>() + width;
  attention.v = qkv.data<float>() + width + kv_width;
  attention.dq = gradients.data<float>();
  attention.dk = gradients.data<float>() + width;
  attention.dv = gradients.data<float>() + width + kv_width;
  attention.o = o.data();
  attention.d_o = d_o.data();
  attention.log_sum_exp = sums.data<float>();
  attention.delta = delta.data<float>();
  attention.cu_seqlens_q = attention.cu_seqlens_kv = cu_seqlens.data<int32_t>();
  attention.query = attention.key = attention.value = {0, all, head_dim};
  attention.d_query = attention.d_key = attention.d_value = attention.query;
  attention.output = {0, width, head_dim};
  attention.statistics = {0, heads, 1};
  attention.sequences = kSequences;
  attention.length = attention.kv_length = kLength;
  attention.heads = heads;
  attention.kv_heads = kv_heads;
  attention.head_dim = attention.value_dim = head_dim;
  attention.window_left = attention.window_right = -1;
  attention.scale = 1;
  attention.dtype = 4;
  attention.packed = attention.kv_packed = 1;
  const double product = 2.0 * static_cast<double>(kSequences * kLength * kLength * width);
  const std::string sizes = shape_text({{"T", kPacked}, {"h", heads}, {"kv", kv_heads}, {"d", head_dim}});
  const OpsStream stream = session.memory.stream();
  const double forward = watch.measure("attention_forward", sizes, 4.0 * static_cast<double>(kPacked * (all + width)),
                                       [&] { return session.ops.attention_forward(&attention, stream); });
  const double backward = watch.measure("attention_backward", sizes, 8.0 * static_cast<double>(kPacked * (all + width)),
                                        [&] { return session.ops.attention_backward(&attention, stream); });
  printf("%-24s forward %.1f, backward %.1f TFLOP/s\n", "", 2 * product / forward / 1e6, 5 * product / backward / 1e6);
}

/* BF16 weights with FP32 masters and moments: in one range, and in as many as 33 shared-out groups have, by a call each and by one. */
void adam_times(Session &session, Stopwatch &watch, int64_t hidden, int gradients) {
  const int64_t count = kTokens * hidden, ranges = 66, each = count / ranges / 16 * 16, size = gradients == 4 ? 4 : 2;
  Buffer gradient = zeros(session, 4 * count), weight = zeros(session, 2 * count), master = zeros(session, 4 * count);
  Buffer mean = zeros(session, 4 * count), square = zeros(session, 4 * count), numbers = session.floats(4, {1e-3, 1});
  Buffer integers = session.raw(std::vector<int32_t>{1, 0});
  const auto range = [&](int64_t first, int64_t length, int64_t block) {
    return OpsAdamRange{gradient.data<unsigned char>() + size * first, weight.data<uint16_t>() + first, mean.data<float>() + first,
                        square.data<float>() + first, master.data<float>() + first, numbers.data<float>(), length, block, 0.01f};
  };
  const auto apart = [&](const OpsAdamRange &r) {
    return session.ops.adam(r.gradient, r.weight, r.mean, r.square, r.master, r.rate, integers.data<int32_t>(),
                            numbers.data<float>() + 1, integers.data<int32_t>() + 1, 0.9f, 0.99f, 1e-8f, r.weight_decay, 1, 1,
                            r.count, gradients, kBf16, 4, OPS_MASTER_FLOAT32, session.memory.stream());
  };
  const auto together = [&](const Buffer &table, int64_t length, int64_t blocks) {
    return session.ops.adam_ranges(table.data<OpsAdamRange>(), length, blocks, integers.data<int32_t>(),
                                   numbers.data<float>() + 1, integers.data<int32_t>() + 1, 0.9f, 0.99f, 1e-8f, 1, 1, gradients, kBf16, 4,
                                   OPS_MASTER_FLOAT32, session.memory.stream());
  };
  std::vector<OpsAdamRange> many;
  const int64_t blocks_each = (each + OPS_ADAM_BLOCK - 1) / OPS_ADAM_BLOCK;
  for (int64_t i = 0; i < ranges; ++i) many.push_back(range(i * each, each, i * blocks_each));
  const Buffer all = session.raw(std::vector<OpsAdamRange>{range(0, count, 0)}), table = session.raw(many);
  const double bytes = static_cast<double>((26 + size) * count);
  const std::string sizes = shape_text({{"n", count}, {"gradients", gradients}});
  watch.measure("adam, 1 range", sizes, bytes, [&] { return apart(range(0, count, 0)); });
  watch.measure("adam_ranges, 1 range", sizes, bytes, [&] { return together(all, 1, count / OPS_ADAM_BLOCK); });
  watch.measure("adam, 66 ranges", sizes, bytes, [&] {
    int status = 0;
    for (const OpsAdamRange &one : many) status |= apart(one);
    return status;
  });
  watch.measure("adam_ranges, 66 ranges", sizes, bytes, [&] { return together(table, ranges, ranges * blocks_each); });
}

/* BF16 weights with FP32 masters, in one range: each method with the states that it is for. */
void optimizer_step_times(Session &session, Stopwatch &watch, int64_t hidden) {
  const int64_t count = kTokens * hidden, blocks = count / OPS_ADAM_BLOCK;
  Buffer gradient = zeros(session, 4 * count), weight = zeros(session, 2 * count), master = zeros(session, 4 * count);
  Buffer first = zeros(session, 4 * count), second = zeros(session, 4 * count), scales = zeros(session, 4 * count / 128);
  Buffer numbers = session.floats(4, {1e-3, 1, 0.5}), integers = session.raw(std::vector<int32_t>{1, 0});
  const OpsStepRange range = {gradient.data<float>(), weight.data(), master.data(), first.data(), second.data(),
                              scales.data<float>(), scales.data<float>() + count / OPS_SCALED_BLOCK, numbers.data<float>(),
                              numbers.data<float>() + 2, count, 0, 0.01f};
  const Buffer table = session.raw(std::vector<OpsStepRange>{range});
  const auto measure = [&](const char *name, int method, int states, double bytes, int gradients = 4) {
    watch.measure(name, shape_text({{"n", count}, {"gradients", gradients}}), bytes * static_cast<double>(count), [&] {
      return session.ops.optimizer_step(table.data<OpsStepRange>(), 1, blocks, integers.data<int32_t>(), numbers.data<float>() + 1,
                                        integers.data<int32_t>() + 1, method, 0.9f, 0.99f, 1e-8f, 1, 1, gradients, kBf16, states,
                                        OPS_MASTER_FLOAT32, session.memory.stream());
    });
  };
  measure("optimizer_step, sgd", OPS_METHOD_SGD, 4, 22);
  measure("optimizer_step, lion", OPS_METHOD_LION, 4, 22);
  measure("optimizer_step, lion in 8 bits", OPS_METHOD_LION, 0, 16);
  measure("optimizer_step, adam in 8 bits", OPS_METHOD_ADAM, 0, 18);
  measure("optimizer_step, adam in 8 bits", OPS_METHOD_ADAM, 0, 16, kBf16);
  measure("optimizer_step, schedule-free", OPS_METHOD_SCHEDULE_FREE, 4, 30);
  measure("optimizer_step, average of weights", OPS_METHOD_AVERAGE, 4, 12);
}

/* BF16 weights with FP32 masters: all phases of one matrix, which read gradients four times and masters twice. */
void adafactor_times(Session &session, Stopwatch &watch, int64_t hidden) {
  const int64_t rows = kTokens, count = rows * hidden;
  Buffer gradient = zeros(session, 4 * count), weight = zeros(session, 2 * count), master = zeros(session, 4 * count);
  Buffer of_rows = zeros(session, 16 * rows), of_columns = zeros(session, 8 * hidden);
  Buffer numbers = session.floats(4, {1e-3, 1, 0, 0, 0}), integers = session.raw(std::vector<int32_t>{1, 0});
  float *const row = of_rows.data<float>(), *const column = of_columns.data<float>(), *const number = numbers.data<float>();
  const OpsAdafactorRange range = {gradient.data<float>(), weight.data(), master.data(), nullptr, nullptr, nullptr, row, row + rows,
                                   row + 2 * rows, column, row + 3 * rows, column + hidden, number + 2, number, 0, count, hidden, rows,
                                   hidden, 0.01f};
  const Buffer table = session.raw(std::vector<OpsAdafactorRange>{range});
  watch.measure("adafactor", shape_text({{"rows", rows}, {"columns", hidden}}), 26.0 * static_cast<double>(count), [&] {
    int status = OPS_SUCCESS;
    for (int phase = OPS_ADAFACTOR_SUMS; phase <= OPS_ADAFACTOR_STEP && status == OPS_SUCCESS; ++phase)
      status = session.ops.adafactor(table.data<OpsAdafactorRange>(), 1, integers.data<int32_t>(), number + 1,
                                     integers.data<int32_t>() + 1, phase, 0.8f, 1e-30f, 1e-3f, 1, 0, OPS_RATE_CAPPED, 1, kBf16,
                                     OPS_MASTER_FLOAT32, session.memory.stream());
    return status;
  });
}

}  // namespace

void print_times(Session &session, const std::string &only) {
  Stopwatch watch(session);
  const auto wanted = [&](const char *stem) { return only.empty() || only == stem; };
  if (wanted("elementwise"))
    for (int64_t hidden : {320, 1280, 5120}) hidden_times(session, watch, hidden);
  if (wanted("adam"))
    for (int64_t hidden : {20, 320, 5120})
      for (int gradients : {4, kBf16}) adam_times(session, watch, hidden, gradients);
  if (wanted("optimizer_step"))
    for (int64_t hidden : {320, 5120}) optimizer_step_times(session, watch, hidden);
  if (wanted("adafactor"))
    for (int64_t hidden : {320, 5120}) adafactor_times(session, watch, hidden);
  if (wanted("attention_merge")) attention_merge_times(session, watch, 32, 128);
  if (wanted("row_sum")) {
    for (int64_t columns : {320, 1280, 5120, 20480}) row_sum_times(session, watch, kTokens, columns);
    for (int64_t rows : {2, 4, 8}) row_sum_times(session, watch, rows, int64_t{1} << 24);
  }
  if (wanted("matrix_product"))
    for (int64_t hidden : {320, 1280, 5120}) product_times(session, watch, hidden);
  if (wanted("residual_norm"))
    for (int64_t columns : {320, 1280, 4096, 5120}) norm_times(session, watch, columns);
  if (wanted("gated_gradient"))
    for (int64_t columns : {3456, 11008}) gate_times(session, watch, columns);
  if (wanted("quantization_statistics"))
    for (int64_t columns : {1280, 5120}) statistics_times(session, watch, columns);
  if (wanted("dequantize_blocks"))
    for (int64_t columns : {1280, 5120}) dequantize_times(session, watch, columns);
  if (wanted("attention")) {
    for (int64_t head_dim : {16, 24, 32, 64}) attention_times(session, watch, 20, 20, head_dim);
    attention_times(session, watch, 40, 40, 128);
    attention_times(session, watch, 40, 8, 128);
  }
  if (wanted("rotary")) {
    rotary_times(session, watch, 20, 20, 16);
    rotary_times(session, watch, 20, 20, 64);
    rotary_times(session, watch, 40, 40, 128);
    rotary_times(session, watch, 32, 8, 128);
  }
  if (wanted("cross_entropy")) {
    loss_times(session, watch, 33, 64);
    loss_times(session, watch, 32000, 32000);
  }
}

}  // namespace chagres::tests
