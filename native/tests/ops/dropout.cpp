/* Dropout with residual: the mask is known to the bit, from a Philox written after the paper. */
#include "harness/philox.h"
#include "harness/report.h"

namespace chagres::tests {

namespace {

/* The known answers that the authors publish with their code (Random123, kat_vectors). */
void known_answers(Session &session) {
  Case test(session, "dropout_add", 4, "known answers of Philox4x32-10");
  const Words zero = philox({0, 0, 0, 0}, 0, 0);
  if (zero != Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}) test.fail("this test's Philox, counter 0");
  const Words pi = philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0);
  if (pi != Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}) test.fail("this test's Philox, digits of pi");
}

bool kept(const std::vector<int64_t> &rng_state, int64_t element, float probability) {
  const auto seed = static_cast<uint64_t>(rng_state[0]);
  const uint64_t counter = static_cast<uint64_t>(rng_state[1]) + static_cast<uint64_t>(element / 4);
  const Words words = philox({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return std::ldexp(words[static_cast<size_t>(element % 4)], -32) >= probability;
}

struct Drop {
  int dtype;
  int64_t count;
  int64_t offset;
  float probability;
  std::vector<int64_t> rng_state;
};

std::string drop_text(const Drop &drop) {
  return shape_text({{"count", drop.count},
                     {"offset", drop.offset},
                     {"seed", drop.rng_state[0]},
                     {"counter", drop.rng_state[1]}}) +
         " p=" + std::to_string(drop.probability);
}

void backward_case(Session &session, const Drop &drop, const Bytes &mask, const Doubles &factor) {
  const Format &format = format_of(drop.dtype);
  Case test(session, "dropout_backward", drop.dtype, drop_text(drop));
  const Doubles dy = session.random.normal(format, drop.count);
  Doubles wanted;
  for (size_t i = 0; i < dy.size(); ++i)
    wanted.push_back(round_to(format, static_cast<float>(dy[i]) * static_cast<float>(factor[i])));
  Buffer slope = session.floats(drop.dtype, dy, drop.offset), bits(session.memory, mask);
  if (test.run({&slope}, [&] {
        return session.ops.dropout_backward(slope.data(), bits.data<uint8_t>(), slope.data(), drop.probability,
                                            drop.count, drop.dtype, session.memory.stream());
      }))
    test.equal(test.output(0, drop.dtype), wanted, "dx");
}

void forward_case(Session &session, const Drop &drop) {
  const Format &format = format_of(drop.dtype);
  Case test(session, "dropout_add", drop.dtype, drop_text(drop));
  const Doubles x = session.random.normal(format, drop.count), residual = session.random.normal(format, drop.count);
  const float scale = 1.0f / (1.0f - drop.probability);
  Bytes mask(static_cast<size_t>((drop.count + 7) / 8), 0);
  Doubles wanted, factor;
  for (size_t i = 0; i < x.size(); ++i) {
    const bool keep = kept(drop.rng_state, static_cast<int64_t>(i), drop.probability);
    if (keep) mask[i / 8] = static_cast<unsigned char>(mask[i / 8] | 1u << i % 8);
    const float scaled = static_cast<float>(x[i]) * scale; /* rounded before the sum */
    wanted.push_back(round_to(format, keep ? static_cast<float>(residual[i]) + scaled : residual[i]));
    factor.push_back(keep ? scale : 0);
  }
  Buffer in = session.floats(drop.dtype, x, drop.offset), base = session.floats(drop.dtype, residual, drop.offset);
  Buffer out = session.floats(drop.dtype, Doubles(x.size(), 7), drop.offset);
  Buffer bits(session.memory, Bytes(mask.size(), 0xff)), state = session.raw(drop.rng_state);
  if (!test.run({&out, &bits}, [&] {
        return session.ops.dropout_add(in.data(), base.data(), out.data(), bits.data<uint8_t>(), state.data<int64_t>(),
                                       drop.probability, drop.count, drop.dtype, session.memory.stream());
      }))
    return;
  test.equal_bytes(test.output(1), mask, "mask");
  test.equal(test.output(0, drop.dtype), wanted, "y");
  backward_case(session, drop, mask, factor);
}

}  // namespace

void dropout_cases(Session &session) {
  known_answers(session);
  const int64_t far = (int64_t{1} << 32) - 2; /* the counter's low word runs over */
  for (const Format &format : kFormats) {
    for (int64_t count : {0, 1, 4, 7, 8, 9, 63, 255, 2049})
      for (int64_t offset : {0, 1})
        forward_case(session, {format.dtype, count, offset, 0.1f, {1234567890123456789, count}});
    for (float probability : {0.0f, 0.5f, 0.999f, 0.99999994f, 1e-9f})
      forward_case(session, {format.dtype, 3000, 0, probability, {-5, far}});
  }
  if (session.large) forward_case(session, {6, 9000001, 0, 0.1f, {7, 7}}); /* so many that grids stride */
}

}  // namespace chagres::tests
