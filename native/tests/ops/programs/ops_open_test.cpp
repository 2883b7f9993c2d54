/*
 * Opening, compiling, caching and launching, on the emulated CUDA: what it counts and the failures it can be asked for
 * are in emulator/faults.h. One test a process, as ops_open works once.
 * usage: ops_open_test TEST OPS_LIBRARY EMULATED_CUDA CACHE_FOLDER NUMBER_OF_SOURCES
 */
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "emulator/faults.h"
#include "harness/expect.h"
#include "harness/library.h"

using namespace chagres::tests;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kRows = 300; /* more than one chunk: sums need partial sums */
constexpr int64_t kColumns = 24;

struct Emulation {
  Ops ops;
  std::string ops_path, cuda_path;
  fs::path cache;
  int sources;
  Faults *faults;
  int (*set_device)(int);
  int (*get_last_error)();

  int open() const { return ops.open(cuda_path.c_str(), cuda_path.c_str(), nullptr, cache.c_str()); }
  std::string text() const { return ops.last_error(); }
};

OpsStream stream_number(uintptr_t number) { return reinterpret_cast<OpsStream>(number * 64); }

/* Row sums of ones; the status, with the result checked when it is 0. */
int sum_ones(const Emulation &emulation, OpsStream stream) {
  const std::vector<float> ones(kRows * kColumns, 1);
  std::vector<float> sum(kColumns, -1);
  const int status = emulation.ops.row_sum(ones.data(), sum.data(), 0, kRows, kColumns, 4, stream);
  for (float value : sum)
    if (status == OPS_SUCCESS) EXPECT_EQUAL(value, kRows);
  return status;
}

int add_one(const Emulation &emulation) {
  float x = 1, y = 2;
  const int status = emulation.ops.add(&x, &y, &y, 1, 4, nullptr);
  if (status == OPS_SUCCESS) EXPECT_EQUAL(y, 3);
  return status;
}

void test_refusals(const Emulation &e) {
  int compiled = 0;
  EXPECT_EQUAL(add_one(e), OPS_NOT_OPEN);
  EXPECT_CONTAINS(e.text(), "ops_add: ops_open has not succeeded in this process");
  EXPECT_EQUAL(sum_ones(e, nullptr), OPS_NOT_OPEN);
  EXPECT_EQUAL(e.ops.compile_all(9, 0, &compiled), OPS_NOT_OPEN);
  const char *good = e.cuda_path.c_str(), *wrong = e.ops_path.c_str(), *cache = e.cache.c_str();
  EXPECT_EQUAL(e.ops.open(nullptr, good, nullptr, cache), OPS_INVALID_ARGUMENT);
  EXPECT_CONTAINS(e.text(), "ops_open: cuda_runtime is null; expected the path of the CUDA runtime library");
  EXPECT_EQUAL(e.ops.open(good, good, nullptr, nullptr), OPS_INVALID_ARGUMENT);
  EXPECT_CONTAINS(e.text(), "ops_open: cache_directory is null; expected a folder for compiled kernels");
  EXPECT_EQUAL(e.ops.open("/absent/libcudart.so", good, nullptr, cache), OPS_INVALID_ARGUMENT);
  EXPECT_CONTAINS(e.text(), "ops_open: cuda_runtime: /absent/libcudart.so: cannot open shared object file");
  EXPECT_EQUAL(e.ops.open(wrong, good, nullptr, cache), OPS_INVALID_ARGUMENT);
  EXPECT_CONTAINS(e.text(), "has no function cudaGetDevice: another library?");
  EXPECT_EQUAL(e.ops.open(good, wrong, nullptr, cache), OPS_INVALID_ARGUMENT);
  EXPECT_CONTAINS(e.text(), "has no function nvrtcVersion: another library?");
  EXPECT_EQUAL(e.ops.open(good, good, nullptr, (e.cuda_path + "/folder").c_str()), OPS_INVALID_ARGUMENT);
  EXPECT_CONTAINS(e.text(), "ops_open: cache_directory: cannot create " + e.cuda_path + "/folder: Not a directory");
  EXPECT_EQUAL(e.ops.open(good, good, nullptr, good), OPS_INVALID_ARGUMENT);
  EXPECT_CONTAINS(e.text(), " is no folder");
  EXPECT_EQUAL(e.open(), OPS_SUCCESS);
  EXPECT_EQUAL(e.open(), OPS_SUCCESS);
  EXPECT_EQUAL(e.ops.open(good, good, nullptr, "/elsewhere"), OPS_INVALID_ARGUMENT);
  EXPECT_CONTAINS(e.text(), "a process has one set of libraries");
  EXPECT_EQUAL(add_one(e), OPS_SUCCESS);
}

