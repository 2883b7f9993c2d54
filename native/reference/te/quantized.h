/*
 * Where a function puts a matrix of scaling mode 0: as plain numbers, or as FP8 with one scale for all of it.
 *
 * FP8 stores the value times the scale (1 without one), cut at the largest FP8 number and rounded; 1 / scale goes to
 * the inverse scale. An amax cell receives the largest magnitude before scaling. Columnwise data is the transpose.
 */
#ifndef CHAGRES_QUANTIZED_H
#define CHAGRES_QUANTIZED_H

#include "runtime/fp8.h"

namespace chagres::reference {

struct Quantized {
  const Tensor *tensor;
  View rowwise;
  void *columnwise; /* null: not wanted */
  float *scale, *scale_inv; /* null: 1, and not written */
};

/* An output of Float32, Float16, BFloat16 or FP8 in scaling mode 0, checked as Transformer Engine does: FP8 has one
 * inverse scale, the same for rowwise and columnwise data; what is not FP8 has no scales. Its data may be missing. */
Quantized described_quantized(NVTETensor handle, const char *argument, Caller caller = Caller::here());

/* The same with data. */
Quantized quantized_output(NVTETensor handle, const char *argument, Caller caller = Caller::here());
void expect_data(const Quantized &output, const char *argument, Caller caller = Caller::here());

/* Scales and stores elements first .. first + count - 1 of the rowwise data; changes `run`. The largest magnitude of
 * `run` as it came, 0 where the output has no amax cell. */
float store_run(const Quantized &output, int64_t first, float *run, int64_t count);

/* Where to compute `count` floats that store_run stores from element `first` on: the elements themselves where they are
 * Float32, else a buffer. */
class OutputRun {
 public:
  OutputRun(const Quantized &output, int64_t first, int64_t count) {
    const View &elements = output.rowwise;
    data_ = elements.dtype == kNVTEFloat32 ? static_cast<float *>(elements.data) + first : buffer_.emplace(count).data();
  }
  float *data() { return data_; }

 private:
  std::optional<Scratch> buffer_;
  float *data_;
};

/* After all elements: the amax cell, the inverse scale, the transpose. */
void finish(const Quantized &output, float largest);

/* destination[j * rows + i] = source[i * columns + j] for elements of 1, 2, 4 or 8 bytes; on all threads. */
void transpose_elements(const void *source, void *destination, int64_t rows, int64_t columns, size_t element_size);

/* max(|values[i]|), ignoring NaN as the GPU's fmax does. */
float largest_magnitude(const float *values, int64_t count);

/* values[i] *= factor */
void rescale(float *values, float factor, int64_t count);

/* A noop tensor without data is none; else it is one Float32, and 1 makes the call do nothing. */
bool is_noop(NVTETensor noop, const Caller &caller);

/* An FP8 matrix with one inverse scale, which a function reads. */
struct Fp8Input {
  View rowwise;
  float scale_inv;
};
Fp8Input fp8_input(NVTETensor handle, const char *argument, Caller caller = Caller::here());

constexpr int64_t kPointwisePiece = 8192; /* elements; a multiple of eight, so that pieces begin at whole mask bytes */

/* Calls run(first, count) for pieces of 0 .. count - 1; run answers the largest magnitude that it met. Answers the
 * largest of all. */
template <class Run>
float pointwise(int64_t count, Run &&run) {
  const int64_t pieces = (count + kPointwisePiece - 1) / kPointwisePiece;
  Scratch largest(pieces);
  parallel_for(0, count, kPointwisePiece,
               [&](int64_t first, int64_t last) { largest[first / kPointwisePiece] = run(first, last - first); });
  return largest_magnitude(largest.data(), pieces);
}

}  // namespace chagres::reference

#endif /* CHAGRES_QUANTIZED_H */
