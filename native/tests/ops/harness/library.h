/* The library under test, opened by path, and the memory that its pointers point to. */
#ifndef CHAGRES_TESTS_OPS_LIBRARY_H
#define CHAGRES_TESTS_OPS_LIBRARY_H

#include <cstddef>
#include <memory>
#include <string>

#include "chagres/ops.h"
#include "harness/numbers.h"

namespace chagres::tests {

/* The functions of ops.h. */
struct Ops {
#define OPS_FUNCTION(name) decltype(&::ops_##name) name
  OPS_FUNCTION(open);
  OPS_FUNCTION(last_error);
  OPS_FUNCTION(compile_all);
  OPS_FUNCTION(add);
  OPS_FUNCTION(bias_add);
  OPS_FUNCTION(dropout_add);
  OPS_FUNCTION(dropout_backward);
  OPS_FUNCTION(drop_path_factors);
  OPS_FUNCTION(scale_sequences_add);
  OPS_FUNCTION(token_dropout_factors);
  OPS_FUNCTION(sequence_pool_forward);
  OPS_FUNCTION(sequence_pool_backward);
  OPS_FUNCTION(embedding_forward);
  OPS_FUNCTION(embedding_backward);
  OPS_FUNCTION(row_sum);
  OPS_FUNCTION(matrix_product);
  OPS_FUNCTION(residual_norm_forward);
  OPS_FUNCTION(residual_norm_backward);
  OPS_FUNCTION(gated_gradient);
  OPS_FUNCTION(accumulate);
  OPS_FUNCTION(cast);
  OPS_FUNCTION(cross_entropy_forward);
  OPS_FUNCTION(cross_entropy_backward);
  OPS_FUNCTION(vocabulary_cross_entropy_maximum);
  OPS_FUNCTION(vocabulary_cross_entropy_sums);
  OPS_FUNCTION(vocabulary_cross_entropy_loss);
  OPS_FUNCTION(gather_rows);
  OPS_FUNCTION(scatter_rows);
  OPS_FUNCTION(rotary_packed);
  OPS_FUNCTION(rotary_split);
  OPS_FUNCTION(rotary_join);
  OPS_FUNCTION(attention_forward);
  OPS_FUNCTION(attention_backward);
  OPS_FUNCTION(attention_merge);
  OPS_FUNCTION(clip_scale);
  OPS_FUNCTION(adam);
  OPS_FUNCTION(adam_ranges);
  OPS_FUNCTION(optimizer_step);
  OPS_FUNCTION(average_share);
  OPS_FUNCTION(adafactor);
  OPS_FUNCTION(loss_scale_clip);
  OPS_FUNCTION(loss_scale_update);
  OPS_FUNCTION(loss_scale_restore);
  OPS_FUNCTION(quantization_statistics);
  OPS_FUNCTION(dequantize_blocks);
  OPS_FUNCTION(range_push);
  OPS_FUNCTION(range_pop);
  OPS_FUNCTION(activity_begin);
  OPS_FUNCTION(activity_end);
  OPS_FUNCTION(activity_read);
#undef OPS_FUNCTION
};

/* Opens the library; throws std::runtime_error with what the loader says. */
Ops open_library(const std::string &path);

/* A symbol of a library; throws when there is none. */
void *find_symbol(void *library, const char *name);
void *open_shared(const std::string &path);

/* Where tensors live: the host (for the reference) or a CUDA device. */
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void *allocate(size_t bytes) = 0;
  virtual void free(void *memory) = 0;
  virtual void upload(void *memory, const void *source, size_t bytes) = 0;
  virtual void download(void *destination, const void *memory, size_t bytes) = 0; /* waits for the stream first */
  virtual OpsStream stream() const = 0;
  virtual bool on_device() const = 0;

  /* Microseconds on the device of `repetitions` calls; host memory: of the calls themselves. */
  virtual double time(int repetitions, void (*call)(void *), void *context) = 0;

  /* Runs the call once while the stream is captured, then the graph; false where there are no graphs. */
  virtual bool run_captured(void (*call)(void *), void *context) = 0;
};

std::unique_ptr<Memory> host_memory(const std::string &reference);
std::unique_ptr<Memory> cuda_memory(const std::string &cuda_runtime); /* device 0 */

/* Memory between two guards that no operation may write to. */
class Buffer {
 public:
  /* offset: bytes by which the data is off a multiple of 256. */
  Buffer(Memory &memory, const Bytes &content, size_t offset = 0);
  ~Buffer();
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;

  template <class T = void>
  T *data() const {
    return static_cast<T *>(static_cast<void *>(base_ + kGuard + offset_));
  }
  void upload(const Bytes &content);
  Bytes download(); /* throws when a guard was written to */

 private:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kMark = 0xa5;

  Memory &memory_;
  size_t size_;
  size_t offset_;
  unsigned char *base_;
};

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_LIBRARY_H */
