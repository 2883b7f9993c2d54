/* On a device: a step's operations captured in a CUDA graph give the bits that the calls themselves gave. Capture
 * forbids allocation, waiting and loading, so this also proves that calls after the first do none of them. */
#include "harness/report.h"

namespace chagres::tests {

namespace {

struct Step {
  Session &session;
  int64_t tokens = 3000, hidden = 66, vocabulary = 64, classes = 33, sequences = 30;
  Buffer dy, ids, gradient, sum, logits, log_sum_exp, loss, counted, divisor, state, factors, scaled;
  int status = 0;

  explicit Step(Session &s)
      : session(s),
        dy(s.floats(6, s.random.normal(format_of(6), tokens * hidden))),
        ids(make_ids(s, tokens)),
        gradient(s.floats(4, Doubles(static_cast<size_t>(vocabulary * hidden), 1))),
        sum(s.floats(4, Doubles(static_cast<size_t>(hidden), 1))),
        logits(s.floats(6, s.random.normal(format_of(6), tokens * vocabulary))),
        log_sum_exp(s.floats(4, Doubles(static_cast<size_t>(tokens), 0))),
        loss(s.floats(4, {0})),
        counted(s.raw(std::vector<int32_t>{0})),
        divisor(s.raw(std::vector<int32_t>{12345})),
        state(s.raw(std::vector<int64_t>{7, 8})),
        factors(s.floats(4, Doubles(static_cast<size_t>(sequences), 1))),
        scaled(s.floats(6, Doubles(static_cast<size_t>(tokens * hidden), 1))) {}

  static Buffer make_ids(Session &s, int64_t count) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (int32_t &id : values) id = static_cast<int32_t>(s.random.below(64));
    return s.raw(values);
  }

  static void enqueue(void *context) {
    Step &step = *static_cast<Step *>(context);
    const Ops &ops = step.session.ops;
    const OpsStream stream = step.session.memory.stream();
    step.status |= ops.embedding_backward(step.dy.data(), step.ids.data<int32_t>(), step.gradient.data<float>(), 0,
                                          0, step.tokens, step.vocabulary, step.hidden, 6, stream);
    step.status |= ops.row_sum(step.dy.data(), step.sum.data<float>(), 0, step.tokens, step.hidden, 6, stream);
    step.status |= ops.cross_entropy_forward(
        step.logits.data(), step.ids.data<int32_t>(), step.divisor.data<int32_t>(), 0.1f,
        step.log_sum_exp.data<float>(), nullptr, step.loss.data<float>(), step.counted.data<int32_t>(), step.tokens,
        step.classes, step.vocabulary, 6, stream);
    step.status |= ops.drop_path_factors(step.state.data<int64_t>(), 0.5f, step.factors.data<float>(), step.sequences,
                                         stream);
    step.status |= ops.scale_sequences_add(step.dy.data(), nullptr, step.scaled.data(), step.factors.data<float>(),
                                           nullptr, OPS_SBHD, 0, step.tokens, step.tokens, step.sequences, step.hidden, 6,
                                           stream);
  }

  std::vector<Bytes> results() {
    return {gradient.download(), sum.download(),     log_sum_exp.download(), loss.download(),
            counted.download(),  factors.download(), scaled.download()};
  }

  void clear() {
    gradient.upload(Bytes(static_cast<size_t>(4 * vocabulary * hidden), 0));
    sum.upload(Bytes(static_cast<size_t>(4 * hidden), 0));
    loss.upload(Bytes(4, 0));
    counted.upload(Bytes(4, 0));
    factors.upload(Bytes(static_cast<size_t>(4 * sequences), 0));
    scaled.upload(Bytes(static_cast<size_t>(2 * tokens * hidden), 0));
  }
};

/* Grouped heads under a bottom-right causal mask; the backward launch needs what the launch before it wrote. */
struct AttentionStep {
  static constexpr int64_t kTokens = 200, kHeads = 4, kKeyHeads = 2, kHeadDim = 64, kWidth = kHeads * kHeadDim;
  static constexpr int64_t kTogether = (kHeads + 2 * kKeyHeads) * kHeadDim;
  Session &session;
  Buffer qkv, d_o, o, sums, delta, gradients, queries, keys;
  int status = 0;

