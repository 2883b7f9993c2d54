#include "harness/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>

namespace chagres::tests {

void *open_shared(const std::string &path) {
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return library;
}

void *find_symbol(void *library, const char *name) {
  void *symbol = dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error(dlerror());
  return symbol;
}

namespace {

template <class Function>
void find(void *library, const char *name, Function &function) {
  function = reinterpret_cast<Function>(find_symbol(library, name));
}

/* Memory that the CPU reference hands out: it follows no pointers into any other. */
class HostMemory : public Memory {
 public:
  explicit HostMemory(const std::string &path) {
    void *library = open_shared(path);
    find(library, "cudaMalloc", malloc_);
    find(library, "cudaFree", free_);
  }
  void *allocate(size_t bytes) override {
    void *memory = nullptr;
    if (malloc_(&memory, bytes) != 0) throw std::bad_alloc();
    return memory;
  }
  void free(void *memory) override { free_(memory); }
  void upload(void *memory, const void *source, size_t bytes) override { std::memcpy(memory, source, bytes); }
  void download(void *destination, const void *memory, size_t bytes) override {
    std::memcpy(destination, memory, bytes);
  }
  OpsStream stream() const override { return nullptr; }
  bool on_device() const override { return false; }
  double time(int repetitions, void (*call)(void *), void *context) override {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repetitions; ++i) call(context);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }
  bool run_captured(void (*)(void *), void *) override { return false; }

 private:
  int (*malloc_)(void **, size_t);
  int (*free_)(void *);
};

/* The few functions of cuda_runtime_api.h (CUDA 13) that a test needs. */
struct Cuda {
  int (*set_device)(int);
  int (*malloc)(void **, size_t);
  int (*free)(void *);
  int (*memcpy)(void *, const void *, size_t, int);
  int (*stream_create)(OpsStream *, unsigned);
  int (*stream_synchronize)(OpsStream);
  int (*event_create)(void **);
  int (*event_record)(void *, OpsStream);
  int (*event_elapsed_time)(float *, void *, void *);
  int (*stream_begin_capture)(OpsStream, int);
  int (*stream_end_capture)(OpsStream, void **);
  int (*graph_instantiate)(void **, void *, unsigned long long);
  int (*graph_launch)(void *, OpsStream);
  const char *(*get_error_string)(int);
};

class CudaMemory : public Memory {
 public:
  explicit CudaMemory(const std::string &path) {
    void *library = open_shared(path);
    find(library, "cudaSetDevice", cuda_.set_device);
    find(library, "cudaMalloc", cuda_.malloc);
    find(library, "cudaFree", cuda_.free);
    find(library, "cudaMemcpy", cuda_.memcpy);
    find(library, "cudaStreamCreateWithFlags", cuda_.stream_create);
    find(library, "cudaStreamSynchronize", cuda_.stream_synchronize);
    find(library, "cudaEventCreate", cuda_.event_create);
    find(library, "cudaEventRecord", cuda_.event_record);
    find(library, "cudaEventElapsedTime", cuda_.event_elapsed_time);
    find(library, "cudaStreamBeginCapture", cuda_.stream_begin_capture);
    find(library, "cudaStreamEndCapture", cuda_.stream_end_capture);
    find(library, "cudaGraphInstantiate", cuda_.graph_instantiate);
    find(library, "cudaGraphLaunch", cuda_.graph_launch);
    find(library, "cudaGetErrorString", cuda_.get_error_string);
    check(cuda_.set_device(0), "cudaSetDevice");
    check(cuda_.stream_create(&stream_, kNonBlocking), "cudaStreamCreateWithFlags");
    check(cuda_.event_create(&start_), "cudaEventCreate");
    check(cuda_.event_create(&stop_), "cudaEventCreate");
  }

