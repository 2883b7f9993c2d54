/* range_push, range_pop: what is begun can be ended, once, on the thread that began it. */
#include <cstring>
#include <thread>

#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr int kOpen = 1000;

void expect_none_open(Case &test, const Ops &ops) {
  if (ops.range_pop() != OPS_INVALID_ARGUMENT) test.fail("a range was ended that nobody had begun");
  if (strcmp(ops.last_error(), "ops_range_pop: this thread has no range open; expected ops_range_push before") != 0)
    test.fail(std::string("the text is: ") + ops.last_error());
}

}  // namespace

void range_cases(Session &session) {
  const Ops &ops = session.ops;
  Case test(session, "range", 4, "nested ranges");
  expect_none_open(test, ops);
  if (ops.range_push(nullptr) != OPS_INVALID_ARGUMENT) test.fail("null was taken for a name");
  if (strcmp(ops.last_error(), "ops_range_push: name is null; expected a text") != 0)
    test.fail(std::string("the text is: ") + ops.last_error());
  expect_none_open(test, ops); /* what was refused is not open */
  for (int i = 0; i < kOpen; ++i)
    if (ops.range_push(i % 2 == 0 ? "even" : "") != OPS_SUCCESS) test.fail(ops.last_error());
  std::thread([&] {
    expect_none_open(test, ops);
    if (ops.range_push("another thread's") != OPS_SUCCESS) test.fail(ops.last_error());
  }).join();
  for (int i = 0; i < kOpen; ++i)
    if (ops.range_pop() != OPS_SUCCESS) test.fail(ops.last_error());
  expect_none_open(test, ops);
}

}  // namespace chagres::tests
