/*
 * NVIDIA's headers against native/ops/nvtx.h: equal numbers and layouts, and the profiler of the tests hears of what the
 * headers' own functions tell. Compiled by nvtx_headers.sh.
 */
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "nvtx.h"

namespace ours = chagres::ops::nvtx;

static_assert(ours::kVersion == NVTX_VERSION, "");
static_assert(int{ours::kCallbacks} == NVTX_ETID_CALLBACKS && int{ours::kVersionInfo} == NVTX_ETID_VERSIONINFO, "");
static_assert(int{ours::kCore} == NVTX_CB_MODULE_CORE && int{ours::kCuda} == NVTX_CB_MODULE_CUDA, "");
static_assert(int{ours::kOpenCl} == NVTX_CB_MODULE_OPENCL && int{ours::kCudaRuntime} == NVTX_CB_MODULE_CUDART, "");
static_assert(int{ours::kCore2} == NVTX_CB_MODULE_CORE2 && int{ours::kSync} == NVTX_CB_MODULE_SYNC, "");
static_assert(int{ours::kModules} == NVTX_CB_MODULE_SIZE, "");
static_assert(ours::kFunctions[ours::kCore] == NVTX_CBID_CORE_SIZE, "");
static_assert(ours::kFunctions[ours::kCuda] == NVTX_CBID_CUDA_SIZE, "");
static_assert(ours::kFunctions[ours::kOpenCl] == NVTX_CBID_OPENCL_SIZE, "");
static_assert(ours::kFunctions[ours::kCudaRuntime] == NVTX_CBID_CUDART_SIZE, "");
static_assert(ours::kFunctions[ours::kCore2] == NVTX_CBID_CORE2_SIZE, "");
static_assert(ours::kFunctions[ours::kSync] == NVTX_CBID_SYNC_SIZE, "");
static_assert(ours::kRangePushA == NVTX_CBID_CORE_RangePushA && ours::kRangePop == NVTX_CBID_CORE_RangePop, "");
static_assert(std::is_same<ours::FunctionTable, NvtxFunctionTable>::value, "");
static_assert(sizeof(ours::Callbacks) == sizeof(NvtxExportTableCallbacks), "");
static_assert(offsetof(ours::Callbacks, get_module_function_table) ==
                  offsetof(NvtxExportTableCallbacks, GetModuleFunctionTable), "");
static_assert(sizeof(ours::VersionInfo) == sizeof(NvtxExportTableVersionInfo), "");
static_assert(offsetof(ours::VersionInfo, version) == offsetof(NvtxExportTableVersionInfo, version), "");
static_assert(offsetof(ours::VersionInfo, set_injection_version) ==
                  offsetof(NvtxExportTableVersionInfo, SetInjectionNvtxVersion), "");

int main(int, char **arguments) {
  setenv("NVTX_INJECTION64_PATH", arguments[1], 1);
  nvtxRangePushA("outer");
  nvtxRangePushA("inner");
  nvtxRangePop();
  nvtxRangePop();
  void *const profiler = dlopen(arguments[1], RTLD_NOW);
  if (profiler == nullptr) return std::printf("%s\n", dlerror()), 1;
  const auto recorded = reinterpret_cast<const char *(*)()>(dlsym(profiler, "recorded_ranges"));
  std::printf("recorded: %s\n", recorded());
  return std::strcmp(recorded(), "(outer(inner))") == 0 ? 0 : 1;
}
