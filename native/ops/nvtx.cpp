#include "nvtx.h"

#include <dlfcn.h>

#include <cstdlib>

namespace chagres::ops::nvtx {
namespace {

/* The profiler writes its functions here, through the tables. */
Function functions[kModules][kMostFunctions];
Function *tables[kModules][kMostFunctions];

int get_module_function_table(int module, FunctionTable *table, unsigned *size) {
  if (module < kCore || module >= kModules) return 0;
  if (table != nullptr) *table = tables[module];
  if (size != nullptr) *size = kFunctions[module];
  return 1;
}

void set_injection_version(uint32_t) {}

const void *get_export_table(uint32_t id) {
  static const Callbacks callbacks = {sizeof(Callbacks), get_module_function_table};
  static const VersionInfo version = {sizeof(VersionInfo), kVersion, 0, set_injection_version};
  if (id == kCallbacks) return &callbacks;
  return id == kVersionInfo ? &version : nullptr;
}

/* Whether a profiler has filled in the tables. Its library stays open: its functions are called until the process ends. */
bool attach() {
  const char *path = std::getenv("NVTX_INJECTION64_PATH");
  void *library = path == nullptr || *path == '\0' ? nullptr : dlopen(path, RTLD_LAZY);
  if (library == nullptr) return false;
  const auto initialize = reinterpret_cast<Initialize>(dlsym(library, "InitializeInjectionNvtx2"));
  if (initialize != nullptr && initialize(get_export_table) != 0) return true;
  dlclose(library);
  return false;
}

Profiler find_profiler() {
  for (int module = kCore; module < kModules; ++module)
    for (unsigned i = 1; i < kFunctions[module]; ++i) tables[module][i] = &functions[module][i];
  if (!attach()) return {};
  return {reinterpret_cast<int (*)(const char *)>(functions[kCore][kRangePushA]),
          reinterpret_cast<int (*)()>(functions[kCore][kRangePop])};
}

}  // namespace

const Profiler &profiler() {
  static const Profiler found = find_profiler();
  return found;
}

}  // namespace chagres::ops::nvtx
