/*
 * NVTX 3, through which profilers hear of named ranges. It has no library of its own: the program looks for the profiler's,
 * whose path is in NVTX_INJECTION64_PATH, and both exchange tables of functions. Here is the program's side of that
 * exchange with the types and numbers of nvtx3/nvtxDetail/nvtxTypes.h (NVTX 3, load sequence 2), so that building needs
 * no header. The test ops_nvtx_headers compares them with NVIDIA's headers.
 */
#ifndef CHAGRES_OPS_NVTX_H
#define CHAGRES_OPS_NVTX_H

#include <cstddef>
#include <cstdint>

namespace chagres::ops::nvtx {

using Function = void (*)();
using FunctionTable = Function **; /* NvtxFunctionTable: a module's functions by number, each a pointer to a pointer */

enum ExportTable : uint32_t { kCallbacks = 1, kVersionInfo = 3 }; /* NvtxExportTableID */

enum Module { kCore = 1, kCuda, kOpenCl, kCudaRuntime, kCore2, kSync, kModules }; /* NvtxCallbackModule */
constexpr unsigned kFunctions[kModules] = {0, 16, 9, 15, 7, 16, 7}; /* of each module, the unused number 0 included */
constexpr unsigned kMostFunctions = 16;

constexpr unsigned kRangePushA = 9, kRangePop = 11; /* NvtxCallbackIdCore */

struct Callbacks { /* NvtxExportTableCallbacks */
  size_t struct_size;
  int (*get_module_function_table)(int module, FunctionTable *table, unsigned *size);
};

constexpr uint32_t kVersion = 3;

struct VersionInfo { /* NvtxExportTableVersionInfo */
  size_t struct_size;
  uint32_t version;
  uint32_t reserved;
  void (*set_injection_version)(uint32_t version);
};

using GetExportTable = const void *(*)(uint32_t id);
using Initialize = int (*)(GetExportTable get); /* InitializeInjectionNvtx2: 0 when the profiler declines */

/* What the profiler of this process gave; a function is null when there is no profiler, or it does not listen. The first
 * call looks for it. */
struct Profiler {
  int (*range_push)(const char *name);
  int (*range_pop)();
};
const Profiler &profiler();

}  // namespace chagres::ops::nvtx

#endif /* CHAGRES_OPS_NVTX_H */
