/*
 * Rotary position embedding of projections that interleave queries, keys and values.
 *
 * A token has h groups of total = split_0 + split_1 + split_2 elements: the group's heads of q, then those of k, then those
 * of v, each of d elements. Forward writes q and k rotated and v copied, each [tokens, h, split]; backward reads the three
 * and writes the groups.
 */
#include <array>

#include "te/recorded.h"
#include "te/rope.h"
#include "runtime/reference.h"

namespace chagres::reference {

namespace {

struct QkvRope {
  View qkv, q_freqs, k_freqs;
  std::array<View, 3> parts;      /* q, k, v */
  std::array<int64_t, 3> splits;  /* elements of a group */
  const int32_t *start_positions; /* null: 0 */
  NVTE_QKV_Format format;
  int cp_size, cp_rank;
  int64_t s, b, h;
  Rotation rotation;

  int64_t total() const { return splits[0] + splits[1] + splits[2]; }
};

struct Names {
  const char *qkv;
  std::array<const char *, 3> parts;
};

constexpr Names kForward = {"qkv_input", {"q_out", "k_out", "v_out"}};
constexpr Names kBackward = {"qkv_grad_input", {"q_grad_out", "k_grad_out", "v_grad_out"}};

/* The row of freqs of a token. With context parallelism the rank holds two chunks, and start positions do not count. */
int64_t position_of(const QkvRope &rope, int64_t place, int64_t sequence) {
  if (rope.cp_size == 1) return place + (rope.start_positions == nullptr ? 0 : rope.start_positions[sequence]);
  const int64_t half = rope.s / 2;
  return place < half ? place + rope.cp_rank * rope.s / 2
                      : rope.s * rope.cp_size - (rope.cp_rank + 1) * rope.s / 2 + place - half;
}

/* Heads of one token: `part` is 0 for q, 1 for k, 2 for v, whose heads are copied. */
void rotate_part(const QkvRope &rope, size_t part, int64_t token, int64_t position) {
  const Rotation &rotation = rope.rotation;
  Scratch cosines(rotation.d2), sines(rotation.d2), head(rotation.d), rotated(rotation.d);
  if (part < 2) {
    const View &freqs = part == 0 ? rope.q_freqs : rope.k_freqs;
    find_angles(rotation, static_cast<const float *>(freqs.data) + position * rotation.d2, cosines.data(), sines.data());
  }
  int64_t before = 0;
  for (size_t i = 0; i < part; ++i) before += rope.splits[i];
  const NVTEDType dtype = rope.qkv.dtype;
  for (int64_t group = 0; group < rope.h; ++group) {
    for (int64_t i = 0; i < rope.splits[part]; i += rotation.d) {
      void *const joint = element(rope.qkv.data, (token * rope.h + group) * rope.total() + before + i, dtype);
      void *const own = element(rope.parts[part].data, (token * rope.h + group) * rope.splits[part] + i, dtype);
      void *const from = rotation.backward ? own : joint, *const to = rotation.backward ? joint : own;
      to_float(head.data(), from, dtype, rotation.d);
      if (part < 2) rotate_head(rotation, head.data(), cosines.data(), sines.data(), rotated.data());
      from_float(to, part < 2 ? rotated.data() : head.data(), dtype, rotation.d);
    }
  }
}

void check_sizes(const QkvRope &rope, const Caller &caller) {
  const auto refuse = [&](const char *what, int64_t got) { fail(caller, text(what, ", got ", got)); };
  const Rotation &rotation = rope.rotation;
  if (rope.format != NVTE_SBHD && rope.format != NVTE_BSHD) {
    refuse("Argument \"qkv_format\" must be SBHD or BSHD", static_cast<int>(rope.format));
  }
  if (rope.s < 0) refuse("Argument \"s\" must be at least 0", rope.s);
  if (rope.b < 0) refuse("Argument \"b\" must be at least 0", rope.b);
  if (rope.h < 1) refuse("Argument \"h\" must be at least 1", rope.h);
  if (rotation.d2 < 2 || rotation.d2 % 2 != 0) refuse("Argument \"d2\" must be even and at least 2", rotation.d2);
  if (rotation.d < rotation.d2) refuse("Argument \"d\" must be at least d2", rotation.d);
  if (rope.cp_size < 1) refuse("Argument \"cp_size\" must be at least 1", rope.cp_size);
  if (rope.cp_rank < 0 || rope.cp_rank >= rope.cp_size) refuse("Argument \"cp_rank\" must be below cp_size", rope.cp_rank);
  if (rope.cp_size > 1 && rope.s % 2 != 0) refuse("Argument \"s\" must be even with context parallelism", rope.s);
  for (const int64_t split : rope.splits) {
    if (split < rotation.d || split % rotation.d != 0) {
      refuse("Arguments \"qkv_split_arg_list_*\" must be whole heads of d elements, at least one", split);
    }
  }
}

void check_freqs(const QkvRope &rope, const View &freqs, const char *argument, const Caller &caller) {
  if (freqs.count() % rope.rotation.d2 != 0) {
    fail(caller, text("Tensor \"", argument, "\" must have rows of d2 = ", rope.rotation.d2, " angles, got ",
                      shape_text(freqs.shape)));
  }
  const int64_t positions = freqs.count() / rope.rotation.d2;
  for (int64_t sequence = 0; sequence < rope.b; ++sequence) {
    for (int64_t place = 0; place < rope.s; ++place) {
      const int64_t position = position_of(rope, place, sequence);
      if (position < 0 || position >= positions) {
        fail(caller, text("Tensor \"", argument, "\" has ", positions, " positions, token ", place, " of sequence ", sequence,
                          " needs position ", position));
      }
    }
  }
}

void run(const QkvRope &rope, const Names &names, const Caller &caller) {
  check_sizes(rope, caller);
  const int64_t tokens = rope.s * rope.b;
  expect_count(rope.qkv, names.qkv, tokens * rope.h * rope.total(), caller);
  for (size_t part = 0; part < 3; ++part) {
    expect_dtype(rope.parts[part], names.parts[part], rope.qkv.dtype, caller);
    expect_count(rope.parts[part], names.parts[part], tokens * rope.h * rope.splits[part], caller);
  }
  check_freqs(rope, rope.q_freqs, "q_freqs", caller);
  check_freqs(rope, rope.k_freqs, "k_freqs", caller);
  parallel_for(0, tokens, grain_for(rope.h * rope.total() * 4), [&](int64_t first, int64_t last) {
    for (int64_t token = first; token < last; ++token) {
      const bool position_first = rope.format == NVTE_SBHD;
      const int64_t place = position_first ? token / rope.b : token % rope.s;
      const int64_t sequence = position_first ? token % rope.b : token / rope.s;
      for (size_t part = 0; part < 3; ++part) rotate_part(rope, part, token, position_of(rope, place, sequence));
    }
  });
}

void set_sizes(QkvRope &rope, NVTE_QKV_Format format, int cp_size, int cp_rank, int s, int b, int h, const Rotation &rotation,
               const std::array<int64_t, 3> &splits) {
  rope.format = format;
  rope.cp_size = cp_size, rope.cp_rank = cp_rank;
  rope.s = s, rope.b = b, rope.h = h;
  rope.rotation = rotation;
  rope.splits = splits;
}

QkvRope views(NVTETensor qkv, const std::array<NVTETensor, 3> &parts, NVTETensor q_freqs, NVTETensor k_freqs,
              const Names &names, const Caller &caller) {
  QkvRope rope{};
  rope.qkv = view(qkv, names.qkv, {}, caller);
  for (size_t part = 0; part < 3; ++part) rope.parts[part] = view(parts[part], names.parts[part], {}, caller);
  rope.q_freqs = view(q_freqs, "q_freqs", {kNVTEFloat32}, caller);
  rope.k_freqs = view(k_freqs, "k_freqs", {kNVTEFloat32}, caller);
  return rope;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_fused_qkv_rope_forward(NVTETensor qkv_input, NVTETensor q_freqs, NVTETensor k_freqs, NVTETensor start_positions,
                                 NVTETensor q_out, NVTETensor k_out, NVTETensor v_out, NVTE_QKV_Format qkv_format,
                                 bool interleaved, int cp_size, int cp_rank, int s, int b, int h, int d, int d2,
                                 int qkv_split_arg_list_0, int qkv_split_arg_list_1, int qkv_split_arg_list_2,
                                 cudaStream_t stream) {
  if (recorded(nvte_fused_qkv_rope_forward, qkv_input, q_freqs, k_freqs, start_positions, q_out, k_out, v_out, qkv_format,
               interleaved, cp_size, cp_rank, s, b, h, d, d2, qkv_split_arg_list_0, qkv_split_arg_list_1,
               qkv_split_arg_list_2, stream)) return;
  const Caller caller = Caller::here();
  QkvRope rope = views(qkv_input, {q_out, k_out, v_out}, q_freqs, k_freqs, kForward, caller);
  if (tensor(start_positions, "start_positions").data().data_ptr != nullptr) {
    const View starts = view(start_positions, "start_positions", {kNVTEInt32}, caller);
    expect_count(starts, "start_positions", b, caller);
    rope.start_positions = static_cast<const int32_t *>(starts.data);
  }
  set_sizes(rope, qkv_format, cp_size, cp_rank, s, b, h, {d, d2, interleaved, false},
            {qkv_split_arg_list_0, qkv_split_arg_list_1, qkv_split_arg_list_2});
  run(rope, kForward, caller);
}

void nvte_fused_qkv_rope_backward(NVTETensor q_grad_out, NVTETensor k_grad_out, NVTETensor v_grad_out, NVTETensor q_freqs,
                                  NVTETensor k_freqs, NVTETensor qkv_grad_input, NVTE_QKV_Format qkv_format,
                                  bool interleaved, int cp_size, int cp_rank, int s, int b, int h, int d, int d2,
                                  int qkv_split_arg_list_0, int qkv_split_arg_list_1, int qkv_split_arg_list_2,
                                  cudaStream_t stream) {
  if (recorded(nvte_fused_qkv_rope_backward, q_grad_out, k_grad_out, v_grad_out, q_freqs, k_freqs, qkv_grad_input,
               qkv_format, interleaved, cp_size, cp_rank, s, b, h, d, d2, qkv_split_arg_list_0, qkv_split_arg_list_1,
               qkv_split_arg_list_2, stream)) return;
  const Caller caller = Caller::here();
  QkvRope rope = views(qkv_grad_input, {q_grad_out, k_grad_out, v_grad_out}, q_freqs, k_freqs, kBackward, caller);
  set_sizes(rope, qkv_format, cp_size, cp_rank, s, b, h, {d, d2, interleaved, true},
            {qkv_split_arg_list_0, qkv_split_arg_list_1, qkv_split_arg_list_2});
  run(rope, kBackward, caller);
}
