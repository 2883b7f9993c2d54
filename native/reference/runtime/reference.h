/*
 * What the files of the reference share: errors, tensor records, number formats, threads, matrix products.
 *
 * One .cpp an operation family; CMakeLists.txt takes every .cpp of this folder. An exported function checks its
 * arguments with the functions below, computes in FP32 and stores rounded to nearest even. It throws
 * std::runtime_error out of nvte_ functions, as Transformer Engine does.
 */
#ifndef CHAGRES_REFERENCE_H
#define CHAGRES_REFERENCE_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <sstream>
#include <optional>
#include <string>
#include <type_traits>

/* The library is built with hidden visibility; what these headers declare is what it exports. */
#pragma GCC visibility push(default)
#include "chagres/nvte.h"
#include "chagres/ops.h"
#pragma GCC visibility pop

/* For exported functions without a prototype in the headers above (cuda*, nccl*, cudnn*). */
#define CHAGRES_EXPORT extern "C" __attribute__((visibility("default")))

/* Compiles a loop for several instruction sets and picks at load time. Only for plain functions (no templates); loops
 * called from a lambda go into such a function first. The levels ask for features: a named processor, such as haswell,
 * is picked on exactly that processor. */
#if !defined(__x86_64__) || !defined(__GNUC__) || defined(__SANITIZE_ADDRESS__)
#define CHAGRES_CLONES
#elif __GNUC__ >= 12
#define CHAGRES_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CHAGRES_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#endif

