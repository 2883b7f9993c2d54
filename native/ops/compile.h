/* Cubins of the kernels' sources, from the disk cache or from NVRTC. */
#ifndef CHAGRES_OPS_COMPILE_H
#define CHAGRES_OPS_COMPILE_H

#include <string>

#include "cuda.h"
#include "sources.h"

namespace chagres::ops {

/* The cubin of a source for compute capability major.minor: read from the cache, or compiled and stored there. Returns
 * OPS_SUCCESS or OPS_COMPILE_ERROR with NVRTC's log. A cubin that cannot be stored (a full disk, a read-only folder) is
 * good all the same; store_problem then says why, else it is empty. */
int compile(const char *function, const Libraries &libraries, const Source &source, int major, int minor,
            std::string &cubin, std::string &store_problem);

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_COMPILE_H */