int compile_all(const Emulation &e, int major) {
  int compiled = -1;
  EXPECT_EQUAL(e.ops.compile_all(major, 0, &compiled), OPS_SUCCESS);
  return compiled;
}

fs::path cubin_of(const Emulation &e, const std::string &stem) {
  for (const auto &entry : fs::directory_iterator(e.cache))
    if (entry.path().filename().string().rfind(stem, 0) == 0) return entry.path();
  stop(__FILE__, __LINE__, "no cached file " + stem);
}

void test_cache(const Emulation &e) {
  EXPECT_EQUAL(e.open(), OPS_SUCCESS);
  EXPECT_EQUAL(compile_all(e, 9), e.sources);
  EXPECT_EQUAL(e.faults->compiles, e.sources);
  EXPECT_EQUAL(compile_all(e, 9), e.sources);
  EXPECT_EQUAL(e.faults->compiles, e.sources); /* from the cache */
  EXPECT_EQUAL(compile_all(e, 8), e.sources);
  EXPECT_EQUAL(e.faults->compiles, 2 * e.sources); /* another architecture */

  int compiles = 2 * e.sources;
  const fs::path file = cubin_of(e, "elementwise-sm_90-");
  const auto size = fs::file_size(file);
  const std::function<void()> damages[] = {
      [&] { fs::resize_file(file, size - 1); }, [&] { fs::resize_file(file, 0); }, [&] { fs::resize_file(file, 10); },
      [&] { std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(40) << 'X'; }};
  for (const auto &damage : damages) {
    damage();
    EXPECT_EQUAL(compile_all(e, 9), e.sources);
    EXPECT_EQUAL(e.faults->compiles, ++compiles);
    EXPECT_EQUAL(fs::file_size(file), size);
  }
  for (const auto &entry : fs::directory_iterator(e.cache)) /* no temporary file stays */
    EXPECT_CONTAINS(entry.path().extension().string(), ".cubin");

  /* A cubin that cannot be stored: an error when storing is the purpose, none when launching is. */
  fs::remove(file);
  fs::create_directory(file);
  int compiled = -1;
  EXPECT_EQUAL(e.ops.compile_all(9, 0, &compiled), OPS_COMPILE_ERROR);
  EXPECT_CONTAINS(e.text(), "ops_compile_all: cannot write " + file.string() + ": Is a directory");
  EXPECT_EQUAL(add_one(e), OPS_SUCCESS);
}

void test_failures(const Emulation &e) {
  EXPECT_EQUAL(e.open(), OPS_SUCCESS);
  e.faults->call = "nvrtcCompileProgram";
  EXPECT_EQUAL(add_one(e), OPS_COMPILE_ERROR);
  EXPECT_CONTAINS(e.text(),
                  "ops_add: NVRTC 13.0 refused elementwise.cu for sm_90 (NVRTC_ERROR_COMPILATION):\nlog of the compiler");
  e.faults->call = "cudaLibraryLoadData";
  EXPECT_EQUAL(add_one(e), OPS_CUDA_ERROR);
  EXPECT_CONTAINS(e.text(), "ops_add: cudaLibraryLoadData failed with code 209 (cudaErrorNoKernelImageForDevice)");
  e.faults->call = "cudaLaunchKernel";
  EXPECT_EQUAL(add_one(e), OPS_CUDA_ERROR);
  EXPECT_CONTAINS(e.text(), "ops_add: cudaLaunchKernel failed with code 719");
  EXPECT_EQUAL(e.get_last_error(), 0); /* or another library would report it as its own */
  e.faults->call = "cudaMalloc";
  EXPECT_EQUAL(sum_ones(e, nullptr), OPS_CUDA_ERROR);
  EXPECT_CONTAINS(e.text(), "ops_row_sum: cudaMalloc failed with code 900");
  EXPECT_EQUAL(add_one(e), OPS_SUCCESS); /* nothing of it stays */
  EXPECT_EQUAL(sum_ones(e, nullptr), OPS_SUCCESS);
}

