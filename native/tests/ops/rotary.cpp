/* Rotary position embedding inside a packed projection, and between it and query, key and value apart. */
#include <algorithm>

#include "harness/report.h"

namespace chagres::tests {

namespace {

/* How the rotation of one case goes; `offset` elements before each tensor make it unaligned. */
struct Shape {
  int64_t heads, kv_heads, head_dim, rotated_dim;
  int pairing;
};

struct Tokens {
  int layout;
  int64_t tokens, extent, positions;
  std::vector<int32_t> cu_seqlens;
  std::vector<int32_t> start_positions; /* empty: none given */
};

struct Rotary {
  int dtype;
  Shape shape;
  Tokens tokens;
  int direction;
  int64_t offset;

  int64_t all_heads() const { return shape.heads + 2 * shape.kv_heads; }
};

int64_t position_of(const Tokens &tokens, int64_t t) {
  int64_t sequence = -1, position = -1;
  if (tokens.layout == OPS_BSHD) sequence = t / tokens.extent, position = t % tokens.extent;
  if (tokens.layout == OPS_SBHD) sequence = t % tokens.extent, position = t / tokens.extent;
  for (size_t b = 0; b + 1 < tokens.cu_seqlens.size(); ++b)
    if (t >= tokens.cu_seqlens[b] && t < tokens.cu_seqlens[b + 1])
      sequence = static_cast<int64_t>(b), position = t - tokens.cu_seqlens[b];
  if (sequence < 0) return -1;
  if (!tokens.start_positions.empty()) position += tokens.start_positions[static_cast<size_t>(sequence)];
  return position < tokens.positions ? position : -1;
}

/* Angles as models have them: position times a falling frequency, each twice as the pairing has it. */
Doubles make_angles(const Rotary &rotary) {
  Doubles angles;
  const int64_t half = rotary.shape.rotated_dim / 2;
  for (int64_t p = 0; p < rotary.tokens.positions; ++p)
    for (int64_t i = 0; i < rotary.shape.rotated_dim; ++i) {
      const int64_t pair = rotary.shape.pairing == OPS_INTERLEAVED ? i / 2 : i % half;
      const double exponent = static_cast<double>(pair) / static_cast<double>(half);
      angles.push_back(round_to(kFormats[0], static_cast<double>(p) * std::pow(10000.0, -exponent)));
    }
  return angles;
}

void rotate(const Rotary &rotary, const Doubles &angles, Doubles &qkv, Doubles &scale) {
  const Shape &shape = rotary.shape;
  const int64_t half = shape.rotated_dim / 2;
  const bool interleaved = shape.pairing == OPS_INTERLEAVED;
  for (int64_t t = 0; t < rotary.tokens.tokens; ++t) {
    const int64_t p = position_of(rotary.tokens, t);
    if (p < 0) continue;
    for (int64_t row = 0; row < shape.heads + shape.kv_heads; ++row)
      for (int64_t i = 0; i < half; ++i) {
        const int64_t start = (t * rotary.all_heads() + row) * shape.head_dim;
        const auto low = static_cast<size_t>(start + (interleaved ? 2 * i : i));
        const auto high = low + static_cast<size_t>(interleaved ? 1 : half);
        const double angle =
            rotary.direction * angles[static_cast<size_t>(p * shape.rotated_dim + (interleaved ? 2 * i : i))];
        const double a = qkv[low], b = qkv[high];
        qkv[low] = a * std::cos(angle) - b * std::sin(angle);
        qkv[high] = b * std::cos(angle) + a * std::sin(angle);
        scale[low] = scale[high] = std::fabs(a) + std::fabs(b);
      }
  }
}

/* `heads` heads from `first` on of each token. */
Doubles part(const Rotary &rotary, const Doubles &qkv, int64_t first, int64_t heads) {
  Doubles values;
  for (int64_t t = 0; t < rotary.tokens.tokens; ++t) {
    const auto start = qkv.begin() + (t * rotary.all_heads() + first) * rotary.shape.head_dim;
    values.insert(values.end(), start, start + heads * rotary.shape.head_dim);
  }
  return values;
}

std::string text_of(const Rotary &rotary) {
  const char *const layouts[] = {"thd", "bshd", "sbhd"};
  const char *starts = rotary.tokens.start_positions.empty() ? "" : " start positions";
  return layouts[rotary.tokens.layout] + (" " + shape_text({{"tokens", rotary.tokens.tokens},
                                                            {"extent", rotary.tokens.extent},
                                                            {"positions", rotary.tokens.positions},
                                                            {"heads", rotary.shape.heads},
                                                            {"kv_heads", rotary.shape.kv_heads},
                                                            {"head_dim", rotary.shape.head_dim},
                                                            {"rotated_dim", rotary.shape.rotated_dim},
                                                            {"pairing", rotary.shape.pairing},
                                                            {"direction", rotary.direction},
                                                            {"offset", rotary.offset}})) + starts;
}

/* The three functions over one set of numbers. */
class Calls {
 public:
  Calls(Session &session, const Rotary &rotary)
      : session_(session),
        rotary_(rotary),
        qkv_(session.random.normal(format_of(rotary.dtype),
                                   rotary.tokens.tokens * rotary.all_heads() * rotary.shape.head_dim)),
        angles_(make_angles(rotary)),
        wanted_(qkv_),
        scale_(qkv_.size(), 0),
        table_(session.floats(4, angles_)),
        seqlens_(session.raw(rotary.tokens.cu_seqlens)),
        starts_(session.raw(rotary.tokens.start_positions)) {
    rotate(rotary, angles_, wanted_, scale_);
    describe();
  }