  void *allocate(size_t bytes) override {
    void *memory = nullptr;
    check(cuda_.malloc(&memory, bytes), "cudaMalloc");
    return memory;
  }
  void free(void *memory) override { cuda_.free(memory); }
  void upload(void *memory, const void *source, size_t bytes) override {
    check(cuda_.stream_synchronize(stream_), "cudaStreamSynchronize");
    check(cuda_.memcpy(memory, source, bytes, kAnyDirection), "cudaMemcpy");
    /* From pageable memory the copy's last part may still run when cudaMemcpy returns, and our stream does not wait. */
    check(cuda_.stream_synchronize(nullptr), "cudaStreamSynchronize");
  }
  void download(void *destination, const void *memory, size_t bytes) override {
    check(cuda_.stream_synchronize(stream_), "cudaStreamSynchronize");
    check(cuda_.memcpy(destination, memory, bytes, kAnyDirection), "cudaMemcpy");
  }
  OpsStream stream() const override { return stream_; }
  bool on_device() const override { return true; }

  double time(int repetitions, void (*call)(void *), void *context) override {
    check(cuda_.event_record(start_, stream_), "cudaEventRecord");
    for (int i = 0; i < repetitions; ++i) call(context);
    check(cuda_.event_record(stop_, stream_), "cudaEventRecord");
    check(cuda_.stream_synchronize(stream_), "cudaStreamSynchronize");
    float milliseconds = 0;
    check(cuda_.event_elapsed_time(&milliseconds, start_, stop_), "cudaEventElapsedTime");
    return 1000.0 * milliseconds;
  }

  bool run_captured(void (*call)(void *), void *context) override {
    void *graph = nullptr, *executable = nullptr;
    check(cuda_.stream_begin_capture(stream_, kCaptureGlobal), "cudaStreamBeginCapture");
    call(context);
    check(cuda_.stream_end_capture(stream_, &graph), "cudaStreamEndCapture");
    check(cuda_.graph_instantiate(&executable, graph, 0), "cudaGraphInstantiate");
    check(cuda_.graph_launch(executable, stream_), "cudaGraphLaunch");
    check(cuda_.stream_synchronize(stream_), "cudaStreamSynchronize");
    return true;
  }

 private:
  static constexpr unsigned kNonBlocking = 1; /* cudaStreamNonBlocking */
  static constexpr int kAnyDirection = 4;     /* cudaMemcpyDefault */
  static constexpr int kCaptureGlobal = 0;    /* cudaStreamCaptureModeGlobal: forbids allocation and waiting */

  void check(int error, const char *call) const {
    if (error != 0)
      throw std::runtime_error(std::string(call) + " failed with code " + std::to_string(error) + ": " +
                               cuda_.get_error_string(error));
  }

  Cuda cuda_ = {};
  OpsStream stream_ = nullptr;
  void *start_ = nullptr, *stop_ = nullptr;
};

}  // namespace

