/* Devices of the CUDA runtime: as many as CHAGRES_REFERENCE_DEVICES says (default 8), all of them this CPU. */
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

#include "cuda/capture.h"

namespace chagres::reference {

namespace {

constexpr int kMaxDevices = 1024;
constexpr int kVersion = 13000;
constexpr int kComputeMajor = 9;
constexpr int kComputeMinor = 0;

thread_local int thread_device = 0;

/* cudaDeviceProp of CUDA 13.0. */
struct DeviceProperties {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned int luidDeviceNodeMask;
  size_t totalGlobalMem, sharedMemPerBlock;
  int regsPerBlock, warpSize;
  size_t memPitch;
  int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
  size_t totalConstMem;
  int major, minor;
  size_t textureAlignment, texturePitchAlignment;
  int multiProcessorCount, integrated, canMapHostMemory;
  int textureSizes[25];
  int surfaceSizes[14];
  size_t surfaceAlignment;
  int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount;
  int unifiedAddressing, memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID, hostNativeAtomicSupported;
  int pageableMemoryAccess, concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem;
  int cooperativeLaunch;
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost, maxBlocksPerMultiProcessor;
  int accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int rest[20];
  int reserved[56];
};
static_assert(sizeof(DeviceProperties) == 1008, "size of cudaDeviceProp in CUDA 13.0");
static_assert(offsetof(DeviceProperties, totalGlobalMem) == 288, "layout of cudaDeviceProp");
static_assert(offsetof(DeviceProperties, major) == 360, "layout of cudaDeviceProp");
static_assert(offsetof(DeviceProperties, multiProcessorCount) == 384, "layout of cudaDeviceProp");
static_assert(offsetof(DeviceProperties, surfaceAlignment) == 552, "layout of cudaDeviceProp");
static_assert(offsetof(DeviceProperties, pciBusID) == 568, "layout of cudaDeviceProp");
static_assert(offsetof(DeviceProperties, sharedMemPerMultiprocessor) == 624, "layout of cudaDeviceProp");
static_assert(offsetof(DeviceProperties, sharedMemPerBlockOptin) == 672, "layout of cudaDeviceProp");
static_assert(offsetof(DeviceProperties, reservedSharedMemPerBlock) == 696, "layout of cudaDeviceProp");
static_assert(offsetof(DeviceProperties, reserved) == 784, "layout of cudaDeviceProp");

/* cudaDeviceAttr numbers that have a meaning on a CPU; every other known number answers 0. */
int attribute(int number, int device) {
  switch (number) {
    case 1: return 1024;                /* MaxThreadsPerBlock */
    case 2: case 3: return 1024;        /* MaxBlockDimX, Y */
    case 4: return 64;                  /* MaxBlockDimZ */
    case 5: return 2147483647;          /* MaxGridDimX */
    case 6: case 7: return 65535;       /* MaxGridDimY, Z */
    case 10: return 32;                 /* WarpSize */
    case 16: return 132;                /* MultiProcessorCount, of an H200: no number depends on it */
    case 18: return 1;                  /* Integrated: device and host memory are one */
    case 19: return 1;                  /* CanMapHostMemory */
    case 31: return 1;                  /* ConcurrentKernels */
    case 33: return device + 1;         /* PciBusId */
    case 39: return 1024;               /* MaxThreadsPerMultiProcessor */
    case 41: return 1;                  /* UnifiedAddressing */
    case 75: return kComputeMajor;
    case 76: return kComputeMinor;
    case 78: return 1;                  /* StreamPrioritiesSupported */
    case 83: return 1;                  /* ManagedMemory */
    case 88: return 1;                  /* PageableMemoryAccess */
    case 89: return 1;                  /* ConcurrentManagedAccess */
    case 91: return 1;                  /* CanUseHostPointerForRegisteredMem */
    case 99: return 1;                  /* HostRegisterSupported */
    case 100: case 101: return 1;       /* ...UsesHostPageTables, DirectManagedMemAccessFromHost */
    case 115: return 1;                 /* MemoryPoolsSupported */
    default: return 0;
  }
}
constexpr int kLastAttribute = 147;

std::string bus_id(int device) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%04X:%02X:00.0", (device + 1) >> 8, (device + 1) & 0xff);
  return buffer;
}

std::mutex peers_mutex;
std::set<std::pair<int, int>> &peers() {
  static auto *enabled = new std::set<std::pair<int, int>>;
  return *enabled;
}

}  // namespace

int device_count() {
  static const int count = [] {
    const char *wanted = std::getenv("CHAGRES_REFERENCE_DEVICES");
    if (wanted == nullptr || *wanted == '\0') return 8;
    char *end = nullptr;
    const long value = std::strtol(wanted, &end, 10);
    return *end == '\0' && value >= 1 && value <= kMaxDevices ? static_cast<int>(value) : 8;
  }();
  return count;
}