  void packed() {
    Case test(session_, "rotary_packed", rotary_.dtype, text_of(rotary_));
    Buffer data = floats(qkv_);
    if (!test.run({&data}, [&] { return session_.ops.rotary_packed(data.data(), &native_, session_.memory.stream()); }))
      return;
    compare(test, test.output(0, rotary_.dtype), 0, rotary_.all_heads(), qkv_, "qkv");
  }

  void split() {
    Case test(session_, "rotary_split", rotary_.dtype, text_of(rotary_));
    const Shape &shape = rotary_.shape;
    Buffer data = floats(qkv_), q = floats(part(rotary_, qkv_, 0, shape.heads)),
           k = floats(part(rotary_, qkv_, 0, shape.kv_heads)), v = floats(part(rotary_, qkv_, 0, shape.kv_heads));
    if (!test.run({&q, &k, &v, &data}, [&] {
          return session_.ops.rotary_split(data.data(), q.data(), k.data(), v.data(), &native_,
                                           session_.memory.stream());
        }))
      return;
    compare(test, test.output(0, rotary_.dtype), 0, shape.heads, qkv_, "q");
    compare(test, test.output(1, rotary_.dtype), shape.heads, shape.kv_heads, qkv_, "k");
    compare(test, test.output(2, rotary_.dtype), shape.heads + shape.kv_heads, shape.kv_heads, qkv_, "v");
    test.equal(test.output(3, rotary_.dtype), qkv_, "qkv");
  }

  void join() {
    Case test(session_, "rotary_join", rotary_.dtype, text_of(rotary_));
    const Shape &shape = rotary_.shape;
    Buffer data = floats(Doubles(qkv_.size(), 7)), q = floats(part(rotary_, qkv_, 0, shape.heads)),
           k = floats(part(rotary_, qkv_, shape.heads, shape.kv_heads)),
           v = floats(part(rotary_, qkv_, shape.heads + shape.kv_heads, shape.kv_heads));
    if (!test.run({&data}, [&] {
          return session_.ops.rotary_join(q.data(), k.data(), v.data(), data.data(), &native_,
                                          session_.memory.stream());
        }))
      return;
    compare(test, test.output(0, rotary_.dtype), 0, rotary_.all_heads(), qkv_, "qkv");
  }

 private:
  Buffer floats(const Doubles &values) { return session_.floats(rotary_.dtype, values, rotary_.offset); }

