/* The CUDA runtime: devices, memory, streams, events, and the code of every misuse. */
#include <string>
#include <thread>

#include "check.h"
#include "cuda/cuda.h"

using namespace chagres::reference;

extern "C" {
const char *cudaGetErrorName(int);
const char *cudaGetErrorString(int);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
int cudaGetDeviceCount(int *);
int cudaSetDevice(int);
int cudaGetDevice(int *);
int cudaInitDevice(int, unsigned, unsigned);
int cudaDeviceGetAttribute(int *, int, int);
int cudaGetDeviceProperties(void *, int);
int cudaDeviceGetPCIBusId(char *, int, int);
int cudaDeviceGetByPCIBusId(int *, const char *);
int cudaDeviceSynchronize(void);
int cudaDeviceReset(void);
int cudaDeviceGetStreamPriorityRange(int *, int *);
int cudaDeviceCanAccessPeer(int *, int, int);
int cudaDeviceEnablePeerAccess(int, unsigned);
int cudaDeviceDisablePeerAccess(int);
int cudaRuntimeGetVersion(int *);
int cudaDriverGetVersion(int *);
int cudaMalloc(void **, size_t);
int cudaMallocAsync(void **, size_t, void *);
int cudaMallocManaged(void **, size_t, unsigned);
int cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaFree(void *);
int cudaFreeAsync(void *, void *);
int cudaHostAlloc(void **, size_t, unsigned);
int cudaMallocHost(void **, size_t);
int cudaFreeHost(void *);
int cudaHostRegister(void *, size_t, unsigned);
int cudaHostUnregister(void *);
int cudaHostGetDevicePointer(void **, void *, unsigned);
int cudaHostGetFlags(unsigned *, void *);
int cudaMemGetInfo(size_t *, size_t *);
int cudaPointerGetAttributes(void *, const void *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaMemcpyPeer(void *, int, const void *, int, size_t);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaMemset(void *, int, size_t);
int cudaMemsetAsync(void *, int, size_t, void *);
int cudaMemset2D(void *, size_t, int, size_t, size_t);
int cudaStreamCreate(void **);
int cudaStreamCreateWithFlags(void **, unsigned);
int cudaStreamCreateWithPriority(void **, unsigned, int);
int cudaStreamDestroy(void *);
int cudaStreamSynchronize(void *);
int cudaStreamQuery(void *);
int cudaStreamGetPriority(void *, int *);
int cudaStreamGetFlags(void *, unsigned *);
int cudaStreamGetId(void *, unsigned long long *);
int cudaStreamGetDevice(void *, int *);
int cudaStreamWaitEvent(void *, void *, unsigned);
int cudaStreamIsCapturing(void *, int *);
int cudaLaunchHostFunc(void *, void (*)(void *), void *);
int cudaStreamAddCallback(void *, void (*)(void *, int, void *), void *, unsigned);
int cudaEventCreate(void **);
int cudaEventCreateWithFlags(void **, unsigned);
int cudaEventDestroy(void *);
int cudaEventRecord(void *, void *);
int cudaEventQuery(void *);
int cudaEventSynchronize(void *);
int cudaEventElapsedTime(float *, void *, void *);
}

namespace {

/* Where cudaDeviceProp of CUDA 13.0 has what the tests read. */
struct Properties {
  unsigned char bytes[1008];
  template <class T>
  T at(size_t offset) const {
    T value;
    std::memcpy(&value, bytes + offset, sizeof(value));
    return value;
  }
};

size_t free_memory() {
  size_t available, total;
  EXPECT_EQUAL(cudaMemGetInfo(&available, &total), 0);
  return available;
}

}  // namespace

TEST(devices) {
  int count = 0, device = -1;
  EXPECT_EQUAL(cudaGetDeviceCount(&count), 0);
  EXPECT_EQUAL(count, 8);
  EXPECT_EQUAL(cudaGetDeviceCount(nullptr), 1);
  EXPECT_EQUAL(cudaSetDevice(3), 0);
  EXPECT_EQUAL(cudaGetDevice(&device), 0);
  EXPECT_EQUAL(device, 3);
  std::thread([] {
    int other = -1;
    EXPECT_EQUAL(cudaGetDevice(&other), 0);
    EXPECT_EQUAL(other, 0);
  }).join();
  EXPECT_EQUAL(cudaSetDevice(8), 101);
  EXPECT_EQUAL(cudaSetDevice(-1), 101);
  EXPECT_EQUAL(cudaGetDevice(&device), 0);
  EXPECT_EQUAL(device, 3);
  EXPECT_EQUAL(cudaSetDevice(0), 0);
  EXPECT_EQUAL(cudaInitDevice(7, 0, 0), 0);
  EXPECT_EQUAL(cudaInitDevice(8, 0, 0), 101);
  EXPECT_EQUAL(cudaDeviceSynchronize(), 0);
  int version = 0;
  EXPECT_EQUAL(cudaRuntimeGetVersion(&version), 0);
  EXPECT_EQUAL(version, 13000);
  EXPECT_EQUAL(cudaDriverGetVersion(&version), 0);
  EXPECT_EQUAL(version, 13000);
  EXPECT_EQUAL(cudaRuntimeGetVersion(nullptr), 1);
}

TEST(attributes_and_properties) {
  int value = 0;
  EXPECT_EQUAL(cudaDeviceGetAttribute(&value, 75, 0), 0);
  EXPECT_EQUAL(value, 9);
  EXPECT_EQUAL(cudaDeviceGetAttribute(&value, 16, 0), 0);
  EXPECT_EQUAL(value, 132);
  EXPECT_EQUAL(cudaDeviceGetAttribute(&value, 0, 0), 1);
  EXPECT_EQUAL(cudaDeviceGetAttribute(&value, 148, 0), 1);
  EXPECT_EQUAL(cudaDeviceGetAttribute(&value, 75, 99), 101);
  EXPECT_EQUAL(cudaDeviceGetAttribute(nullptr, 75, 0), 1);
  Properties properties;
  EXPECT_EQUAL(cudaGetDeviceProperties(&properties, 7), 0);
  EXPECT_EQUAL(std::string(reinterpret_cast<char *>(properties.bytes)), std::string("CPU reference"));
  EXPECT_EQUAL(properties.at<int>(360), 9);
  EXPECT_EQUAL(properties.at<int>(364), 0);
  EXPECT_EQUAL(properties.at<int>(384), 132);
  EXPECT(properties.at<size_t>(288) > size_t{1} << 20);
  EXPECT_EQUAL(properties.at<int>(568), 8);
  EXPECT_EQUAL(cudaGetDeviceProperties(&properties, 8), 101);
  EXPECT_EQUAL(cudaGetDeviceProperties(nullptr, 0), 1);
  char id[16];
  int device = 0;
  EXPECT_EQUAL(cudaDeviceGetPCIBusId(id, 16, 5), 0);
  EXPECT_EQUAL(std::string(id), std::string("0000:06:00.0"));
  EXPECT_EQUAL(cudaDeviceGetByPCIBusId(&device, id), 0);
  EXPECT_EQUAL(device, 5);
  EXPECT_EQUAL(cudaDeviceGetPCIBusId(id, 5, 5), 1);
  EXPECT_EQUAL(cudaDeviceGetByPCIBusId(&device, "nowhere"), 101);
}

TEST(memory_is_counted) {
  EXPECT_EQUAL(cudaSetDevice(2), 0);
  const size_t before = free_memory();
  void *device = nullptr, *managed = nullptr, *pinned = nullptr;
  EXPECT_EQUAL(cudaMalloc(&device, 1000), 0);
  EXPECT_EQUAL(reinterpret_cast<uintptr_t>(device) % 256, uintptr_t{0});
  EXPECT_EQUAL(cudaMallocManaged(&managed, 24, 1), 0);
  EXPECT_EQUAL(cudaMallocHost(&pinned, 4096), 0);
  EXPECT_EQUAL(before - free_memory(), size_t{1024});
  EXPECT_EQUAL(cudaSetDevice(1), 0);
  EXPECT_EQUAL(free_memory(), before);
  EXPECT_EQUAL(cudaFree(device), 0); /* from another device */
  EXPECT_EQUAL(cudaFree(managed), 0);
  EXPECT_EQUAL(cudaFreeHost(pinned), 0);
  EXPECT_EQUAL(cudaSetDevice(2), 0);
  EXPECT_EQUAL(free_memory(), before);
  EXPECT_EQUAL(cudaMalloc(&device, 512), 0);
  EXPECT_EQUAL(cudaDeviceReset(), 0);
  EXPECT_EQUAL(free_memory(), before);
  EXPECT_EQUAL(cudaFree(device), 1);
  EXPECT_EQUAL(cudaSetDevice(0), 0);
}

TEST(allocation_misuse) {
  void *pointer = &pointer;
  EXPECT_EQUAL(cudaMalloc(nullptr, 4), 1);
  EXPECT_EQUAL(cudaMalloc(&pointer, 0), 0);
  EXPECT(pointer == nullptr);
  EXPECT_EQUAL(cudaMalloc(&pointer, static_cast<size_t>(-1)), 2);
  EXPECT_EQUAL(cudaMalloc(&pointer, size_t{1} << 60), 2);
  EXPECT_EQUAL(cudaPeekAtLastError(), 2);
  EXPECT_EQUAL(cudaGetLastError(), 2);
  EXPECT_EQUAL(cudaGetLastError(), 0);
  EXPECT_EQUAL(cudaHostAlloc(&pointer, size_t{1} << 60, 0), 2);
  EXPECT_EQUAL(cudaHostAlloc(&pointer, 8, 99), 1);
  EXPECT_EQUAL(cudaMallocManaged(&pointer, 8, 7), 1);
  EXPECT_EQUAL(cudaFree(nullptr), 0);
  int local;
  EXPECT_EQUAL(cudaFree(&local), 1);
  EXPECT_EQUAL(cudaMalloc(&pointer, 64), 0);
  EXPECT_EQUAL(cudaFreeHost(pointer), 1);
  EXPECT_EQUAL(cudaFree(static_cast<char *>(pointer) + 8), 1);
  EXPECT_EQUAL(cudaFree(pointer), 0);
  EXPECT_EQUAL(cudaFree(pointer), 1);
  EXPECT_EQUAL(cudaMallocHost(&pointer, 64), 0);
  EXPECT_EQUAL(cudaFree(pointer), 1);
  EXPECT_EQUAL(cudaFreeHost(pointer), 0);
  size_t pitch = 0;
  EXPECT_EQUAL(cudaMallocPitch(&pointer, &pitch, 100, 3), 0);
  EXPECT_EQUAL(pitch, size_t{256});
  EXPECT_EQUAL(cudaFreeAsync(pointer, &local), 400);
  EXPECT_EQUAL(cudaFreeAsync(pointer, nullptr), 0);
  EXPECT_EQUAL(cudaMallocPitch(&pointer, &pitch, 1000, SIZE_MAX / 2), 2);
  EXPECT_EQUAL(cudaMallocAsync(&pointer, 8, &local), 400);
  EXPECT_EQUAL(cudaMemGetInfo(nullptr, &pitch), 1);
}

TEST(registered_memory) {
  std::vector<char> buffer(100);
  EXPECT_EQUAL(cudaHostUnregister(buffer.data()), 713);
  EXPECT_EQUAL(cudaHostRegister(buffer.data(), 100, 0), 0);
  EXPECT_EQUAL(cudaHostRegister(buffer.data() + 99, 10, 0), 712);
  void *device = nullptr;
  EXPECT_EQUAL(cudaHostGetDevicePointer(&device, buffer.data() + 5, 0), 0);
  EXPECT(device == buffer.data() + 5);
  unsigned flags = 9;
  EXPECT_EQUAL(cudaHostGetFlags(&flags, buffer.data()), 0);
  EXPECT_EQUAL(flags, 0u);
  EXPECT_EQUAL(cudaFreeHost(buffer.data()), 1);
  EXPECT_EQUAL(cudaHostUnregister(buffer.data()), 0);
  EXPECT_EQUAL(cudaHostGetFlags(&flags, buffer.data()), 1);
  EXPECT_EQUAL(cudaHostRegister(nullptr, 10, 0), 1);
  EXPECT_EQUAL(cudaHostRegister(buffer.data(), 0, 0), 1);
  EXPECT_EQUAL(cudaHostRegister(buffer.data(), SIZE_MAX, 0), 1);
  EXPECT_EQUAL(cudaHostRegister(buffer.data(), size_t{1} << 47, 0), 1); /* more than the process has */
}

TEST(pointer_attributes) {
  struct {
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[8];
  } attributes;
  void *pointer;
  int local;
  EXPECT_EQUAL(cudaSetDevice(4), 0);
  EXPECT_EQUAL(cudaMalloc(&pointer, 10), 0);
  EXPECT_EQUAL(cudaPointerGetAttributes(&attributes, static_cast<char *>(pointer) + 9), 0);
  EXPECT(attributes.type == 2 && attributes.device == 4 && attributes.host_pointer == nullptr);
  EXPECT_EQUAL(cudaPointerGetAttributes(&attributes, static_cast<char *>(pointer) + 10), 0);
  EXPECT_EQUAL(attributes.type, 0);
  EXPECT_EQUAL(cudaFree(pointer), 0);
  EXPECT_EQUAL(cudaPointerGetAttributes(&attributes, &local), 0);
  EXPECT(attributes.type == 0 && attributes.device == -2 && attributes.device_pointer == nullptr);
  EXPECT_EQUAL(cudaPointerGetAttributes(nullptr, &local), 1);
  EXPECT_EQUAL(cudaSetDevice(0), 0);
}

TEST(copies) {
  void *device = nullptr, *other = nullptr;
  EXPECT_EQUAL(cudaMalloc(&device, 16), 0);
  EXPECT_EQUAL(cudaMalloc(&other, 16), 0);
  char host[17] = "0123456789abcdef", back[17] = {};
  EXPECT_EQUAL(cudaMemcpy(device, host, 16, 1), 0);
  EXPECT_EQUAL(cudaMemcpyAsync(other, device, 16, 3, nullptr), 0);
  EXPECT_EQUAL(cudaMemset(static_cast<char *>(other) + 1, 'x', 2), 0);
  EXPECT_EQUAL(cudaMemcpy(back, other, 16, 2), 0);
  EXPECT_EQUAL(std::string(back), std::string("0xx3456789abcdef"));
  EXPECT_EQUAL(cudaMemcpy(back, device, 16, 4), 0);
  EXPECT_EQUAL(std::string(back), std::string(host));
  EXPECT_EQUAL(cudaMemcpyPeer(other, 1, device, 0, 16), 0);
  EXPECT_EQUAL(cudaMemcpyPeer(other, 1, device, 8, 16), 101);
  EXPECT_EQUAL(cudaMemcpy(device, host, 17, 1), 1);                               /* beyond the allocation */
  EXPECT_EQUAL(cudaMemcpy(static_cast<char *>(device) + 8, host, 9, 1), 1);
  EXPECT_EQUAL(cudaMemcpy(device, host, static_cast<size_t>(-1), 1), 1);
  EXPECT_EQUAL(cudaMemcpy(back, host, 16, 1), 1);                                 /* no device memory */
  EXPECT_EQUAL(cudaMemcpy(device, nullptr, 16, 1), 1);
  EXPECT_EQUAL(cudaMemcpy(device, host, 16, 5), 21);
  EXPECT_EQUAL(cudaMemcpy(nullptr, nullptr, 0, 1), 0);
  EXPECT_EQUAL(cudaMemcpyAsync(device, host, 16, 1, back), 400);
  EXPECT_EQUAL(cudaMemset(back, 0, 4), 1);
  EXPECT_EQUAL(cudaMemset(device, 0, 17), 1);
  EXPECT_EQUAL(cudaMemset(nullptr, 0, 0), 0);
  EXPECT_EQUAL(cudaMemsetAsync(device, 0, 4, back), 400);
  EXPECT_EQUAL(cudaFree(device), 0);
  EXPECT_EQUAL(cudaFree(other), 0);
}

TEST(copies_of_rectangles) {
  void *device = nullptr;
  EXPECT_EQUAL(cudaMalloc(&device, 12), 0);
  EXPECT_EQUAL(cudaMemset(device, '.', 12), 0);
  const char host[] = "abcdef";
  EXPECT_EQUAL(cudaMemcpy2D(device, 5, host, 2, 2, 3, 1), 0);
  char back[13] = {};
  EXPECT_EQUAL(cudaMemcpy(back, device, 12, 2), 0);
  EXPECT_EQUAL(std::string(back), std::string("ab...cd...ef"));
  EXPECT_EQUAL(cudaMemset2D(device, 5, 'z', 1, 3), 0);
  EXPECT_EQUAL(cudaMemcpy(back, device, 12, 2), 0);
  EXPECT_EQUAL(std::string(back), std::string("zb...zd...zf"));
  EXPECT_EQUAL(cudaMemcpy2D(device, 1, host, 2, 2, 3, 1), 12);
  EXPECT_EQUAL(cudaMemcpy2D(device, 6, host, 2, 2, 3, 1), 1);
  EXPECT_EQUAL(cudaMemcpy2D(device, SIZE_MAX, host, 2, 2, 3, 1), 1);
  EXPECT_EQUAL(cudaMemset2D(device, 1, 0, 2, 2), 12);
  EXPECT_EQUAL(cudaMemset2D(device, SIZE_MAX / 2, 0, 2, 4), 1);
  EXPECT_EQUAL(cudaFree(device), 0);
}

TEST(streams) {
  void *stream = nullptr;
  EXPECT_EQUAL(cudaSetDevice(6), 0);
  EXPECT_EQUAL(cudaStreamCreateWithPriority(&stream, 1, -9), 0);
  EXPECT_EQUAL(cudaSetDevice(0), 0);
  int value = 0;
  unsigned flags = 0;
  unsigned long long id = 0;
  EXPECT_EQUAL(cudaStreamGetDevice(stream, &value), 0);
  EXPECT_EQUAL(value, 6);
  EXPECT_EQUAL(cudaStreamGetPriority(stream, &value), 0);
  EXPECT_EQUAL(value, -5);
  EXPECT_EQUAL(cudaStreamGetFlags(stream, &flags), 0);
  EXPECT_EQUAL(flags, 1u);
  EXPECT_EQUAL(cudaStreamGetId(stream, &id), 0);
  EXPECT(id > 2);
  EXPECT_EQUAL(cudaStreamIsCapturing(stream, &value), 0);
  EXPECT_EQUAL(value, 0);
  for (void *known : {stream, static_cast<void *>(nullptr), reinterpret_cast<void *>(1), reinterpret_cast<void *>(2)}) {
    EXPECT_EQUAL(cudaStreamSynchronize(known), 0);
    EXPECT_EQUAL(cudaStreamQuery(known), 0);
  }
  int called = 0;
  EXPECT_EQUAL(cudaLaunchHostFunc(stream, [](void *data) { ++*static_cast<int *>(data); }, &called), 0);
  EXPECT_EQUAL(cudaStreamAddCallback(stream, [](void *, int, void *data) { ++*static_cast<int *>(data); }, &called, 0), 0);
  EXPECT_EQUAL(called, 2);
  EXPECT_EQUAL(cudaLaunchHostFunc(stream, nullptr, nullptr), 1);
  EXPECT_EQUAL(cudaStreamDestroy(stream), 0);
  EXPECT_EQUAL(cudaStreamDestroy(stream), 400);
  EXPECT_EQUAL(cudaStreamDestroy(nullptr), 400);
  EXPECT_EQUAL(cudaStreamSynchronize(stream), 400);
  EXPECT_EQUAL(cudaStreamCreate(nullptr), 1);
  EXPECT_EQUAL(cudaStreamCreateWithFlags(&stream, 4), 1);
  int least = 1, greatest = 1;
  EXPECT_EQUAL(cudaDeviceGetStreamPriorityRange(&least, &greatest), 0);
  EXPECT(least == 0 && greatest == -5);
}

TEST(events) {
  void *start = nullptr, *end = nullptr, *untimed = nullptr;
  float milliseconds = -1;
  EXPECT_EQUAL(cudaEventCreate(&start), 0);
  EXPECT_EQUAL(cudaEventCreate(&end), 0);
  EXPECT_EQUAL(cudaEventCreateWithFlags(&untimed, 2), 0);
  EXPECT_EQUAL(cudaEventRecord(start, nullptr), 0);
  EXPECT_EQUAL(cudaEventElapsedTime(&milliseconds, start, end), 400); /* end was not recorded */
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQUAL(cudaEventRecord(end, nullptr), 0);
  EXPECT_EQUAL(cudaEventRecord(untimed, nullptr), 0);
  EXPECT_EQUAL(cudaEventElapsedTime(&milliseconds, start, end), 0);
  EXPECT(milliseconds >= 20 && milliseconds < 20000);
  EXPECT_EQUAL(cudaEventElapsedTime(&milliseconds, end, start), 0);
  EXPECT(milliseconds <= -20);
  EXPECT_EQUAL(cudaEventElapsedTime(&milliseconds, start, untimed), 400);
  EXPECT_EQUAL(cudaEventQuery(start), 0);
  EXPECT_EQUAL(cudaEventSynchronize(start), 0);
  EXPECT_EQUAL(cudaStreamWaitEvent(nullptr, start, 0), 0);
  EXPECT_EQUAL(cudaStreamWaitEvent(nullptr, &milliseconds, 0), 400);
  EXPECT_EQUAL(cudaEventRecord(start, &milliseconds), 400);
  for (void *event : {start, end, untimed}) EXPECT_EQUAL(cudaEventDestroy(event), 0);
  EXPECT_EQUAL(cudaEventDestroy(start), 400);
  EXPECT_EQUAL(cudaEventRecord(start, nullptr), 400);
  EXPECT_EQUAL(cudaEventCreateWithFlags(&start, 64), 1);
}

TEST(peers) {
  int answer = -1;
  EXPECT_EQUAL(cudaDeviceCanAccessPeer(&answer, 0, 1), 0);
  EXPECT_EQUAL(answer, 1);
  EXPECT_EQUAL(cudaDeviceCanAccessPeer(&answer, 0, 0), 0);
  EXPECT_EQUAL(answer, 0);
  EXPECT_EQUAL(cudaDeviceCanAccessPeer(&answer, 0, 8), 101);
  EXPECT_EQUAL(cudaDeviceEnablePeerAccess(1, 0), 0);
  EXPECT_EQUAL(cudaDeviceEnablePeerAccess(1, 0), 704);
  EXPECT_EQUAL(cudaDeviceDisablePeerAccess(1), 0);
  EXPECT_EQUAL(cudaDeviceDisablePeerAccess(1), 705);
  EXPECT_EQUAL(cudaDeviceEnablePeerAccess(0, 0), 101);
}

TEST(error_names) {
  EXPECT_EQUAL(std::string(cudaGetErrorName(0)), std::string("cudaSuccess"));
  EXPECT_EQUAL(std::string(cudaGetErrorName(700)), std::string("cudaErrorIllegalAddress"));
  EXPECT_EQUAL(std::string(cudaGetErrorName(999)), std::string("cudaErrorUnknown"));
  EXPECT_EQUAL(std::string(cudaGetErrorName(12345)), std::string("unrecognized error code"));
  EXPECT_EQUAL(std::string(cudaGetErrorName(-1)), std::string("unrecognized error code"));
  EXPECT_EQUAL(std::string(cudaGetErrorString(2)), std::string("out of device memory"));
  EXPECT_EQUAL(std::string(cudaGetErrorString(801)).substr(0, 27), std::string("the CPU reference does not "));
}
