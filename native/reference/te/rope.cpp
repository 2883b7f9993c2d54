/*
 * Rotary position embedding (Su et al. 2021) of one tensor.
 *
 * Per head, with angle a_i of the token's position: y_i = x_i cos a_i + rotate(x)_i sin a_i for i < d2, y_i = x_i above.
 * rotate pairs i with i + d2/2 (and negates the partner of the first half), or, interleaved, 2i with 2i + 1. Backward
 * multiplies by the transposed matrix.
 */
#include <algorithm>
#include <cmath>
#include <vector>

#include "te/recorded.h"
#include "te/rope.h"
#include "runtime/reference.h"

namespace chagres::reference {

namespace {

/* Where element i takes its partner from, and its sine with the sign. */
struct Partner {
  int64_t index;
  float sine;
};

Partner partner_of(const Rotation &rotation, int64_t i, const float *sines) {
  const int64_t half = rotation.d2 / 2;
  const bool first = rotation.interleaved ? i % 2 == 0 : i < half;
  const int64_t index = rotation.interleaved ? (first ? i + 1 : i - 1) : (first ? i + half : i - half);
  /* The transposed matrix has the partner's angle and the other sign. */
  if (rotation.backward) return {index, first ? sines[index] : -sines[index]};
  return {index, first ? -sines[i] : sines[i]};
}

}  // namespace

void find_angles(const Rotation &rotation, const float *angles, float *cosines, float *sines) {
  for (int64_t i = 0; i < rotation.d2; ++i) {
    cosines[i] = std::cos(angles[i]);
    sines[i] = std::sin(angles[i]);
  }
}

void rotate_head(const Rotation &rotation, const float *head, const float *cosines, const float *sines, float *rotated) {
  for (int64_t i = 0; i < rotation.d2; ++i) {
    const Partner partner = partner_of(rotation, i, sines);
    rotated[i] = head[i] * cosines[i] + head[partner.index] * partner.sine;
  }
  std::memcpy(rotated + rotation.d2, head + rotation.d2, static_cast<size_t>(rotation.d - rotation.d2) * sizeof(float));
}

namespace {

struct Rope {
  View input, freqs, output;
  const int32_t *cu_seqlens;      /* null: SBHD, BSHD */
  const int32_t *start_positions; /* null: 0 */
  NVTE_QKV_Format format;
  bool interleaved, backward;
  int cp_size, cp_rank;
  int64_t s, b, h, d, d2;
  int64_t stride_s_or_t, stride_b, stride_h, stride_d;
};

struct Strides {
  int64_t token, sequence;
};

Strides output_strides(const Rope &rope) {
  if (rope.format == NVTE_THD) return {rope.h * rope.d, 0};
  if (rope.format == NVTE_SBHD) return {rope.b * rope.h * rope.d, rope.h * rope.d};
  return {rope.h * rope.d, rope.s * rope.h * rope.d};
}

/* The row of freqs of a token: its place in its sequence, moved by the start position and, with context parallelism, to
 * the two chunks that the rank holds. */
int64_t position_of(const Rope &rope, int64_t token, int64_t sequence, int64_t length) {
  int64_t position = token + (rope.start_positions == nullptr ? 0 : rope.start_positions[sequence]);
  if (rope.cp_size > 1) {
    const int64_t half = length / 2;
    position += token < half ? rope.cp_rank * length / 2
                             : length * rope.cp_size - (rope.cp_rank + 1) * length / 2 - half;
  }
  return position;
}

struct Token {
  int64_t position; /* row of freqs */
  int64_t from, to; /* first element in input and output */
};

void rotate_token(const Rope &rope, const Token &token) {
  Scratch cosines(rope.d2), sines(rope.d2), row(rope.d), rotated(rope.d);
  const float *angles = static_cast<const float *>(rope.freqs.data) + token.position * rope.d2;
  const Rotation rotation{rope.d, rope.d2, rope.interleaved, rope.backward};
  find_angles(rotation, angles, cosines.data(), sines.data());
  for (int64_t head = 0; head < rope.h; ++head) {
    const int64_t start = token.from + head * rope.stride_h;
    if (rope.stride_d == 1) {
      to_float(row.data(), element(rope.input.data, start, rope.input.dtype), rope.input.dtype, rope.d);
    } else {
      for (int64_t i = 0; i < rope.d; ++i) row[i] = load(rope.input.data, start + i * rope.stride_d, rope.input.dtype);
    }
    rotate_head(rotation, row.data(), cosines.data(), sines.data(), rotated.data());
    from_float(element(rope.output.data, token.to + head * rope.d, rope.output.dtype), rotated.data(), rope.output.dtype,
               rope.d);
  }
}

/* Every token to rotate, with checked position and offsets. Tokens behind the last sequence are not among them. */
std::vector<Token> list_tokens(const Rope &rope, const Caller &caller) {
  std::vector<Token> tokens;
  const Strides out = output_strides(rope);
  const int64_t positions = rope.freqs.count() / rope.d2;
  const int64_t rows = rope.output.count() / (rope.h * rope.d);
  for (int64_t sequence = 0; sequence < rope.b; ++sequence) {
    const bool packed = rope.cu_seqlens != nullptr;
    const int64_t start = packed ? rope.cu_seqlens[sequence] / rope.cp_size : 0;
    const int64_t end = packed ? rope.cu_seqlens[sequence + 1] / rope.cp_size : rope.s;
    if (packed && (start < 0 || end < start || end > rows)) {
      fail(caller, text("Tensor \"cu_seqlens\" must not decrease and must stay within the ", rows,
                        " tokens: sequence ", sequence, " runs from ", start, " to ", end));
    }
    const int64_t length = packed ? std::min(end - start, rope.s) : rope.s;
    for (int64_t place = 0; place < length; ++place) {
      const int64_t position = position_of(rope, place, sequence, end - start);
      if (position < 0 || position >= positions) {
        fail(caller, text("Tensor \"freqs\" has ", positions, " positions, token ", place, " of sequence ", sequence,
                          " needs position ", position));
      }
      const int64_t token = start + place;
      tokens.push_back({position,
                        packed ? token * rope.stride_s_or_t : place * rope.stride_s_or_t + sequence * rope.stride_b,
                        packed ? token * out.token : place * out.token + sequence * out.sequence});
    }
  }
  return tokens;
}

/* The strides may lead beyond the tensor's own shape, to its part of a wider row, but not beyond the memory. */
void check_reads(const Rope &rope, const std::vector<Token> &tokens, const char *input, const Caller &caller) {
  if (tokens.empty()) return;
  int64_t first = tokens[0].from, last = first;
  for (const Token &token : tokens) {
    first = std::min(first, token.from);
    last = std::max(last, token.from);
  }
  for (const int64_t step : {(rope.h - 1) * rope.stride_h, (rope.d - 1) * rope.stride_d}) {
    first += std::min<int64_t>(step, 0);
    last += std::max<int64_t>(step, 0);
  }
  if (first < 0) {
    fail(caller, text("The strides ", rope.stride_s_or_t, " (s or t), ", rope.stride_b, " (b), ", rope.stride_h, " (h) and ",
                      rope.stride_d, " (d) lead to element ", first, " of \"", input, "\"; expected 0 or more"));
  }
  expect_memory(rope.input.data, static_cast<size_t>(last + 1) * element_size(rope.input.dtype), input, "with its strides",
                caller);
}

void run(const Rope &rope, const char *input, const Caller &caller) {
  const std::vector<Token> tokens = list_tokens(rope, caller);
  check_reads(rope, tokens, input, caller);
  parallel_for(0, static_cast<int64_t>(tokens.size()), grain_for(rope.h * rope.d * 4), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      rotate_token(rope, tokens[static_cast<size_t>(i)]);
    }
  });
}

