/* Operations: rotary position embedding inside a packed projection, and between it and query, key and value apart. */
#include "cuda/capture.h"
#include "ops/operations.h"
#include "ops/token_layout.h"

#include <cmath>
#include <cstring>

using namespace chagres;
using namespace chagres::reference;

namespace {

/* Heads of a token that lie side by side: those of token t begin at data + t * step, in elements. */
struct Heads {
  void *data;
  int64_t step;
};

/* Query, key and value, apart or as parts of one buffer. */
struct Parts {
  Heads query, key, value;
};

Parts inside(const void *qkv, const OpsRotary &rotary) {
  const NVTEDType type = as_dtype(rotary.dtype);
  void *data = const_cast<void *>(qkv);
  const int64_t step = (rotary.heads + 2 * rotary.kv_heads) * rotary.head_dim;
  return {{data, step},
          {element(data, rotary.heads * rotary.head_dim, type), step},
          {element(data, (rotary.heads + rotary.kv_heads) * rotary.head_dim, type), step}};
}

Parts apart(const void *q, const void *k, const void *v, const OpsRotary &rotary) {
  const int64_t step = rotary.kv_heads * rotary.head_dim;
  return {{const_cast<void *>(q), rotary.heads * rotary.head_dim},
          {const_cast<void *>(k), step},
          {const_cast<void *>(v), step}};
}

CHAGRES_CLONES void rotate(float *row, const float *cosine, const float *sine, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = row[i], b = row[i + half];
    row[i] = a * cosine[i] - b * sine[i];
    row[i + half] = b * cosine[i] + a * sine[i];
  }
}

void rotate_neighbours(float *row, const float *cosine, const float *sine, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = row[2 * i], b = row[2 * i + 1];
    row[2 * i] = a * cosine[i] - b * sine[i];
    row[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
}

/* The rotation of one thread's tokens. */
class Rotation {
 public:
  explicit Rotation(const OpsRotary &rotary)
      : rotary_(rotary),
        sequences_{rotary.cu_seqlens, rotary.layout, rotary.extent},
        half_(rotary.rotated_dim / 2),
        cosine_(half_),
        sine_(half_),
        row_(rotary.rotated_dim) {}

  /* Computes the angles of token t; false where it is not rotated. */
  bool begin(int64_t t) {
    int64_t p = half_ == 0 ? -1 : sequences_.position(t);
    if (p < 0) return false;
    if (rotary_.start_positions != nullptr) p += rotary_.start_positions[sequences_.sequence(t)];
    if (p < 0 || p >= rotary_.positions) return false;
    const int64_t step = rotary_.pairing == OPS_INTERLEAVED ? 2 : 1;
    for (int64_t i = 0; i < half_; ++i) {
      const float angle = rotary_.angles[p * rotary_.rotated_dim + step * i];
      cosine_[i] = std::cos(angle);
      sine_[i] = static_cast<float>(rotary_.direction) * std::sin(angle);
    }
    return true;
  }

  void turn(void *head) {
    const NVTEDType type = as_dtype(rotary_.dtype);
    float *row = type == kNVTEFloat32 ? static_cast<float *>(head) : row_.data();
    if (row != head) to_float(row, head, type, rotary_.rotated_dim);
    (rotary_.pairing == OPS_INTERLEAVED ? rotate_neighbours : rotate)(row, cosine_.data(), sine_.data(), half_);
    if (row != head) from_float(head, row, type, rotary_.rotated_dim);
  }

 private:
  const OpsRotary &rotary_;
  TokenLayout sequences_;
  int64_t half_;
  Scratch cosine_, sine_, row_;
};

/* Copies token t's heads, and rotates them where they are now. */
void move(const Heads &from, const Heads &to, int64_t heads, int64_t t, const OpsRotary &rotary, Rotation *rotation) {
  const NVTEDType type = as_dtype(rotary.dtype);
  if (heads == 0) return; /* pointers to nothing must not be moved */
  void *start = element(to.data, t * to.step, type);
  if (from.data != to.data)
    std::memcpy(start, element(from.data, t * from.step, type),
                static_cast<size_t>(heads * rotary.head_dim * ops::size_of(rotary.dtype)));
  for (int64_t head = 0; rotation != nullptr && head < heads; ++head)
    rotation->turn(element(start, head * rotary.head_dim, type));
}

int run_rotary(const char *function, const Parts &from, const Parts &to, const OpsRotary &rotary) {
  const int64_t work = (rotary.heads + 2 * rotary.kv_heads) * rotary.head_dim * 2;
  return run(function, [&] {
    parallel_for(0, rotary.tokens, grain_for(work), [&](int64_t first, int64_t last) {
      Rotation rotation(rotary);
      for (int64_t t = first; t < last; ++t) {
        Rotation *present = rotation.begin(t) ? &rotation : nullptr;
        move(from.query, to.query, rotary.heads, t, rotary, present);
        move(from.key, to.key, rotary.kv_heads, t, rotary, present);
        move(from.value, to.value, rotary.kv_heads, t, rotary, nullptr);
      }
    });
  });
}

}  // namespace

int ops_rotary_packed(void *qkv, const OpsRotary *rotary, OpsStream stream) try {
  const char *function = "ops_rotary_packed";
  const int status = ops::check_rotary(function, rotary, {qkv, false, nullptr, nullptr, nullptr});
  if (status != OPS_SUCCESS || ops::rotates_nothing(*rotary)) return status;
  if (rotary->rotated_dim == 0 || rotary->positions == 0) return status;
  if (recorded_problem("a rotation", rotary, stream,
        [=](const OpsRotary *same, OpsStream into) { return ops_rotary_packed(qkv, same, into); }))
    return OPS_SUCCESS;
  const Parts parts = inside(qkv, *rotary);
  return run_rotary(function, parts, parts, *rotary);
} OPS_CATCH

int ops_rotary_split(const void *qkv, void *q, void *k, void *v, const OpsRotary *rotary, OpsStream stream) try {
  const char *function = "ops_rotary_split";
  const int status = ops::check_rotary(function, rotary, {qkv, true, q, k, v});
  if (status != OPS_SUCCESS || ops::rotates_nothing(*rotary)) return status;
  if (recorded_problem("a rotation", rotary, stream,
        [=](const OpsRotary *same, OpsStream into) { return ops_rotary_split(qkv, q, k, v, same, into); }))
    return OPS_SUCCESS;
  return run_rotary(function, inside(qkv, *rotary), apart(q, k, v, *rotary), *rotary);
} OPS_CATCH

int ops_rotary_join(const void *q, const void *k, const void *v, void *qkv, const OpsRotary *rotary, OpsStream stream) try {
  const char *function = "ops_rotary_join";
  const int status = ops::check_rotary(function, rotary, {qkv, true, q, k, v});
  if (status != OPS_SUCCESS || ops::rotates_nothing(*rotary)) return status;
  if (recorded_problem("a rotation", rotary, stream,
        [=](const OpsRotary *same, OpsStream into) { return ops_rotary_join(q, k, v, qkv, same, into); }))
    return OPS_SUCCESS;
  return run_rotary(function, apart(q, k, v, *rotary), inside(qkv, *rotary), *rotary);
} OPS_CATCH
