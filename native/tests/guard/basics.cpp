// The guard's own functions and its statuses, against fake_provider.cpp. usage: guard_basics FAKE OTHER

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "chagres/te.h"

namespace {

int failures = 0;

void expect(bool is_right, const char *what, int line) {
  if (is_right) return;
  ++failures;
  std::printf("basics.cpp:%d: expected %s; last error: %s\n", line, what, te_last_error());
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

bool text_is(const char *text) { return std::strcmp(te_last_error(), text) == 0; }
bool text_has(const char *part) { return std::strstr(te_last_error(), part) != nullptr; }

const char *wild_text(std::uintptr_t address) { return reinterpret_cast<const char *>(address); }

void before_open() {
  EXPECT(text_is(""));
  NVTETensor tensor = nullptr;
  EXPECT(te_create_tensor(NVTE_DELAYED_TENSOR_SCALING, &tensor) == TE_NOT_OPEN);
  EXPECT(text_is("te_create_tensor: te_open has not succeeded in this process; call it first"));
  EXPECT(te_has("gelu") == 0);
  EXPECT(te_open(nullptr) == TE_REFUSED);
  EXPECT(text_is("te_open: argument path: expected the path of a library, got null"));
  EXPECT(te_open(wild_text(1)) == TE_REFUSED);
  EXPECT(text_is("te_open: argument path: expected the path of a library, got 0x1, where no memory can be"));
  EXPECT(te_open(wild_text(65535)) == TE_REFUSED);
  EXPECT(te_open("/nowhere/libtransformer_engine.so") == TE_ERROR);
  EXPECT(text_has("te_open: /nowhere/libtransformer_engine.so: cannot open shared object file"));
  EXPECT(te_open("libm.so.6") == TE_ERROR);
  EXPECT(text_is("te_open: libm.so.6 has no nvte_ function"));
}

void environment() {
  EXPECT(te_set_environment("CHAGRES_BASICS", "a b") == TE_SUCCESS);
  EXPECT(std::strcmp(std::getenv("CHAGRES_BASICS"), "a b") == 0);
  EXPECT(te_set_environment("a=b", "c") == TE_ERROR);
  EXPECT(text_has("te_set_environment: argument name: \"a=b\""));
  EXPECT(te_set_environment(nullptr, "c") == TE_REFUSED);
  EXPECT(te_set_environment("NAME", nullptr) == TE_REFUSED);
  EXPECT(text_is("te_set_environment: argument value: expected a text, got null"));
  EXPECT(te_set_environment(wild_text(1), "c") == TE_REFUSED);
  EXPECT(te_set_environment("NAME", wild_text(65535)) == TE_REFUSED);
  EXPECT(text_is("te_set_environment: argument value: expected a text, got 0xffff, where no memory can be"));
}

void opening(const char *fake, const char *unresolved) {
  EXPECT(te_open(unresolved) == TE_ERROR);
  EXPECT(text_has("needs symbols that no loaded library has: chagres_nobody_has_this."));
  EXPECT(te_open(fake) == TE_SUCCESS);
  EXPECT(te_open(fake) == TE_SUCCESS);
  EXPECT(te_open("/another/library.so") == TE_ERROR);
  EXPECT(text_has("it cannot open /another/library.so as well"));
  EXPECT(te_has("gelu") == 1);
  EXPECT(te_has("geglu") == 0);
  EXPECT(te_has(nullptr) == 0);
  EXPECT(text_is("te_has: argument name: expected the name of a function, got null"));
  EXPECT(te_has(wild_text(1)) == 0);
  EXPECT(te_has(wild_text(65535)) == 0);
  EXPECT(text_is("te_has: argument name: expected the name of a function, got 0xffff, where no memory can be"));
}

void missing() {
  EXPECT(te_geglu(nullptr, nullptr, nullptr) == TE_MISSING);
  EXPECT(text_has("nvte_geglu is not in "));
  /* Functions that conditions would call are missing as well: the condition must not call them. */
  EXPECT(te_cublas_gemm_v2(0, 0, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr) ==
         TE_MISSING);
}

NVTETensor tensor() {
  NVTETensor created = nullptr;
  EXPECT(te_create_tensor(NVTE_DELAYED_TENSOR_SCALING, &created) == TE_SUCCESS);
  return created;
}

void exceptions() {
  const NVTETensor x = tensor();
  const NVTETensor y = tensor();
  EXPECT(te_gelu(x, y, nullptr) == TE_ERROR);
  EXPECT(text_has("fake.cu:1 in function gelu: xxx"));
  EXPECT(std::strlen(te_last_error()) > 20000);
  EXPECT(te_relu(x, y, nullptr) == TE_ERROR);
  EXPECT(text_is("nvte_relu threw an object that is no std::exception"));
  EXPECT(te_silu(x, y, nullptr) == TE_ERROR);
  EXPECT(text_is("std::bad_alloc"));
  EXPECT(te_destroy_tensor(x) == TE_SUCCESS);
  EXPECT(text_is("std::bad_alloc"));  // a success leaves the text of the last failure
  EXPECT(te_destroy_tensor(y) == TE_SUCCESS);
}

void refusals() {
  const NVTETensor slot = tensor();
  const NVTETensor address = tensor();
  EXPECT(te_create_tensor(NVTE_DELAYED_TENSOR_SCALING, nullptr) == TE_REFUSED);
  EXPECT(text_is("te_create_tensor: argument result: expected an address, got null"));
  NVTETensor created = nullptr;
  EXPECT(te_create_tensor(static_cast<NVTEScalingMode>(99), &created) == TE_REFUSED);
  EXPECT(text_is("te_create_tensor: argument scaling_mode: expected a value of NVTEScalingMode, got 99"));
  EXPECT(te_gelu(nullptr, slot, nullptr) == TE_REFUSED);
  EXPECT(text_is("te_gelu: argument input: expected a live NVTETensor, got 0"));
  EXPECT(te_gelu(slot, reinterpret_cast<NVTETensor>(0xdead), nullptr) == TE_REFUSED);
  EXPECT(text_has("argument output: expected a live NVTETensor, got 0xdead"));
  EXPECT(te_gelu(slot, &created, nullptr) == TE_REFUSED);
  EXPECT(te_gelu(slot, address, reinterpret_cast<cudaStream_t>(0xdead)) == TE_REFUSED);
  EXPECT(text_is("te_gelu: argument stream: expected a CUDA stream, got 0xdead"));
  EXPECT(te_gelu(slot, address, reinterpret_cast<cudaStream_t>(2)) == TE_ERROR);
  for (const NVTETensor handle : {slot, address}) {
    EXPECT(te_destroy_tensor(handle) == TE_SUCCESS);
    EXPECT(te_destroy_tensor(handle) == TE_REFUSED);
    EXPECT(te_gelu(handle, handle, nullptr) == TE_REFUSED);
  }
  EXPECT(te_destroy_tensor(nullptr) == TE_SUCCESS);
}

/* In the lists of bias and GELU inputs 0 is none, where TE looks before it reads. */
void lists_with_none() {
  NVTETensor x[] = {tensor(), tensor()}, none[] = {nullptr, nullptr};
  const auto products = [&](NVTETensor *a, NVTETensor *bias, NVTETensor *aux, int count) {
    return te_multi_tensor_gemm(a, x, x, bias, aux, count, true, false, false, x, false, false, 0, nullptr);
  };
  EXPECT(products(x, none, none, 2) == TE_SUCCESS);
  EXPECT(products(x, x, none, 2) == TE_SUCCESS);
  EXPECT(products(none, nullptr, nullptr, 0) == TE_SUCCESS);
  EXPECT(products(none, nullptr, nullptr, -1) == TE_SUCCESS);
  EXPECT(products(none, x, x, 2) == TE_REFUSED);
  EXPECT(text_is("te_multi_tensor_gemm: argument A[0]: expected a live NVTETensor, got 0"));
  EXPECT(products(x, nullptr, x, 2) == TE_REFUSED);
  EXPECT(text_is("te_multi_tensor_gemm: argument bias: expected an address, got null"));
  NVTETensor wild[] = {nullptr, reinterpret_cast<NVTETensor>(0xdead)};
  EXPECT(products(x, x, wild, 2) == TE_REFUSED);
  EXPECT(text_has("argument pre_gelu_out[1]: expected a live NVTETensor, got 0xdead"));
  EXPECT(te_set_environment("NVTE_USE_CUTLASS_GROUPED_GEMM", "1") == TE_SUCCESS);
  EXPECT(products(x, x, none, 2) == TE_REFUSED);
  EXPECT(text_is("te_multi_tensor_gemm: argument pre_gelu_out: expected live tensors without data for none, as "
                 "NVTE_USE_CUTLASS_GROUPED_GEMM is set, got 0 for number 0"));
  EXPECT(products(x, x, x, 2) == TE_SUCCESS);
  EXPECT(te_set_environment("NVTE_USE_CUTLASS_GROUPED_GEMM", "0") == TE_SUCCESS);
  EXPECT(products(x, x, none, 2) == TE_SUCCESS);
  for (const NVTETensor handle : x) EXPECT(te_destroy_tensor(handle) == TE_SUCCESS);
}

void threads() {
  const NVTETensor x = tensor();
  EXPECT(te_relu(x, x, nullptr) == TE_ERROR);
  std::thread([] { EXPECT(text_is("")); }).join();
  EXPECT(text_is("nvte_relu threw an object that is no std::exception"));
  EXPECT(te_destroy_tensor(x) == TE_SUCCESS);
}

/* Handles that are addresses come and go from several threads; each is live exactly while its thread has it. */
void churn() {
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([] {
      for (int round = 0; round < 2000; ++round) {
        std::vector<NVTETensor> mine;
        for (int i = 0; i < 16; ++i) {
          NVTETensor created = nullptr;
          if (te_create_tensor(NVTE_DELAYED_TENSOR_SCALING, &created) == TE_SUCCESS) mine.push_back(created);
        }
        for (const NVTETensor handle : mine) EXPECT(te_relu(handle, handle, nullptr) == TE_ERROR);
        for (const NVTETensor handle : mine) EXPECT(te_destroy_tensor(handle) == TE_SUCCESS);
      }
    });
  }
  for (std::thread &thread : all) thread.join();
}

}  // namespace

int main(int count, char **arguments) {
  if (count != 3) {
    std::printf("usage: guard_basics FAKE UNRESOLVED\n");
    return 2;
  }
  before_open();
  environment();
  opening(arguments[1], arguments[2]);
  missing();
  exceptions();
  refusals();
  lists_with_none();
  threads();
  churn();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