namespace chagres::reference {

/* ---- Errors ---- */

/* Where a check was called: `Caller::here()` as a default argument is the calling function. */
struct Caller {
  const char *file;
  int line;
  const char *function;
  static constexpr Caller here(const char *file = __builtin_FILE(), int line = __builtin_LINE(),
                               const char *function = __builtin_FUNCTION()) {
    return {file, line, function};
  }
};

template <class... Parts>
std::string text(const Parts &...parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/* Throws std::runtime_error "file:line in function f: message"; the file without its folders. */
[[noreturn]] void fail(const Caller &caller, const std::string &message);

/* CHAGRES_CHECK(rows > 0, "x must have rows, got ", rows); the parts are only formatted on failure. */
#define CHAGRES_CHECK(condition, ...)                                                              \
  do {                                                                                             \
    if (!(condition))                                                                              \
      ::chagres::reference::fail(::chagres::reference::Caller::here(), ::chagres::reference::text(__VA_ARGS__)); \
  } while (false)

std::string shape_text(const NVTEShape &shape); /* "(3, 4)" */
const char *dtype_name(int dtype);              /* "BFloat16"; "dtype 42" style values give "unknown dtype" */

/* ---- Tensor records ---- */

constexpr int kRecords = 7; /* parameters 0..6 of NVTETensorParam are NVTEBasicTensor */

NVTEShape make_shape(std::initializer_list<size_t> dimensions);
bool same_shape(const NVTEShape &a, const NVTEShape &b);
size_t element_count(const NVTEShape &shape);

struct Tensor {
  NVTEBasicTensor records[kRecords];
  NVTEScalingMode scaling_mode;
  uint8_t with_gemm_swizzled_scales;
  uint8_t row_scaled_nvfp4;
  int32_t nvfp4_e4m3_max;

  /* Absent means: null pointer and shape exactly {0}. */
  bool has(NVTETensorParam record) const;
  const NVTEBasicTensor &record(NVTETensorParam record) const { return records[record]; }
  const NVTEBasicTensor &data() const { return records[kNVTERowwiseData]; }
  NVTEShape shape() const; /* logical: that of the rowwise data, or the columnwise data's rotated back */
  NVTEDType dtype() const; /* of the rowwise data when there, else of the columnwise data */
};

/* The records of a live handle; throws "Invalid tensor." with function and argument for 0 and unknown handles. The
 * reference stays valid until the handle is destroyed. */
Tensor &living_tensor(NVTETensor handle, const char *argument, Caller caller = Caller::here());

/* The same for callers that follow the records' pointers: each must be null or lead to as much memory as its shape
 * says. */
Tensor &tensor(NVTETensor handle, const char *argument, Caller caller = Caller::here());

/* Throws unless the CUDA functions handed out, or registered, memory that has all the bytes. */
void expect_memory(const void *pointer, size_t bytes, const char *argument, const char *part = "",
                   Caller caller = Caller::here());

/* Rowwise data flattened to two dimensions: product of the leading ones, last one. One dimension n is [1, n]. */
struct View {
  void *data;
  NVTEDType dtype;
  int64_t rows;
  int64_t columns;
  NVTEShape shape;
  int64_t count() const { return rows * columns; }
};

/* View of a live tensor with data of one of `dtypes` (default: Float32, Float16, BFloat16). Throws naming function,
 * argument, expected and actual when the handle is dead, the data is missing, or the dtype is another. */
View view(NVTETensor handle, const char *argument, std::initializer_list<NVTEDType> dtypes = {},
          Caller caller = Caller::here());

/* The same with data possibly missing: what a workspace query looks at. */
View described(NVTETensor handle, const char *argument, std::initializer_list<NVTEDType> dtypes = {},
               Caller caller = Caller::here());
void expect_data(const View &view, const char *argument, Caller caller = Caller::here());

/* As Transformer Engine's check of tensors that are not FP8: default scaling mode, no scale and no inverse scales. A
 * null pointer with shape (1) counts as present there: only shape (0) is absent. */
void expect_unscaled(NVTETensor handle, const char *argument, Caller caller = Caller::here());

void expect_shape(const View &view, const char *argument, std::initializer_list<size_t> dimensions,
                  Caller caller = Caller::here());
void expect_same_shape(const View &view, const char *argument, const View &other, const char *other_argument,
                       Caller caller = Caller::here());
/* Rows and columns after flattening. */
void expect_matrix(const View &view, const char *argument, int64_t rows, int64_t columns,
                   Caller caller = Caller::here());
void expect_count(const View &view, const char *argument, int64_t count, Caller caller = Caller::here());
void expect_dtype(const View &view, const char *argument, NVTEDType dtype, Caller caller = Caller::here());

/* Two-call protocol. With an unset workspace (no elements): writes the shape and dtype that the second call must bring
 * and answers true: the caller returns. Else the shape must be exactly that one and the data present. */
bool workspace_query(NVTETensor workspace, const char *argument, std::initializer_list<size_t> dimensions,
                     NVTEDType dtype, Caller caller = Caller::here());

/* Merges max(|value|) into the tensor's amax cell when it has one. */
void merge_amax(const Tensor &tensor, float value);

/* ---- Number formats ---- */

size_t element_bits(int dtype); /* 0 for an unknown dtype */
inline size_t element_size(int dtype) { return (element_bits(dtype) + 7) / 8; }

template <class To, class From>
inline To bit_cast(const From &from) {
  static_assert(sizeof(To) == sizeof(From) && std::is_trivially_copyable<To>::value, "bit_cast needs equal sizes");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float bf16_to_float(uint16_t bits) { return bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

/* NaN becomes 0x7fff, as cvt.rn.bf16.f32 gives. */
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
}

float fp16_to_float(uint16_t bits);
uint16_t float_to_fp16(float value); /* NaN becomes 0x7fff, overflow infinity */

/* One element as float; throws for dtypes that are no floating-point storage here. */
float load(const void *data, int64_t index, NVTEDType dtype);
void store(void *data, int64_t index, NVTEDType dtype, float value);

/* Runs of elements: data + offset is where the run starts, counted in elements. On the calling thread. */
void to_float(float *destination, const void *data, NVTEDType dtype, int64_t count);
void from_float(void *destination, const float *source, NVTEDType dtype, int64_t count);

inline const void *element(const void *data, int64_t index, NVTEDType dtype) {
  return static_cast<const char *>(data) + index * static_cast<int64_t>(element_size(dtype));
}
inline void *element(void *data, int64_t index, NVTEDType dtype) {
  return static_cast<char *>(data) + index * static_cast<int64_t>(element_size(dtype));
}

/* ---- Threads ---- */

int thread_count(); /* hardware threads, or CHAGRES_THREADS */

void run_pieces(int64_t begin, int64_t end, int64_t grain, void (*body)(void *, int64_t, int64_t), void *context);

/* Calls f(first, last) for consecutive pieces of exactly `grain` items (the last one may be shorter). Where pieces are
 * cut depends on nothing but the arguments, so a sum kept per piece, added up in order of pieces, has the same bits on
 * every machine. Any number of threads may call at once, and f may call it again. The first piece that throws (in order of
 * pieces) has its exception rethrown here. */
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, F &&f) {
  using Body = std::remove_reference_t<F>;
  run_pieces(
      begin, end, grain,
      [](void *context, int64_t first, int64_t last) { (*static_cast<Body *>(context))(first, last); },
      const_cast<void *>(static_cast<const void *>(&f)));
}

/* Items a piece, so that a piece is worth waking a thread when an item costs about `cost` additions. */
inline int64_t grain_for(int64_t cost) { return cost >= 32768 ? 1 : 32768 / (cost < 1 ? 1 : cost); }

/* Float buffer of the calling thread, 64-byte aligned, not cleared; memory is kept for the thread's next use. */
class Scratch {
 public:
  explicit Scratch(int64_t count);
  ~Scratch();
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
  float *data() { return data_; }
  float &operator[](int64_t index) { return data_[index]; }

 private:
  float *data_;
  int bits_; /* the logarithm of its bytes, -1 where it is not kept */
};

/* A run of elements to read as floats: where they lie if they are Float32, else converted. */
class FloatRun {
 public:
  FloatRun(const void *data, NVTEDType dtype, int64_t count) : data_(static_cast<const float *>(data)) {
    if (dtype == kNVTEFloat32) return;
    to_float(buffer_.emplace(count).data(), data, dtype, count);
    data_ = buffer_->data();
  }
  const float *data() const { return data_; }

 private:
  std::optional<Scratch> buffer_;
  const float *data_;
};

/* ---- Matrix products ---- */

enum class Op { N, T };

/* Row-major C[m, n] = alpha op(A)[m, k] op(B)[k, n] + beta C through OpenBLAS, on the calling thread; beta 0 does not
 * read C. parallel_sgemm cuts C into blocks of fixed size for all threads. */
void sgemm(Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b,
           int64_t ldb, float beta, float *c, int64_t ldc);
void parallel_sgemm(Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                    const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* ---- Random numbers ---- */

struct Philox4 {
  uint32_t word[4];
};

/* Philox4x32-10 (Salmon et al., SC 2011): key = seed, counter = {offset low, high, subsequence low, high}. */
Philox4 philox(uint64_t seed, uint64_t subsequence, uint64_t offset);

}  // namespace chagres::reference

#endif /* CHAGRES_REFERENCE_H */
