/*
 * What CUPTI tells of kernels, copies and fills becomes records with readable names and the range that enqueued them.
 * usage: ops_cupti_test OPS_LIBRARY CUPTI
 */
#include <cstring>
#include <vector>

#include "harness/expect.h"
#include "harness/library.h"

using namespace chagres::tests;

namespace {

void *made_up;

template <class Function>
Function made(const char *name) {
  return reinterpret_cast<Function>(find_symbol(made_up, name));
}

void expect(const OpsActivity &record, const char *name, int kind, int64_t range, int64_t begin, int64_t end) {
  if (strcmp(record.name, name) != 0) stop(__FILE__, __LINE__, std::string("name: ") + record.name);
  EXPECT_EQUAL(record.kind, kind);
  EXPECT_EQUAL(record.range, range);
  EXPECT_EQUAL(record.begin, begin);
  EXPECT_EQUAL(record.end, end);
}

void record_once(const Ops &ops, const char *path) {
  const auto kernel = made<void (*)(const char *, uint64_t, uint64_t, uint32_t, uint32_t)>("made_up_kernel");
  int64_t now = 0, count = 0, dropped = 0;
  kernel("before", 1, 2, 0, 7);
  EXPECT_EQUAL(ops.activity_begin(path, &now), OPS_SUCCESS);
  ops.range_push("step");
  ops.range_push("layers.3");
  kernel("_ZN3gpu4gemmIfEEvi", 100, 250, 0, 7);
  made<void (*)(uint8_t, uint64_t, uint64_t, uint64_t)>("made_up_copy")(1, 4096, 250, 260);
  ops.range_pop();
  kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 260, 300, 1, 9);
  made<void (*)(uint64_t, uint64_t, uint64_t)>("made_up_fill")(64, 300, 301);
  ops.range_pop();
  kernel("alone", 310, 320, 0, 7);
  EXPECT_EQUAL(ops.activity_end(&count, &dropped), OPS_SUCCESS);
  EXPECT_EQUAL(count, 7);
  EXPECT_EQUAL(dropped, 0);
  std::vector<OpsActivity> records(7);
  EXPECT_EQUAL(ops.activity_read(records.data(), 7), OPS_SUCCESS);
  const int64_t step = records[0].number, layer = records[1].number;
  EXPECT_EQUAL(records[1].range, step);
  if (now >= records[0].begin || records[1].end <= records[1].begin) stop(__FILE__, __LINE__, "times of ranges");
  expect(records[2], "void gpu::gemm<float>(int)", OPS_ACTIVITY_KERNEL, layer, 100, 250);
  expect(records[3], "copy host to device", OPS_ACTIVITY_COPY, layer, 250, 260);
  EXPECT_EQUAL(records[3].bytes, 4096);
  expect(records[4], "ncclDevKernel_AllReduce_Sum_f32_RING_LL", OPS_ACTIVITY_KERNEL, step, 260, 300);
  EXPECT_EQUAL(records[4].device, 1);
  EXPECT_EQUAL(records[4].stream, 9);
  expect(records[5], "fill", OPS_ACTIVITY_FILL, step, 300, 301);
  expect(records[6], "alone", OPS_ACTIVITY_KERNEL, 0, 310, 320);
  kernel("after", 400, 500, 0, 7);
}

}  // namespace

int main(int count, char **arguments) {
  if (count < 3) stop(__FILE__, __LINE__, "see the usage in this file");
  const Ops ops = open_library(arguments[1]);
  made_up = open_shared(arguments[2]);
  int64_t now = 0, records = 0, dropped = 0;
  EXPECT_EQUAL(ops.activity_begin("/nowhere/libcupti.so.13", &now), OPS_NOT_OPEN);
  EXPECT_EQUAL(ops.activity_begin(arguments[1], &now), OPS_NOT_OPEN); /* another library */
  record_once(ops, arguments[2]);
  record_once(ops, arguments[2]); /* nothing is left of the first */
  EXPECT_EQUAL(ops.activity_begin("/elsewhere/libcupti.so.13", &now), OPS_INVALID_ARGUMENT);
  /* Another profiler of the process listens. */
  made<void (*)(int)>("made_up_refusal")(39);
  EXPECT_EQUAL(ops.activity_begin(arguments[2], &now), OPS_CUDA_ERROR);
  if (strstr(ops.last_error(), "cuptiActivityEnable says 39, made up; another profiler of this process") == nullptr)
    stop(__FILE__, __LINE__, ops.last_error());
  made<void (*)(int)>("made_up_refusal")(0);
  /* A range that outlives its recording leaves no id behind. */
  EXPECT_EQUAL(ops.activity_begin(arguments[2], &now), OPS_SUCCESS);
  ops.range_push("open");
  EXPECT_EQUAL(ops.activity_end(&records, &dropped), OPS_SUCCESS);
  ops.range_pop();
  EXPECT_EQUAL(made<size_t (*)()>("made_up_ids")(), size_t{0});
  return 0;
}
