/* activity_begin, activity_end, activity_read: ranges of a recording, nested, with times in their order. */
#include <cstring>
#include <thread>
#include <vector>

#include "harness/report.h"

namespace chagres::tests {

namespace {

void expect_text(Case &test, const Ops &ops, int status, const char *text) {
  if (status != OPS_INVALID_ARGUMENT || strcmp(ops.last_error(), text) != 0)
    test.fail("expected the refusal '" + std::string(text) + "', got " + std::to_string(status) + " and '" + ops.last_error() + "'");
}

void refusals(Case &test, const Ops &ops) {
  int64_t now = 0, count = 0, dropped = 0;
  expect_text(test, ops, ops.activity_end(&count, &dropped),
              "ops_activity_end: no recording runs; expected ops_activity_begin before");
  expect_text(test, ops, ops.activity_begin(nullptr, &now), "ops_activity_begin: cupti is null; expected a path, or an empty text");
  if (ops.activity_begin("", &now) != OPS_SUCCESS) test.fail(ops.last_error());
  expect_text(test, ops, ops.activity_begin("", &now),
              "ops_activity_begin: a recording runs already; expected ops_activity_end before");
  expect_text(test, ops, ops.activity_read(nullptr, 0), "ops_activity_read: a recording runs; expected ops_activity_end before");
  if (ops.activity_end(&count, &dropped) != OPS_SUCCESS || count != 0 || dropped != 0) test.fail("records of nothing");
  expect_text(test, ops, ops.activity_read(nullptr, 1), "ops_activity_read: count is 1; expected 0 to 0");
}

}  // namespace

void activity_cases(Session &session) {
  const Ops &ops = session.ops;
  Case test(session, "activity", 4, "ranges of a recording");
  refusals(test, ops);
  int64_t now = 0, count = 0, dropped = 0;
  ops.range_push("before");
  if (ops.activity_begin("", &now) != OPS_SUCCESS) test.fail(ops.last_error());
  ops.range_push("step");
  ops.range_push("layer");
  ops.range_pop();
  std::thread([&] {
    ops.range_push("other thread");
    ops.range_pop();
  }).join();
  ops.range_push("open");
  if (ops.activity_end(&count, &dropped) != OPS_SUCCESS) test.fail(ops.last_error());
  for (int i = 0; i < 3; ++i) ops.range_pop();
  if (count != 4 || dropped != 0) return test.fail("expected 4 records, got " + std::to_string(count));
  std::vector<OpsActivity> records(4);
  if (ops.activity_read(records.data(), count) != OPS_SUCCESS) test.fail(ops.last_error());
  const char *const names[] = {"step", "layer", "other thread", "open"};
  const int64_t inside[] = {0, records[0].number, 0, records[0].number};
  for (int i = 0; i < 4; ++i) {
    const OpsActivity &record = records[i];
    const bool is_open = i == 0 || i == 3;
    if (strcmp(record.name, names[i]) != 0 || record.range != inside[i] || record.kind != OPS_ACTIVITY_RANGE)
      test.fail(std::string("record ") + std::to_string(i) + " is " + record.name);
    if (record.begin < now || (is_open ? record.end != 0 : record.end < record.begin)) test.fail(std::string("times of ") + record.name);
  }
  if (records[2].stream == records[0].stream) test.fail("two threads have one number");
  if (records[1].end > records[3].begin) test.fail("a range began before the one ahead of it ended");
}

}  // namespace chagres::tests