const int32_t *int32_values(NVTETensor handle, const char *argument, int64_t count, const Caller &caller) {
  if (tensor(handle, argument, caller).data().data_ptr == nullptr) return nullptr;
  const View values = view(handle, argument, {kNVTEInt32}, caller);
  expect_count(values, argument, count, caller);
  return static_cast<const int32_t *>(values.data);
}

void check_sizes(const Rope &rope, const Caller &caller) {
  const auto refuse = [&](const char *what, int64_t got) { fail(caller, text(what, ", got ", got)); };
  if (rope.s < 0) refuse("Argument \"s\" must be at least 0", rope.s);
  if (rope.b < 0) refuse("Argument \"b\" must be at least 0", rope.b);
  if (rope.h < 1) refuse("Argument \"h\" must be at least 1", rope.h);
  if (rope.d2 < 2 || rope.d2 % 2 != 0) refuse("Argument \"d2\" must be even and at least 2", rope.d2);
  if (rope.d < rope.d2) refuse("Argument \"d\" must be at least d2", rope.d);
  if (rope.cp_size < 1) refuse("Argument \"cp_size\" must be at least 1", rope.cp_size);
  if (rope.cp_rank < 0 || rope.cp_rank >= rope.cp_size) refuse("Argument \"cp_rank\" must be below cp_size", rope.cp_rank);
}

