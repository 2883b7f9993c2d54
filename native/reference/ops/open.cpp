/* Operations: opening, error text, and which addresses are memory of the device. */
#include "cuda/cuda.h"
#include "ops/operations.h"

using namespace chagres;

int64_t ops::known_bytes(const void *address) {
  return static_cast<int64_t>(reference::accessible_bytes(address));
}

int ops_open(const char *, const char *, const char *, const char *) try {
  return OPS_SUCCESS;
} OPS_CATCH

const char *ops_last_error(void) { return ops::error_text().c_str(); }

int ops_compile_all(int, int, int *compiled) try {
  if (compiled == nullptr) return ops::fail(OPS_INVALID_ARGUMENT, "ops_compile_all: compiled is null; expected an int");
  *compiled = 0;
  return OPS_SUCCESS;
} OPS_CATCH
