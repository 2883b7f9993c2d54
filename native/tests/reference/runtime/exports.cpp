/* The library as Java loads it: what it exports, what it answers for functions that it lacks. */
#include <dlfcn.h>

#include "check.h"

namespace {

void *library() {
  static void *handle = [] {
    const char *path = std::getenv("CHAGRES_REFERENCE_LIBRARY");
    void *opened = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) std::printf("%s\n", path == nullptr ? "CHAGRES_REFERENCE_LIBRARY is not set" : dlerror());
    return opened;
  }();
  return handle;
}

template <class Function>
Function *symbol(const char *name) {
  auto *found = library() == nullptr ? nullptr : reinterpret_cast<Function *>(dlsym(library(), name));
  if (found == nullptr) check::report(__FILE__, __LINE__, "not exported: ", name);
  return found;
}

}  // namespace

TEST(the_library_opens_and_keeps_its_insides) {
  EXPECT(library() != nullptr);
  for (const char *name : {"nvte_create_tensor", "nvte_cublas_gemm_v2", "nvte_layernorm_bwd", "nvte_fused_attn_fwd_v2", "cudaMalloc",
                           "ncclAllReduce", "cudnnGetVersion", "ops_cross_entropy_forward"}) {
    symbol<void()>(name);
  }
  EXPECT(dlsym(library(), "_ZN7chagres9reference12thread_countEv") == nullptr);
}

TEST(functions_that_are_not_there_name_themselves) {
  auto *last = symbol<const char *()>("reference_last_unsupported");
  auto *add_node = symbol<int()>("cudaGraphAddEmptyNode");
  auto *simulate = symbol<int(void *)>("ncclGroupSimulateEnd");
  auto *create = symbol<int(void **)>("cudnnCreateRNNDescriptor");
  auto *text = symbol<const char *(void *)>("ncclGetLastError");
  auto *cudnn_text = symbol<void(char *, size_t)>("cudnnGetLastErrorString");
  auto *peek = symbol<int()>("cudaGetLastError");
  if (last == nullptr || add_node == nullptr || simulate == nullptr || create == nullptr || text == nullptr || cudnn_text == nullptr || peek == nullptr) return;
  EXPECT_EQUAL(add_node(), 801);
  EXPECT_EQUAL(std::string(last()), std::string("cudaGraphAddEmptyNode"));
  EXPECT_EQUAL(peek(), 801);
  EXPECT_EQUAL(simulate(nullptr), 5);
  EXPECT_EQUAL(std::string(text(nullptr)), std::string("ncclGroupSimulateEnd is not provided by the CPU reference"));
  char buffer[64] = "x";
  cudnn_text(buffer, sizeof(buffer));
  EXPECT_EQUAL(std::string(buffer), std::string(""));
  EXPECT_EQUAL(create(nullptr), 3000);
  cudnn_text(buffer, sizeof(buffer));
  EXPECT_EQUAL(std::string(buffer), std::string("cudnnCreateRNNDescriptor is not provided by the CPU reference"));
  char small[6];
  EXPECT_EQUAL(create(nullptr), 3000);
  cudnn_text(small, sizeof(small));
  EXPECT_EQUAL(std::string(small), std::string("cudnn"));
  cudnn_text(nullptr, 0);
}

TEST(what_is_defined_replaces_the_weak_function) {
  auto *count = symbol<int(int *)>("cudaGetDeviceCount");
  auto *version = symbol<size_t()>("cudnnGetVersion");
  auto *error = symbol<const char *(int)>("cudnnGetErrorString");
  auto *allocate = symbol<int(void **, size_t)>("ncclMemAlloc");
  auto *release = symbol<int(void *)>("ncclMemFree");
  if (count == nullptr || version == nullptr || error == nullptr || allocate == nullptr || release == nullptr) return;
  int devices = 0;
  EXPECT_EQUAL(count(&devices), 0);
  EXPECT(devices >= 1);
  EXPECT_EQUAL(version(), size_t{91900});
  EXPECT_EQUAL(std::string(error(3000)), std::string("CUDNN_STATUS_NOT_SUPPORTED"));
  EXPECT_EQUAL(std::string(error(12345)), std::string("CUDNN_UNKNOWN_STATUS"));
  void *pointer = nullptr;
  EXPECT_EQUAL(allocate(&pointer, 64), 0);
  EXPECT_EQUAL(release(pointer), 0);
  EXPECT_EQUAL(release(pointer), 1);
}