  void describe() {
    const Tokens &tokens = rotary_.tokens;
    native_.cu_seqlens = tokens.layout == OPS_THD ? seqlens_.data<int32_t>() : nullptr;
    native_.start_positions = tokens.start_positions.empty() ? nullptr : starts_.data<int32_t>();
    native_.angles = table_.data<float>();
    native_.tokens = tokens.tokens;
    native_.extent = tokens.extent;
    native_.positions = tokens.positions;
    native_.heads = rotary_.shape.heads;
    native_.kv_heads = rotary_.shape.kv_heads;
    native_.head_dim = rotary_.shape.head_dim;
    native_.rotated_dim = rotary_.shape.rotated_dim;
    native_.layout = tokens.layout;
    native_.pairing = rotary_.shape.pairing;
    native_.direction = rotary_.direction;
    native_.dtype = rotary_.dtype;
  }

  /* Compares `heads` heads from `first` on; what must not be touched has its very bits. */
  void compare(Case &test, const Doubles &got, int64_t first, int64_t heads, const Doubles &before, const char *what) {
    const Doubles scale = part(rotary_, scale_, first, heads), kept = part(rotary_, before, first, heads);
    test.close(rotary_.dtype, got, part(rotary_, wanted_, first, heads), scale, 8, what);
    Doubles kept_got, kept_wanted;
    for (size_t i = 0; i < got.size(); ++i)
      if (scale[i] == 0) {
        kept_got.push_back(got[i]);
        kept_wanted.push_back(kept[i]);
      }
    test.equal(kept_got, kept_wanted, "untouched element");
  }

  Session &session_;
  const Rotary &rotary_;
  Doubles qkv_, angles_, wanted_, scale_;
  Buffer table_, seqlens_, starts_;
  OpsRotary native_ = {};
};

void rotary_case(Session &session, const Rotary &rotary) {
  Calls calls(session, rotary);
  calls.packed();
  calls.split();
  calls.join();
}

std::vector<Tokens> arrangements() {
  return {{OPS_THD, 37, 4, 20, {0, 5, 5, 17, 33}, {}}, /* an empty sequence, tokens past the last */
          {OPS_THD, 9, 1, 5, {0, 9}, {}},              /* positions past the table */
          {OPS_THD, 6, 2, 9, {2, 2, 6}, {}},           /* tokens before the first sequence */
          {OPS_THD, 12, 3, 20, {0, 4, 4, 12}, {9, 1, -3}},
          {OPS_BSHD, 22, 11, 11, {}, {}},
          {OPS_BSHD, 22, 11, 15, {}, {2, 7}},
          {OPS_SBHD, 22, 2, 11, {}, {}},
          {OPS_SBHD, 22, 2, 15, {}, {3, 0}},
          {OPS_SBHD, 0, 2, 11, {}, {}},
          {OPS_BSHD, 4, 4, 0, {}, {}}};
}

}  // namespace

void rotary_cases(Session &session) {
  const Shape shapes[] = {{1, 1, 2, 2, OPS_HALVES},     {3, 3, 6, 6, OPS_HALVES},     {20, 20, 16, 16, OPS_HALVES},
                          {2, 2, 80, 80, OPS_HALVES},   {1, 1, 600, 600, OPS_HALVES}, {8, 2, 32, 32, OPS_HALVES},
                          {6, 1, 32, 16, OPS_HALVES},   {4, 2, 32, 32, OPS_INTERLEAVED},
                          {4, 2, 48, 16, OPS_INTERLEAVED}, {3, 1, 10, 6, OPS_INTERLEAVED},
                          {4, 2, 16, 0, OPS_HALVES},    {5, 0, 16, 16, OPS_HALVES},   {5, 5, 64, 64, OPS_HALVES},
                          {1, 1, 130, 130, OPS_HALVES}, {2, 2, 256, 256, OPS_HALVES}};
  for (const Shape &shape : shapes) {
    if (!session.large && shape.head_dim == 64) break;
    for (const Format &format : kFormats)
      for (int direction : {1, -1})
        for (const Tokens &tokens : arrangements())
          rotary_case(session, {format.dtype, shape, tokens, direction, direction == 1 ? 0 : 1});
  }
  rotary_case(session, {6, {1, 1, 64, 64, OPS_HALVES}, {OPS_THD, 1100, 1, 1100, {0, 1100}, {}}, 1, 0}); /* large angles */
  if (session.large)
    rotary_case(session, {6, {20, 4, 64, 64, OPS_HALVES}, {OPS_THD, 16384, 2, 16384, {0, 40, 16384}, {}}, 1, 0});
}

}  // namespace chagres::tests
