/* A profiler as far as ranges go: writes down what it is told, one letter a call and the names, for recorded_ranges(). */
#include <string>

#include "nvtx.h"

using namespace chagres::ops::nvtx;

namespace {

std::string recorded;

int push(const char *name) {
  recorded += std::string("(") + name;
  return 0;
}

int pop() {
  recorded += ")";
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char *recorded_ranges() { return recorded.c_str(); }

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(GetExportTable get) {
  const auto *version = static_cast<const VersionInfo *>(get(kVersionInfo));
  if (version == nullptr || version->struct_size < sizeof(VersionInfo) || version->version != kVersion) return 0;
  version->set_injection_version(kVersion);
  const auto *callbacks = static_cast<const Callbacks *>(get(kCallbacks));
  if (callbacks == nullptr || callbacks->struct_size < sizeof(Callbacks)) return 0;
  FunctionTable table = nullptr;
  unsigned size = 0;
  for (int module = kCore; module < kModules; ++module)
    if (callbacks->get_module_function_table(module, &table, &size) == 0 || size != kFunctions[module]) return 0;
  if (callbacks->get_module_function_table(kModules, &table, &size) != 0 || get(0) != nullptr) return 0;
  callbacks->get_module_function_table(kCore, &table, &size);
  *table[kRangePushA] = reinterpret_cast<Function>(push);
  *table[kRangePop] = reinterpret_cast<Function>(pop);
  return 1;
}