int current_device() { return thread_device; }

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT cudaError_t cudaGetDeviceCount(int *count) try {
  if (count == nullptr) return cuda_status(kCudaInvalidValue);
  *count = device_count();
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaSetDevice(int device) try {
  if (!is_device(device)) return cuda_status(kCudaInvalidDevice);
  thread_device = device;
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) try {
  return cuda_status(is_device(device) ? kCudaSuccess : kCudaInvalidDevice);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaGetDevice(int *device) try {
  if (device == nullptr) return cuda_status(kCudaInvalidValue);
  *device = thread_device;
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaDeviceGetAttribute(int *value, int number, int device) try {
  if (value == nullptr || number < 1 || number > kLastAttribute) return cuda_status(kCudaInvalidValue);
  if (!is_device(device)) return cuda_status(kCudaInvalidDevice);
  *value = attribute(number, device);
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaGetDeviceProperties(DeviceProperties *properties, int device) try {
  if (properties == nullptr) return cuda_status(kCudaInvalidValue);
  if (!is_device(device)) return cuda_status(kCudaInvalidDevice);
  *properties = DeviceProperties{};
  std::snprintf(properties->name, sizeof(properties->name), "CPU reference");
  std::memcpy(properties->uuid, "chagres-cpu", 12);
  std::memcpy(properties->uuid + 12, &device, sizeof(device));
  properties->totalGlobalMem = device_memory();
  properties->warpSize = attribute(10, device);
  properties->maxThreadsPerBlock = attribute(1, device);
  for (int axis = 0; axis < 3; ++axis) {
    properties->maxThreadsDim[axis] = attribute(2 + axis, device);
    properties->maxGridSize[axis] = attribute(5 + axis, device);
  }
  properties->major = kComputeMajor;
  properties->minor = kComputeMinor;
  properties->multiProcessorCount = attribute(16, device);
  properties->integrated = properties->canMapHostMemory = properties->concurrentKernels = 1;
  properties->pciDomainID = (device + 1) >> 8;
  properties->pciBusID = (device + 1) & 0xff;
  properties->unifiedAddressing = properties->streamPrioritiesSupported = properties->managedMemory = 1;
  properties->pageableMemoryAccess = properties->concurrentManagedAccess = 1;
  properties->maxThreadsPerMultiProcessor = attribute(39, device);
  properties->canUseHostPointerForRegisteredMem = 1;
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) try {
  if (id == nullptr || length < 13) return cuda_status(kCudaInvalidValue);
  if (!is_device(device)) return cuda_status(kCudaInvalidDevice);
  std::snprintf(id, static_cast<size_t>(length), "%s", bus_id(device).c_str());
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id) try {
  if (device == nullptr || id == nullptr) return cuda_status(kCudaInvalidValue);
  for (int candidate = 0; candidate < device_count(); ++candidate) {
    if (bus_id(candidate) == id) {
      *device = candidate;
      return kCudaSuccess;
    }
  }
  return cuda_status(kCudaInvalidDevice);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaDeviceSynchronize(void) try {
  return cuda_status(refuse_while_capturing());
} CHAGRES_CUDA_CATCH

/* Frees the current device's memory, as a reset does. */
CHAGRES_EXPORT cudaError_t cudaDeviceReset(void) try {
  free_device_memory(thread_device);
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) try {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaDeviceCanAccessPeer(int *answer, int device, int peer) try {
  if (answer == nullptr) return cuda_status(kCudaInvalidValue);
  if (!is_device(device) || !is_device(peer)) return cuda_status(kCudaInvalidDevice);
  *answer = device != peer;
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) try {
  if (flags != 0) return cuda_status(kCudaInvalidValue);
  if (!is_device(peer) || peer == thread_device) return cuda_status(kCudaInvalidDevice);
  std::lock_guard<std::mutex> lock(peers_mutex);
  return cuda_status(peers().insert({thread_device, peer}).second ? kCudaSuccess : kCudaPeerAccessAlreadyEnabled);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaDeviceDisablePeerAccess(int peer) try {
  if (!is_device(peer)) return cuda_status(kCudaInvalidDevice);
  std::lock_guard<std::mutex> lock(peers_mutex);
  return cuda_status(peers().erase({thread_device, peer}) == 1 ? kCudaSuccess : kCudaPeerAccessNotEnabled);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaRuntimeGetVersion(int *version) try {
  if (version == nullptr) return cuda_status(kCudaInvalidValue);
  *version = kVersion;
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaDriverGetVersion(int *version) try {
  return cudaRuntimeGetVersion(version);
} CHAGRES_CUDA_CATCH

/* cudaChannelFormatDesc by value: bits of each component and the kind. */
struct ChannelFormat {
  int x, y, z, w, kind;
};

CHAGRES_EXPORT ChannelFormat cudaCreateChannelDesc(int x, int y, int z, int w, int kind) { return {x, y, z, w, kind}; }
