/* Copies and fills of the CUDA runtime. */
#include <cstring>

#include "cuda/capture.h"

namespace chagres::reference {

namespace {

enum CopyKind { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kDefault = 4 };

/* A side that is said to be device memory must be in an allocation; inside one, the bytes must not run beyond it. */
int check_side(const void *pointer, size_t bytes, bool device_side) {
  if (pointer == nullptr) return kCudaInvalidValue;
  const size_t remaining = accessible_bytes(pointer);
  if (remaining == 0) return device_side ? kCudaInvalidValue : kCudaSuccess;
  return bytes > remaining ? kCudaInvalidValue : kCudaSuccess;
}

int check_copy(const void *destination, size_t destination_bytes, const void *source, size_t source_bytes, int kind) {
  if (kind < kHostToHost || kind > kDefault) return kCudaInvalidMemcpyDirection;
  const int code = check_side(destination, destination_bytes, kind == kHostToDevice || kind == kDeviceToDevice);
  return code != kCudaSuccess ? code : check_side(source, source_bytes, kind == kDeviceToHost || kind == kDeviceToDevice);
}

/* Bytes from the first to behind the last byte of `height` rows; false when that overflows. */
bool span(size_t pitch, size_t width, size_t height, size_t *bytes) {
  size_t rows;
  if (__builtin_mul_overflow(pitch, height - 1, &rows)) return false;
  return !__builtin_add_overflow(rows, width, bytes);
}

int copy(void *destination, const void *source, size_t count, int kind) {
  if (count == 0) return kind < kHostToHost || kind > kDefault ? kCudaInvalidMemcpyDirection : kCudaSuccess;
  const int code = check_copy(destination, count, source, count, kind);
  if (code == kCudaSuccess) std::memmove(destination, source, count);
  return code;
}

int copy_2d(void *destination, size_t destination_pitch, const void *source, size_t source_pitch, size_t width,
            size_t height, int kind) {
  if (width > destination_pitch || width > source_pitch) return kCudaInvalidPitchValue;
  if (width == 0 || height == 0) return kCudaSuccess;
  size_t destination_bytes, source_bytes;
  if (!span(destination_pitch, width, height, &destination_bytes) || !span(source_pitch, width, height, &source_bytes)) {
    return kCudaInvalidValue;
  }
  const int code = check_copy(destination, destination_bytes, source, source_bytes, kind);
  if (code != kCudaSuccess) return code;
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char *>(destination) + row * destination_pitch,
                 static_cast<const char *>(source) + row * source_pitch, width);
  }
  return kCudaSuccess;
}

int set_2d(void *pointer, size_t pitch, int value, size_t width, size_t height) {
  if (width == 0 || height == 0) return kCudaSuccess;
  if (width > pitch) return kCudaInvalidPitchValue;
  size_t bytes;
  if (!span(pitch, width, height, &bytes)) return kCudaInvalidValue;
  const int code = check_side(pointer, bytes, true);
  if (code != kCudaSuccess) return code;
  for (size_t row = 0; row < height; ++row) std::memset(static_cast<char *>(pointer) + row * pitch, value, width);
  return kCudaSuccess;
}

int set(void *pointer, int value, size_t count) { return set_2d(pointer, count, value, count, 1); }

/* Runs `work`, which answers a code, or records it. */
template <class Work>
int enqueue(const void *stream, NodeType type, size_t bytes, const Work &work) {
  if (leaves_out(stream, bytes)) return kCudaSuccess;
  if (!is_capturing(stream) || is_counting_stream(stream)) return cuda_status(work());
  const auto call = [work](void *) {
    const int code = work();
    if (code != kCudaSuccess) throw CudaFailure(code);
  };
  record(stream, call, type);
  return kCudaSuccess;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT cudaError_t cudaMemcpy(void *destination, const void *source, size_t count, int kind) try {
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
  return cuda_status(copy(destination, source, count, kind));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemcpyAsync(void *destination, const void *source, size_t count, int kind,
                                           const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return enqueue(stream, kMemcpyNode, count, [=] { return copy(destination, source, count, kind); });
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemcpyPeer(void *destination, int destination_device, const void *source,
                                          int source_device, size_t count) try {
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
  if (!is_device(destination_device) || !is_device(source_device)) return cuda_status(kCudaInvalidDevice);
  return cuda_status(copy(destination, source, count, kDeviceToDevice));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemcpyPeerAsync(void *destination, int destination_device, const void *source,
                                               int source_device, size_t count, const void *stream) try {
  if (!is_device(destination_device) || !is_device(source_device)) return cuda_status(kCudaInvalidDevice);
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return enqueue(stream, kMemcpyNode, count, [=] { return copy(destination, source, count, kDeviceToDevice); });
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemcpy2D(void *destination, size_t destination_pitch, const void *source,
                                        size_t source_pitch, size_t width, size_t height, int kind) try {
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
  return cuda_status(copy_2d(destination, destination_pitch, source, source_pitch, width, height, kind));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemcpy2DAsync(void *destination, size_t destination_pitch, const void *source,
                                             size_t source_pitch, size_t width, size_t height, int kind,
                                             const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return enqueue(stream, kMemcpyNode, width * height,
                 [=] { return copy_2d(destination, destination_pitch, source, source_pitch, width, height, kind); });
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemset(void *pointer, int value, size_t count) try {
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
  return cuda_status(set(pointer, value, count));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemsetAsync(void *pointer, int value, size_t count, const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return enqueue(stream, kMemsetNode, count, [=] { return set(pointer, value, count); });
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t height) try {
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
  return cuda_status(set_2d(pointer, pitch, value, width, height));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemset2DAsync(void *pointer, size_t pitch, int value, size_t width, size_t height,
                                             const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return enqueue(stream, kMemsetNode, width * height, [=] { return set_2d(pointer, pitch, value, width, height); });
} CHAGRES_CUDA_CATCH
