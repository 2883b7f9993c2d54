/* cuDNN's handles: a device and a stream. */
#include "cuda/capture.h"
#include "cudnn/handles.h"

namespace chagres::reference::cudnn {

Objects<Handle> &handles() {
  static auto *all = new Objects<Handle>;
  return *all;
}

Handle &living_handle(const void *handle) {
  Handle *found = handles().find(handle);
  CHAGRES_REQUIRE(found != nullptr, kBadParam, "handle: expected one that cudnnCreate made and nobody destroyed");
  return *found;
}

}  // namespace chagres::reference::cudnn

using namespace chagres::reference;
using namespace chagres::reference::cudnn;

CHAGRES_EXPORT int cudnnCreate(void **handle) try {
  CHAGRES_REQUIRE(handle != nullptr, kNullPointer, "handle: expected a place for the handle, got null");
  *handle = handles().add(current_device(), nullptr);
  return kSuccess;
} CHAGRES_CUDNN_CATCH

CHAGRES_EXPORT int cudnnDestroy(void *handle) try {
  CHAGRES_REQUIRE(handles().remove(handle), kBadParam,
                  "handle: expected one that cudnnCreate made and nobody destroyed");
  return kSuccess;
} CHAGRES_CUDNN_CATCH

CHAGRES_EXPORT int cudnnSetStream(void *handle, void *stream) try {
  Handle &living = living_handle(handle);
  CHAGRES_REQUIRE(is_stream(stream), kBadParam,
                  "streamId: expected a stream of the CUDA runtime that was not destroyed");
  living.stream = stream;
  return kSuccess;
} CHAGRES_CUDNN_CATCH

CHAGRES_EXPORT int cudnnGetStream(void *handle, void **stream) try {
  CHAGRES_REQUIRE(stream != nullptr, kNullPointer, "streamId: expected a place for the stream, got null");
  *stream = living_handle(handle).stream;
  return kSuccess;
} CHAGRES_CUDNN_CATCH
