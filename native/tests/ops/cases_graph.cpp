/* On a device: a step's operations captured in a CUDA graph give the bits that the calls themselves gave. Capture
 * forbids allocation, waiting and loading, so this also proves that calls after the first do none of them. */
#include "report.h"

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

}  // namespace

void graph_cases(Session &session) {
  if (!session.memory.on_device()) return;
  Case test(session, "graph", 6, "embedding_backward, row_sum, cross_entropy_forward");
  try {
    Step step(session);
    Step::enqueue(&step);
    const std::vector<Bytes> direct = step.results();
    step.clear();
    session.memory.run_captured(Step::enqueue, &step);
    if (step.status != 0) test.fail(session.ops.last_error());
    if (step.results() != direct) test.fail("the graph gave other bits than the calls");
  } catch (const std::exception &exception) {
    test.fail(exception.what());
  }
}

}  // namespace chagres::tests
