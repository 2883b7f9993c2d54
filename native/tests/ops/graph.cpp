/* On a device: a step's operations captured in a CUDA graph give the bits that the calls themselves gave. Capture
 * forbids allocation, waiting and loading, so this also proves that calls after the first do none of them. */
#include "harness/report.h"

namespace chagres::tests {

namespace {

struct Step {
  Session &session;
  int64_t tokens = 3000, hidden = 66, vocabulary = 64, classes = 33;
  Buffer dy, ids, gradient, sum, logits, log_sum_exp, loss, counted;
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
        counted(s.raw(std::vector<int32_t>{0})) {}

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
                                          step.tokens, step.vocabulary, step.hidden, 6, stream);
    step.status |= ops.row_sum(step.dy.data(), step.sum.data<float>(), 0, step.tokens, step.hidden, 6, stream);
    step.status |= ops.cross_entropy_forward(
        step.logits.data(), step.ids.data<int32_t>(), step.log_sum_exp.data<float>(), step.loss.data<float>(),
        step.counted.data<int32_t>(), step.tokens, step.classes, step.vocabulary, 6, stream);
  }

  std::vector<Bytes> results() {
    return {gradient.download(), sum.download(), log_sum_exp.download(), loss.download(), counted.download()};
  }

  void clear() {
    gradient.upload(Bytes(static_cast<size_t>(4 * vocabulary * hidden), 0));
    sum.upload(Bytes(static_cast<size_t>(4 * hidden), 0));
    loss.upload(Bytes(4, 0));
    counted.upload(Bytes(4, 0));
  }
};

/* Attention whose backward launch needs what the launch before it wrote. */
struct AttentionStep {
  static constexpr int64_t kTokens = 200, kHeads = 2, kHeadDim = 64, kWidth = kHeads * kHeadDim;
  Session &session;
  Buffer qkv, d_o, o, sums, delta, gradients, cu_seqlens;
  int status = 0;

  explicit AttentionStep(Session &s)
      : session(s),
        qkv(s.floats(4, s.random.normal(format_of(4), 3 * kTokens * kWidth))),
        d_o(s.floats(4, s.random.normal(format_of(4), kTokens * kWidth))),
        o(s.floats(4, Doubles(kTokens * kWidth, 0))),
        sums(s.floats(4, Doubles(kTokens * kHeads, 0))),
        delta(s.floats(4, Doubles(kTokens * kHeads, 0))),
        gradients(s.floats(4, Doubles(3 * kTokens * kWidth, 0))),
        cu_seqlens(s.raw(std::vector<int32_t>{0, 70, kTokens})) {}

  static void enqueue(void *context) {
    AttentionStep &step = *static_cast<AttentionStep *>(context);
    OpsAttention attention = {};
    attention.q = step.qkv.data<float>();
    attention.k = step.qkv.data<float>() + kWidth;
    attention.v = step.qkv.data<float>() + 2 * kWidth;
    attention.dq = step.gradients.data<float>();
    attention.dk = step.gradients.data<float>() + kWidth;
    attention.dv = step.gradients.data<float>() + 2 * kWidth;
    attention.o = step.o.data();
    attention.d_o = step.d_o.data();
    attention.log_sum_exp = step.sums.data<float>();
    attention.delta = step.delta.data<float>();
    attention.cu_seqlens = step.cu_seqlens.data<int32_t>();
    attention.qkv = attention.gradients = {0, 3 * kWidth, kHeadDim};
    attention.output = {0, kWidth, kHeadDim};
    attention.statistics = {0, kHeads, 1};
    attention.sequences = 2;
    attention.length = kTokens;
    attention.heads = kHeads;
    attention.head_dim = kHeadDim;
    attention.window_left = attention.window_right = -1;
    attention.scale = 0.125f;
    attention.dtype = 4;
    attention.packed = 1;
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
  graph_case<Step>(session, 6, "embedding_backward, row_sum, cross_entropy_forward");
  graph_case<AttentionStep>(session, 4, "attention_forward, attention_backward");
}

}  // namespace chagres::tests
