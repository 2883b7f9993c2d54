/*
 * Which kernel a matrix product takes, how often cuBLASLt is asked, and what the cache folder keeps, on the emulated
 * cuBLASLt: its second kernel is the fastest (emulator/cublas.cpp). One test a process.
 * usage: ops_plans_test TEST OPS_LIBRARY EMULATED_CUDA CACHE_FOLDER
 */
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "emulator/faults.h"
#include "harness/expect.h"
#include "harness/library.h"

using namespace chagres::tests;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kSize = 8;

struct Emulation {
  Ops ops;
  std::string cuda_path;
  fs::path cache;
  Faults *faults;
  int (*set_device)(int);
  int (*begin_capture)(void *, int);
  int (*end_capture)(void *, void **);
  int (*launch)(void *, void *);

  void open() const {
    EXPECT_EQUAL(ops.open(cuda_path.c_str(), cuda_path.c_str(), nullptr, cache.c_str()), OPS_SUCCESS);
  }
};

/* n: of D; the other sizes are kSize. */
int multiply(const Emulation &e, int plan, float accumulate, int64_t n = kSize) {
  alignas(256) static float a[256], b[256], d[256];
  static char workspace[1024];
  for (int i = 0; i < 256; ++i) a[i] = 1, b[i] = 2, d[i] = 100;
  OpsMatrixProduct p = {};
  p.a = a;
  p.b = b;
  p.d = d;
  p.workspace = workspace;
  p.workspace_bytes = sizeof workspace;
  p.m = p.k = kSize;
  p.n = n;
  p.accumulate = accumulate;
  p.a_dtype = p.b_dtype = p.d_dtype = 4;
  p.plan = plan;
  const int status = e.ops.matrix_product(&p, nullptr);
  if (status == OPS_SUCCESS) EXPECT_EQUAL(d[0], 2 * kSize + accumulate * 100);
  return e.faults->last_kernel;
}

fs::path file_of(const Emulation &e) {
  fs::path found;
  for (const auto &entry : fs::directory_iterator(e.cache))
    if (entry.path().extension() == ".plans") found = entry.path();
  return found;
}

void test_choice(const Emulation &e) {
  OpsMatrixProduct p = {};
  p.m = p.n = p.k = kSize;
  EXPECT_EQUAL(e.ops.matrix_product(nullptr, nullptr), OPS_INVALID_ARGUMENT);
  EXPECT_CONTAINS(std::string(e.ops.last_error()), "ops_matrix_product: product is null; expected a host struct");
  e.open();
  EXPECT_EQUAL(multiply(e, OPS_PLAN_FIRST, 0), 1);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_FIRST, 0), 1);
  EXPECT_EQUAL(e.faults->heuristics, 1); /* of one kind it is asked once */
  EXPECT_EQUAL(e.faults->products, 2);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 1), 1); /* what accumulates is not measured */
  EXPECT_EQUAL(e.faults->heuristics, 1);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0), 2);
  EXPECT_EQUAL(e.faults->heuristics, 2);
  const int products = e.faults->products;
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0), 2);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 1), 2);
  EXPECT_EQUAL(e.faults->products, products + 2); /* it measures once */
  EXPECT_EQUAL(multiply(e, OPS_PLAN_FIRST, 0), 1);

  /* A capture measures nothing; the next call does. */
  void *graph = nullptr;
  EXPECT_EQUAL(multiply(e, OPS_PLAN_FIRST, 0, 2 * kSize), 1);
  float *const d = nullptr;
  EXPECT_EQUAL(e.begin_capture(d, 0), 0);
  e.faults->last_kernel = 0;
  OpsMatrixProduct captured = {};
  alignas(256) static float a[256], b[256], result[256];
  static char workspace[1024];
  for (int i = 0; i < 256; ++i) a[i] = 1, b[i] = 2;
  captured.a = a;
  captured.b = b;
  captured.d = result;
  captured.workspace = workspace;
  captured.workspace_bytes = sizeof workspace;
  captured.m = captured.k = kSize;
  captured.n = 2 * kSize;
  captured.a_dtype = captured.b_dtype = captured.d_dtype = 4;
  captured.plan = OPS_PLAN_MEASURED;
  EXPECT_EQUAL(e.ops.matrix_product(&captured, nullptr), OPS_SUCCESS);
  EXPECT_EQUAL(e.end_capture(nullptr, &graph), 0);
  EXPECT_EQUAL(e.faults->last_kernel, 1);
  EXPECT_EQUAL(result[0], 0); /* it only was recorded */
  EXPECT_EQUAL(e.launch(graph, nullptr), 0);
  EXPECT_EQUAL(result[0], 2 * kSize);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0, 2 * kSize), 2);

  /* A size for which the emulated cuBLASLt has no kernel. */
  captured.n = 13;
  EXPECT_EQUAL(e.ops.matrix_product(&captured, nullptr), OPS_CUDA_ERROR);
  EXPECT_CONTAINS(std::string(e.ops.last_error()), "ops_matrix_product: cuBLASLt 130100 has no kernel for m 8, n 13, k 8");
}