/* dy of ones, all ids 1: needs the shared memory that a kernel must ask for on each device. */
void embed_ones(const Emulation &e) {
  const std::vector<float> dy(400 * 64, 1);
  const std::vector<int32_t> ids(400, 1);
  std::vector<float> gradient(2 * 64, -1);
  EXPECT_EQUAL(e.ops.embedding_backward(dy.data(), ids.data(), gradient.data(), 0, 0, 400, 2, 64, 4, nullptr),
               OPS_SUCCESS);
  for (size_t i = 0; i < gradient.size(); ++i) EXPECT_EQUAL(gradient[i], i < 64 ? 0 : 400);
}

void test_devices(const Emulation &e) {
  EXPECT_EQUAL(e.open(), OPS_SUCCESS);
  const int loads[] = {1, 1, 2}; /* devices 0 and 1 have one architecture, and so one library */
  for (int device = 0; device < 3; ++device) {
    EXPECT_EQUAL(e.set_device(device), 0);
    embed_ones(e);
    embed_ones(e);
    EXPECT_EQUAL(e.faults->loads, loads[device]);
  }
}

/* Elements 1 in FP32 and bytes of 1 in E4M3, by several blocks: largest 1, each error 1/2. */
void measure_ones(const Emulation &e, OpsStream stream) {
  const int64_t count = 9000;
  const std::vector<float> x(count, 1), scale(1, 0.5f);
  const std::vector<uint8_t> q(count, 0x38);
  std::vector<float> statistics(6, -1);
  EXPECT_EQUAL(e.ops.quantization_statistics(x.data(), q.data(), scale.data(), statistics.data(), 1, count, 0, 0, 4, 7,
                                             stream),
               OPS_SUCCESS);
  const std::vector<float> expected = {1, 0, 0, 0.25f, 2, 2};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQUAL(statistics[i], expected[i]);
}

void test_streams(const Emulation &e) {
  EXPECT_EQUAL(e.open(), OPS_SUCCESS);
  EXPECT_EQUAL(sum_ones(e, nullptr), OPS_SUCCESS);
  const int allocations = e.faults->allocations;
  for (int i = 0; i < 5; ++i) EXPECT_EQUAL(sum_ones(e, nullptr), OPS_SUCCESS);
  EXPECT_EQUAL(e.faults->allocations, allocations); /* the steady state */
  EXPECT_EQUAL(e.faults->loads, 1);
  for (int pass = 0; pass < 2; ++pass)
    for (uintptr_t stream = 1; stream <= 20; ++stream) EXPECT_EQUAL(sum_ones(e, stream_number(stream)), OPS_SUCCESS);
  EXPECT_EQUAL(e.faults->allocations, allocations + 20);
  for (uintptr_t stream = 1; stream <= 50; ++stream) EXPECT_EQUAL(sum_ones(e, stream_number(stream)), OPS_SUCCESS);
  const int before = e.faults->allocations;
  const auto per_thread_default = reinterpret_cast<OpsStream>(uintptr_t{2});
  for (int i = 0; i < 3; ++i) EXPECT_EQUAL(sum_ones(e, per_thread_default), OPS_SUCCESS);
  EXPECT_EQUAL(e.faults->allocations, before + 3); /* one handle, many streams: nothing to keep */
  for (int i = 0; i < 3; ++i)
    for (OpsStream stream : {stream_number(1), stream_number(50), per_thread_default}) measure_ones(e, stream);
}

