/* Rotary position embedding inside a packed projection. */
#include <algorithm>

#include "harness/report.h"

namespace chagres::tests {

namespace {

struct Rotary {
  int dtype;
  int layout;
  int64_t tokens, extent, positions, heads, head_dim;
  int direction;
  int64_t offset;
  std::vector<int32_t> cu_seqlens;
};

int64_t position_of(const Rotary &rotary, int64_t t) {
  if (rotary.layout == OPS_BSHD) return t % rotary.extent;
  if (rotary.layout == OPS_SBHD) return t / rotary.extent;
  for (size_t b = 0; b + 1 < rotary.cu_seqlens.size(); ++b)
    if (t >= rotary.cu_seqlens[b] && t < rotary.cu_seqlens[b + 1]) return t - rotary.cu_seqlens[b];
  return -1;
}

/* Angles as models have them: position times a falling frequency, the halves equal. */
Doubles make_angles(const Rotary &rotary) {
  Doubles angles;
  for (int64_t p = 0; p < rotary.positions; ++p)
    for (int64_t i = 0; i < rotary.head_dim; ++i) {
      const double exponent =
          static_cast<double>(i % (rotary.head_dim / 2)) / (static_cast<double>(rotary.head_dim) / 2);
      angles.push_back(round_to(kFormats[0], static_cast<double>(p) * std::pow(10000.0, -exponent)));
    }
  return angles;
}

void rotate(const Rotary &rotary, const Doubles &angles, Doubles &qkv, Doubles &scale) {
  const int64_t half = rotary.head_dim / 2;
  for (int64_t t = 0; t < rotary.tokens; ++t) {
    const int64_t p = position_of(rotary, t);
    if (p < 0 || p >= rotary.positions) continue;
    for (int64_t row = 0; row < 2 * rotary.heads; ++row)
      for (int64_t i = 0; i < half; ++i) {
        const auto low = static_cast<size_t>((t * 3 * rotary.heads + row) * rotary.head_dim + i);
        const auto high = low + static_cast<size_t>(half);
        const double angle = rotary.direction * angles[static_cast<size_t>(p * rotary.head_dim + i)];
        const double a = qkv[low], b = qkv[high];
        qkv[low] = a * std::cos(angle) - b * std::sin(angle);
        qkv[high] = b * std::cos(angle) + a * std::sin(angle);
        scale[low] = scale[high] = std::fabs(a) + std::fabs(b);
      }
  }
}

void rotary_case(Session &session, const Rotary &rotary) {
  const char *const layouts[] = {"thd", "bshd", "sbhd"};
  Case test(session, "rotary_packed", rotary.dtype,
            layouts[rotary.layout] + (" " + shape_text({{"tokens", rotary.tokens},
                                                        {"extent", rotary.extent},
                                                        {"positions", rotary.positions},
                                                        {"heads", rotary.heads},
                                                        {"head_dim", rotary.head_dim},
                                                        {"direction", rotary.direction},
                                                        {"offset", rotary.offset}})));
  const Doubles qkv =
      session.random.normal(format_of(rotary.dtype), rotary.tokens * 3 * rotary.heads * rotary.head_dim);
  const Doubles angles = make_angles(rotary);
  Doubles wanted = qkv, scale(qkv.size(), 0);
  rotate(rotary, angles, wanted, scale);
  Buffer data = session.floats(rotary.dtype, qkv, rotary.offset), table = session.floats(4, angles);
  Buffer seqlens = session.raw(rotary.cu_seqlens);
  const bool packed = rotary.layout == OPS_THD;
  if (!test.run({&data}, [&] {
        return session.ops.rotary_packed(data.data(), packed ? seqlens.data<int32_t>() : nullptr, table.data<float>(),
                                         rotary.direction, rotary.layout, rotary.tokens, rotary.extent,
                                         rotary.positions, rotary.heads, rotary.head_dim, rotary.dtype,
                                         session.memory.stream());
      }))
    return;
  const Doubles got = test.output(0, rotary.dtype);
  test.close(rotary.dtype, got, wanted, scale, 8, "qkv");
  Doubles kept_got, kept_wanted; /* what must not be touched has its very bits */
  for (size_t i = 0; i < got.size(); ++i)
    if (scale[i] == 0) {
      kept_got.push_back(got[i]);
      kept_wanted.push_back(qkv[i]);
    }
  test.equal(kept_got, kept_wanted, "untouched element");
}

}  // namespace

void rotary_cases(Session &session) {
  const int64_t shapes[][2] = {{1, 2}, {3, 6}, {20, 16}, {2, 80}, {1, 600}, {5, 64}, {1, 130}, {2, 256}};
  for (const auto &[heads, head_dim] : shapes) {
    if (!session.large && head_dim == 64) break;
    for (const Format &format : kFormats)
      for (int direction : {1, -1}) {
        const int64_t offset = direction == 1 ? 0 : 1;
        const auto add = [&](int layout, int64_t tokens, int64_t extent, int64_t positions,
                             std::vector<int32_t> seqlens) {
          rotary_case(session, {format.dtype, layout, tokens, extent, positions, heads, head_dim, direction, offset,
                                std::move(seqlens)});
        };
        add(OPS_THD, 37, 4, 20, {0, 5, 5, 17, 33}); /* an empty sequence, tokens past the last */
        add(OPS_THD, 9, 1, 5, {0, 9});              /* positions past the table */
        add(OPS_THD, 6, 2, 9, {2, 2, 6});           /* tokens before the first sequence */
        add(OPS_BSHD, 22, 11, 11, {});
        add(OPS_SBHD, 22, 2, 11, {});
        add(OPS_SBHD, 0, 2, 11, {});
        add(OPS_BSHD, 4, 4, 0, {});
      }
  }
  rotary_case(session, {6, OPS_THD, 1100, 1, 1100, 1, 64, 1, 0, {0, 1100}}); /* large angles */
  if (session.large) rotary_case(session, {6, OPS_THD, 16384, 2, 16384, 20, 64, 1, 0, {0, 40, 16384}});
}

}  // namespace chagres::tests