/* Sizes that differ by an eighth at most share what was measured, and add nothing to the file. */
void test_near(const Emulation &e) {
  e.open();
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0, 16), 2);
  const auto size = fs::file_size(file_of(e));
  const int products = e.faults->products;
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 1, 18), 2);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0, 14), 2);
  EXPECT_EQUAL(e.faults->products, products + 2);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 1, 20), 1); /* near 18, which was not measured itself */
  EXPECT_EQUAL(fs::file_size(file_of(e)), size);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0, 20), 2);
  EXPECT_EQUAL(fs::file_size(file_of(e)) > size, true);
}

/* Devices of one kind share the file, as processes do. */
void test_store(const Emulation &e) {
  e.open();
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0), 2);
  EXPECT_EQUAL(fs::exists(file_of(e)), true);
  const int products = e.faults->products;
  EXPECT_EQUAL(e.set_device(1), 0);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 1), 2); /* known, so that it may accumulate */
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0), 2);
  EXPECT_EQUAL(e.faults->products, products + 2);
  EXPECT_EQUAL(e.set_device(2), 0); /* of another kind */
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 1), 1);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0), 2);
}

void test_damage(const Emulation &e) {
  e.open();
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0), 2);
  const fs::path file = file_of(e);
  const auto size = fs::file_size(file);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(60) << 'X';
  EXPECT_EQUAL(e.set_device(1), 0);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 1), 1); /* nothing is known */
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0), 2);
  EXPECT_EQUAL(fs::file_size(file), size); /* written anew */
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0, 2 * kSize), 2);
  EXPECT_EQUAL(fs::file_size(file) > size, true);

  /* A file that cannot be written costs later processes the measuring, and nothing else. */
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_EQUAL(multiply(e, OPS_PLAN_MEASURED, 0, 3 * kSize), 2);
}

}  // namespace

int main(int count, char **arguments) {
  const std::map<std::string, void (*)(const Emulation &)> tests = {
      {"choice", test_choice}, {"near", test_near}, {"store", test_store}, {"damage", test_damage}};
  if (count != 5 || tests.count(arguments[1]) == 0) stop(__FILE__, __LINE__, "see the usage in this file");
  void *cuda = open_shared(arguments[3]);
  Emulation emulation = {open_library(arguments[2]),
                         arguments[3],
                         arguments[4],
                         reinterpret_cast<Faults *(*)()>(find_symbol(cuda, "emulator_faults"))(),
                         reinterpret_cast<int (*)(int)>(find_symbol(cuda, "cudaSetDevice")),
                         reinterpret_cast<int (*)(void *, int)>(find_symbol(cuda, "cudaStreamBeginCapture")),
                         reinterpret_cast<int (*)(void *, void **)>(find_symbol(cuda, "cudaStreamEndCapture")),
                         reinterpret_cast<int (*)(void *, void *)>(find_symbol(cuda, "cudaGraphLaunch"))};
  fs::remove_all(emulation.cache);
  tests.at(arguments[1])(emulation);
  fs::remove_all(emulation.cache);
  return 0;
}