  explicit AttentionStep(Session &s)
      : session(s),
        qkv(s.floats(4, s.random.normal(format_of(4), kTokens * kTogether))),
        d_o(s.floats(4, s.random.normal(format_of(4), kTokens * kWidth))),
        o(s.floats(4, Doubles(kTokens * kWidth, 0))),
        sums(s.floats(4, Doubles(kTokens * kHeads, 0))),
        delta(s.floats(4, Doubles(kTokens * kHeads, 0))),
        gradients(s.floats(4, Doubles(kTokens * kTogether, 0))),
        queries(s.raw(std::vector<int32_t>{0, 70, kTokens})),
        keys(s.raw(std::vector<int32_t>{0, 100, kTokens})) {}

  static void enqueue(void *context) {
    AttentionStep &step = *static_cast<AttentionStep *>(context);
    OpsAttention attention = {};
    attention.q = step.qkv.data<float>();
    attention.k = step.qkv.data<float>() + kWidth;
    attention.v = step.qkv.data<float>() + kWidth + kKeyHeads * kHeadDim;
    attention.dq = step.gradients.data<float>();
    attention.dk = step.gradients.data<float>() + kWidth;
    attention.dv = step.gradients.data<float>() + kWidth + kKeyHeads * kHeadDim;
    attention.o = step.o.data();
    attention.d_o = step.d_o.data();
    attention.log_sum_exp = step.sums.data<float>();
    attention.delta = step.delta.data<float>();
    attention.cu_seqlens_q = step.queries.data<int32_t>();
    attention.cu_seqlens_kv = step.keys.data<int32_t>();
    attention.query = attention.key = attention.value = {0, kTogether, kHeadDim};
    attention.d_query = attention.d_key = attention.d_value = attention.query;
    attention.output = {0, kWidth, kHeadDim};
    attention.statistics = {0, kHeads, 1};
    attention.sequences = 2;
    attention.length = attention.kv_length = kTokens;
    attention.heads = kHeads;
    attention.kv_heads = kKeyHeads;
    attention.head_dim = attention.value_dim = kHeadDim;
    attention.window_left = -1;
    attention.alignment = OPS_BOTTOM_RIGHT;
    attention.scale = 0.125f;
    attention.dtype = 4;
    attention.packed = attention.kv_packed = 1;
    const OpsStream stream = step.session.memory.stream();
    step.status |= step.session.ops.attention_forward(&attention, stream);
    step.status |= step.session.ops.attention_backward(&attention, stream);
  }

  std::vector<Bytes> results() { return {o.download(), sums.download(), gradients.download()}; }

  void clear() {
    for (Buffer *buffer : {&o, &sums, &delta, &gradients}) buffer->upload(Bytes(buffer->download().size(), 0));
  }
};

template <class Steps>
void graph_case(Session &session, int dtype, const char *text) {
  Case test(session, "graph", dtype, text);
  try {
    Steps step(session);
    Steps::enqueue(&step);
    const std::vector<Bytes> direct = step.results();
    step.clear();
    session.memory.run_captured(Steps::enqueue, &step);
    if (step.status != 0) test.fail(session.ops.last_error());
    if (step.results() != direct) test.fail("the graph gave other bits than the calls");
  } catch (const std::exception &exception) {
    test.fail(exception.what());
  }
}

}  // namespace

void graph_cases(Session &session) {
  if (!session.memory.on_device()) return;
  graph_case<Step>(session, 6, "embedding_backward, row_sum, cross_entropy_forward, drop path");
  graph_case<AttentionStep>(session, 4, "attention_forward, attention_backward");
}

}  // namespace chagres::tests
