/* dequantize_blocks: each element is the one number that double precision rounds to. */
#include "harness/fp8.h"
#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr int64_t kSizes[][2] = {{0, 16}, {3, 0}, {1, 1}, {1, 8}, {5, 300}, {8, 257}, {130, 264}, {127, 128}, {129, 144}};

/* How many bytes q, and how many elements y, begin behind an address that suits packs. */
struct Offsets {
  int64_t q, y;
};

void dequantize_case(Session &session, int dtype, int64_t rows, int64_t columns, int scaling, int fp8, Offsets offsets) {
  Case test(session, "dequantize_blocks", dtype,
            shape_text({{"rows", rows},
                        {"columns", columns},
                        {"scaling", scaling},
                        {"fp8", fp8},
                        {"offset of q", offsets.q},
                        {"of y", offsets.y}}));
  std::vector<uint8_t> q(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint8_t>(i * 37 % 256);
  const int64_t across = (columns + 127) / 128, stride = scaling == 2 ? rows + 3 : across + 1;
  const int64_t scales = scaling == 2 ? across * stride : (rows + 127) / 128 * stride;
  Doubles inverse(static_cast<size_t>(std::max<int64_t>(scales, 1)));
  for (size_t i = 0; i < inverse.size(); ++i) inverse[i] = std::ldexp(1 + static_cast<double>(i % 5) / 8, -9);
  Doubles wanted(q.size());
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t r = i / columns, block = i % columns / 128;
    const double s = inverse[static_cast<size_t>(scaling == 2 ? block * stride + r : r / 128 * stride + block)];
    wanted[static_cast<size_t>(i)] = fp8_value(q[static_cast<size_t>(i)], fp8 == 7 ? 3 : 2) * s;
  }
  for (double &value : wanted) value = round_to(format_of(dtype), value);
  Buffer bytes(session.memory, q, static_cast<size_t>(offsets.q)), scale = session.floats(4, inverse);
  Buffer y = session.floats(dtype, Doubles(q.size(), -1), offsets.y);
  if (test.run({&y}, [&] {
        return session.ops.dequantize_blocks(bytes.data(), scale.data<float>(), y.data(), rows, columns, stride, scaling,
                                             dtype, fp8, session.memory.stream());
      }))
    test.equal(test.output(0, dtype), wanted, "y");
}

}  // namespace

void dequantize_blocks_cases(Session &session) {
  for (const Format &format : kFormats)
    for (int scaling : {2, 3})
      for (int fp8 : {7, 8}) {
        for (const auto &[rows, columns] : kSizes)
          dequantize_case(session, format.dtype, rows, columns, scaling, fp8, {0, 0});
        for (const Offsets offsets : {Offsets{1, 0}, Offsets{0, 1}, Offsets{8, 0}, Offsets{3, 1}})
          dequantize_case(session, format.dtype, 9, 144, scaling, fp8, offsets);
      }
  if (session.large) dequantize_case(session, 6, 4097, 1280, 2, 7, {0, 0});
}

}  // namespace chagres::tests
