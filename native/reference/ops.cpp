/* Operations: opening, error text, and the clip factor. */
#include "operations.h"

#include <cmath>

#include "cuda.h"

using namespace chagres;

int64_t ops::known_bytes(const void *address) {
  return static_cast<int64_t>(reference::accessible_bytes(address));
}

int ops_open(const char *, const char *, const char *, const char *) { return OPS_SUCCESS; }

const char *ops_last_error(void) { return ops::error_text().c_str(); }

int ops_compile_all(int, int, int *compiled) {
  if (compiled == nullptr) return ops::fail(OPS_INVALID_ARGUMENT, "ops_compile_all: compiled is null; expected an int");
  *compiled = 0;
  return OPS_SUCCESS;
}

int ops_clip_scale(const float *norm, float max_norm, float *scale, OpsStream) {
  const int status = ops::check_clip_scale(norm, max_norm, scale);
  if (status != OPS_SUCCESS) return status;
  *scale = std::isfinite(*norm) ? std::min(1.0f, max_norm / (*norm + 1e-6f)) : 0.0f;
  return OPS_SUCCESS;
}