Ops open_library(const std::string &path) {
  void *library = open_shared(path);
  Ops ops = {};
  find(library, "ops_open", ops.open);
  find(library, "ops_last_error", ops.last_error);
  find(library, "ops_compile_all", ops.compile_all);
  find(library, "ops_add", ops.add);
  find(library, "ops_bias_add", ops.bias_add);
  find(library, "ops_dropout_add", ops.dropout_add);
  find(library, "ops_dropout_backward", ops.dropout_backward);
  find(library, "ops_drop_path_factors", ops.drop_path_factors);
  find(library, "ops_scale_sequences_add", ops.scale_sequences_add);
  find(library, "ops_token_dropout_factors", ops.token_dropout_factors);
  find(library, "ops_sequence_pool_forward", ops.sequence_pool_forward);
  find(library, "ops_sequence_pool_backward", ops.sequence_pool_backward);
  find(library, "ops_embedding_forward", ops.embedding_forward);
  find(library, "ops_embedding_backward", ops.embedding_backward);
  find(library, "ops_row_sum", ops.row_sum);
  find(library, "ops_matrix_product", ops.matrix_product);
  find(library, "ops_residual_norm_forward", ops.residual_norm_forward);
  find(library, "ops_residual_norm_backward", ops.residual_norm_backward);
  find(library, "ops_gated_gradient", ops.gated_gradient);
  find(library, "ops_accumulate", ops.accumulate);
  find(library, "ops_cast", ops.cast);
  find(library, "ops_cross_entropy_forward", ops.cross_entropy_forward);
  find(library, "ops_cross_entropy_backward", ops.cross_entropy_backward);
  find(library, "ops_vocabulary_cross_entropy_maximum", ops.vocabulary_cross_entropy_maximum);
  find(library, "ops_vocabulary_cross_entropy_sums", ops.vocabulary_cross_entropy_sums);
  find(library, "ops_vocabulary_cross_entropy_loss", ops.vocabulary_cross_entropy_loss);
  find(library, "ops_gather_rows", ops.gather_rows);
  find(library, "ops_scatter_rows", ops.scatter_rows);
  find(library, "ops_rotary_packed", ops.rotary_packed);
  find(library, "ops_rotary_split", ops.rotary_split);
  find(library, "ops_rotary_join", ops.rotary_join);
  find(library, "ops_attention_forward", ops.attention_forward);
  find(library, "ops_attention_backward", ops.attention_backward);
  find(library, "ops_attention_merge", ops.attention_merge);
  find(library, "ops_clip_scale", ops.clip_scale);
  find(library, "ops_adam", ops.adam);
  find(library, "ops_adam_ranges", ops.adam_ranges);
  find(library, "ops_optimizer_step", ops.optimizer_step);
  find(library, "ops_average_share", ops.average_share);
  find(library, "ops_adafactor", ops.adafactor);
  find(library, "ops_loss_scale_clip", ops.loss_scale_clip);
  find(library, "ops_loss_scale_update", ops.loss_scale_update);
  find(library, "ops_loss_scale_restore", ops.loss_scale_restore);
  find(library, "ops_quantization_statistics", ops.quantization_statistics);
  find(library, "ops_dequantize_blocks", ops.dequantize_blocks);
  find(library, "ops_range_push", ops.range_push);
  find(library, "ops_range_pop", ops.range_pop);
  find(library, "ops_activity_begin", ops.activity_begin);
  find(library, "ops_activity_end", ops.activity_end);
  find(library, "ops_activity_read", ops.activity_read);
  return ops;
}

std::unique_ptr<Memory> host_memory(const std::string &reference) { return std::make_unique<HostMemory>(reference); }

std::unique_ptr<Memory> cuda_memory(const std::string &cuda_runtime) {
  return std::make_unique<CudaMemory>(cuda_runtime);
}

Buffer::Buffer(Memory &memory, const Bytes &content, size_t offset)
    : memory_(memory),
      size_(content.size()),
      offset_(offset),
      base_(static_cast<unsigned char *>(memory.allocate(size_ + offset + 2 * kGuard))) {
  upload(content);
}

Buffer::~Buffer() { memory_.free(base_); }

void Buffer::upload(const Bytes &content) {
  if (content.size() != size_) throw std::runtime_error("a buffer's content must keep its size");
  Bytes all(size_ + offset_ + 2 * kGuard, kMark);
  std::copy(content.begin(), content.end(), all.begin() + static_cast<std::ptrdiff_t>(kGuard + offset_));
  memory_.upload(base_, all.data(), all.size());
}

Bytes Buffer::download() {
  Bytes all(size_ + offset_ + 2 * kGuard);
  memory_.download(all.data(), base_, all.size());
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(kGuard + offset_);
  const auto end = begin + static_cast<std::ptrdiff_t>(size_);
  const auto marked = [](unsigned char byte) { return byte == kMark; };
  if (!std::all_of(all.begin(), begin, marked)) throw std::runtime_error("memory before a tensor was written to");
  if (!std::all_of(end, all.end(), marked)) throw std::runtime_error("memory after a tensor was written to");
  return Bytes(begin, end);
}

}  // namespace chagres::tests