void test_threads(const Emulation &e) {
  EXPECT_EQUAL(e.open(), OPS_SUCCESS);
  std::vector<std::thread> threads;
  for (uintptr_t i = 0; i < 12; ++i)
    threads.emplace_back([&, i] {
      EXPECT_EQUAL(e.set_device(static_cast<int>(i % 3)), 0);
      for (int k = 0; k < 3; ++k) EXPECT_EQUAL(sum_ones(e, stream_number(i + 1)), OPS_SUCCESS);
      EXPECT_EQUAL(e.ops.add(nullptr, nullptr, nullptr, -static_cast<int64_t>(i) - 1, 4, nullptr),
                   OPS_INVALID_ARGUMENT);
      EXPECT_CONTAINS(e.text(), "count is -" + std::to_string(i + 1) + ";"); /* each thread has its own text */
    });
  for (std::thread &thread : threads) thread.join();
  EXPECT_EQUAL(e.faults->loads, 2);
  EXPECT_EQUAL(e.faults->compiles, 2);
  EXPECT_EQUAL(e.faults->allocations, 12);
}

/* A norm's blocks follow from the multiprocessors of its device, and from how many of them it is told to fill. */
void test_multiprocessors(const Emulation &e) {
  EXPECT_EQUAL(e.open(), OPS_SUCCESS);
  constexpr int64_t rows = 1000, columns = 64; /* 125 tiles of 8 rows */
  std::vector<float> x(rows * columns, 1), y(x), gamma(columns, 1), inverse(rows), dgamma(columns);
  OpsResidualNorm norm = {};
  norm.x = norm.h = x.data();
  norm.dy = norm.dh = norm.y = y.data();
  norm.gamma = gamma.data();
  norm.inverse = inverse.data();
  norm.dgamma = dgamma.data();
  norm.rows = rows;
  norm.columns = columns;
  norm.epsilon = 1;
  norm.kind = OPS_RMS_NORM;
  norm.dtype = 4;
  for (const int device : {0, 2}) {
    EXPECT_EQUAL(e.set_device(device), 0);
    const int all = device == 0 ? 4 : 6;
    for (const int told : {0, 1, 3, all - 1, all, all + 1, INT32_MAX}) {
      const unsigned filled = static_cast<unsigned>(told == 0 ? all : std::min(told, all));
      norm.multiprocessors = told;
      e.faults->blocks = 0;
      EXPECT_EQUAL(e.ops.residual_norm_forward(&norm, nullptr), OPS_SUCCESS);
      EXPECT_EQUAL(e.faults->blocks, 4 * filled);
      e.faults->blocks = 0;
      EXPECT_EQUAL(e.ops.residual_norm_backward(&norm, nullptr), OPS_SUCCESS);
      EXPECT_EQUAL(e.faults->blocks, std::max(2 * filled, 3u)); /* 3 of the kernel that adds up 64 columns */
    }
  }
}

}  // namespace

int main(int count, char **arguments) {
  const std::map<std::string, void (*)(const Emulation &)> tests = {
      {"refusals", test_refusals}, {"cache", test_cache},     {"failures", test_failures},
      {"devices", test_devices},   {"streams", test_streams}, {"threads", test_threads},
      {"multiprocessors", test_multiprocessors}};
  if (count != 6 || tests.count(arguments[1]) == 0) stop(__FILE__, __LINE__, "see the usage in this file");
  void *cuda = open_shared(arguments[3]);
  Emulation emulation = {open_library(arguments[2]),
                         arguments[2],
                         arguments[3],
                         arguments[4],
                         atoi(arguments[5]),
                         reinterpret_cast<Faults *(*)()>(find_symbol(cuda, "emulator_faults"))(),
                         reinterpret_cast<int (*)(int)>(find_symbol(cuda, "cudaSetDevice")),
                         reinterpret_cast<int (*)()>(find_symbol(cuda, "cudaGetLastError"))};
  fs::remove_all(emulation.cache);
  tests.at(arguments[1])(emulation);
  fs::remove_all(emulation.cache);
  return 0;
}
