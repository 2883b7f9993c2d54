/* Handles of cuDNN that live. */
#ifndef CHAGRES_CUDNN_HANDLES_H
#define CHAGRES_CUDNN_HANDLES_H

#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

struct Handle {
  int device;
  void *stream;
};

Objects<Handle> &handles();
Handle &living_handle(const void *handle); /* refuses one that is not alive */

}  // namespace chagres::reference::cudnn

#endif /* CHAGRES_CUDNN_HANDLES_H */