void check_rope(const Rope &rope, const char *input, const char *output, const Caller &caller) {
  check_sizes(rope, caller);
  if (rope.format != NVTE_SBHD && rope.format != NVTE_BSHD && rope.format != NVTE_THD) {
    fail(caller, text("Argument \"qkv_format\" must be SBHD, BSHD or THD, got ", static_cast<int>(rope.format)));
  }
  if (rope.format == NVTE_THD && rope.cu_seqlens == nullptr) {
    fail(caller, "Tensor \"cu_seqlens\" is needed for the THD format, and has no data");
  }
  if (rope.format != NVTE_THD && rope.cu_seqlens != nullptr) {
    fail(caller, "Tensor \"cu_seqlens\" is for the THD format alone: give an unset tensor");
  }
  expect_count(rope.input, input, rope.output.count(), caller);
  expect_dtype(rope.output, output, rope.input.dtype, caller);
  if (rope.freqs.count() % rope.d2 != 0) {
    fail(caller, text("Tensor \"freqs\" must have rows of d2 = ", rope.d2, " angles, got ", shape_text(rope.freqs.shape)));
  }
  if (rope.format == NVTE_THD) {
    if (rope.output.count() % (rope.h * rope.d) != 0) {
      fail(caller, text("Tensor \"", output, "\" must have tokens of h * d = ", rope.h * rope.d, " elements, got ",
                        shape_text(rope.output.shape)));
    }
  } else {
    expect_count(rope.output, output, rope.s * rope.b * rope.h * rope.d, caller);
  }
}

Rope make_rope(NVTETensor input, NVTETensor cu_seqlens, NVTETensor freqs, NVTETensor start_positions, NVTETensor output,
               const char *input_name, const char *output_name, int64_t b, const Caller &caller) {
  Rope rope{};
  rope.input = view(input, input_name, {}, caller);
  rope.output = view(output, output_name, {}, caller);
  rope.freqs = view(freqs, "freqs", {kNVTEFloat32}, caller);
  rope.cu_seqlens = int32_values(cu_seqlens, "cu_seqlens", b + 1, caller);
  rope.start_positions = int32_values(start_positions, "start_positions", b, caller);
  return rope;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_fused_rope_forward(NVTETensor input, NVTETensor cu_seqlens, NVTETensor freqs, NVTETensor start_positions,
                             NVTETensor output, NVTE_QKV_Format qkv_format, bool interleaved, int cp_size, int cp_rank,
                             int s, int b, int h, int d, int d2, int stride_s_or_t, int stride_b, int stride_h,
                             int stride_d, cudaStream_t stream) {
  if (recorded(nvte_fused_rope_forward, input, cu_seqlens, freqs, start_positions, output, qkv_format, interleaved,
               cp_size, cp_rank, s, b, h, d, d2, stride_s_or_t, stride_b, stride_h, stride_d, stream)) return;
  const Caller caller = Caller::here();
  Rope rope = make_rope(input, cu_seqlens, freqs, start_positions, output, "input", "output", b, caller);
  rope.format = qkv_format;
  rope.interleaved = interleaved;
  rope.cp_size = cp_size, rope.cp_rank = cp_rank;
  rope.s = s, rope.b = b, rope.h = h, rope.d = d, rope.d2 = d2;
  rope.stride_s_or_t = stride_s_or_t, rope.stride_b = stride_b, rope.stride_h = stride_h, rope.stride_d = stride_d;
  check_rope(rope, "input", "output", caller);
  run(rope, "input", caller);
}

void nvte_fused_rope_backward(NVTETensor output_grads, NVTETensor cu_seqlens, NVTETensor freqs,
                              NVTETensor start_positions, NVTETensor input_grads, NVTE_QKV_Format qkv_format,
                              bool interleaved, int cp_size, int cp_rank, int s, int b, int h, int d, int d2,
                              int stride_s_or_t, int stride_b, int stride_h, int stride_d, cudaStream_t stream) {
  if (recorded(nvte_fused_rope_backward, output_grads, cu_seqlens, freqs, start_positions, input_grads, qkv_format,
               interleaved, cp_size, cp_rank, s, b, h, d, d2, stride_s_or_t, stride_b, stride_h, stride_d,
               stream)) return;
  const Caller caller = Caller::here();
  Rope rope = make_rope(output_grads, cu_seqlens, freqs, start_positions, input_grads, "output_grads", "input_grads", b,
                        caller);
  rope.format = qkv_format;
  rope.interleaved = interleaved;
  rope.backward = true;
  rope.cp_size = cp_size, rope.cp_rank = cp_rank;
  rope.s = s, rope.b = b, rope.h = h, rope.d = d, rope.d2 = d2;
  rope.stride_s_or_t = stride_s_or_t, rope.stride_b = stride_b, rope.stride_h = stride_h, rope.stride_d = stride_d;
  check_rope(rope, "output_grads", "input_grads", caller);
  run(rope, "output_grads", caller);
}
