/* loss_scale_restore by its own words; loss_scale_clip and loss_scale_update against the same arithmetic in double precision. */
#include <limits>

#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void clip_case(Session &session, double norm, double loss_scale, float max_norm) {
  Case test(session, "loss_scale_clip", 4,
            "norm=" + std::to_string(norm) + " loss_scale=" + std::to_string(loss_scale) +
                " max_norm=" + std::to_string(max_norm));
  Buffer in = session.floats(4, {norm}), scale = session.floats(4, {loss_scale}), factor = session.floats(4, {kNan});
  Buffer skip = session.raw(std::vector<int32_t>{0});
  if (!test.run({&in, &factor, &skip}, [&] {
        return session.ops.loss_scale_clip(in.data<float>(), scale.data<float>(), max_norm, factor.data<float>(),
                                           skip.data<int32_t>(), session.memory.stream());
      }))
    return;
  const double unscaled = norm / loss_scale;
  const bool finite = std::isfinite(norm);
  const double wanted = finite ? std::min(1.0, max_norm / (unscaled + static_cast<double>(1e-6f))) / loss_scale : 0;
  if (finite) test.close(4, test.output(0, 4), {unscaled}, {std::fabs(unscaled)}, 4, "norm");
  else test.equal(test.output(0, 4), {unscaled}, "norm");
  test.close(4, test.output(1, 4), {wanted}, {std::fabs(wanted)}, 8, "factor");
  if (from_raw<int32_t>(test.output(2))[0] != (finite ? 0 : 1)) test.fail("skip is wrong");
}

struct Update {
  int32_t skip;
  double scale;
  int32_t taken, skipped, step;
};

void update_case(Session &session, const Update &before, const Update &after) {
  Case test(session, "loss_scale_update", 4,
            "skip=" + std::to_string(before.skip) + " scale=" + std::to_string(before.scale) +
                " taken=" + std::to_string(before.taken));
  Buffer skip = session.raw(std::vector<int32_t>{before.skip}), scale = session.floats(4, {before.scale});
  Buffer counts = session.raw(std::vector<int32_t>{before.taken, before.skipped});
  Buffer step = session.raw(std::vector<int32_t>{before.step});
  if (!test.run({&scale, &counts, &step}, [&] {
        return session.ops.loss_scale_update(skip.data<int32_t>(), scale.data<float>(), counts.data<int32_t>(),
                                             step.data<int32_t>(), 4, 0.25f, 10, session.memory.stream());
      }))
    return;
  test.equal(test.output(0, 4), {after.scale}, "loss_scale");
  test.equal_bytes(test.output(1), raw_bytes(std::vector<int32_t>{after.taken, after.skipped}), "counts");
  test.equal_bytes(test.output(2), raw_bytes(std::vector<int32_t>{after.step}), "step");
}

void restore_case(Session &session, int32_t skipped, int64_t count) {
  Case test(session, "loss_scale_restore", 4, "skip=" + std::to_string(skipped) + " count=" + std::to_string(count));
  std::vector<double> before(count), now(count);
  for (int64_t i = 0; i < count; ++i) {
    before[i] = i % 7 == 3 ? kInfinity : static_cast<double>(i);
    now[i] = -1.0 - static_cast<double>(i);
  }
  Buffer skip = session.raw(std::vector<int32_t>{skipped});
  Buffer saved = session.floats(4, before), values = session.floats(4, now);
  if (!test.run({&values}, [&] {
        return session.ops.loss_scale_restore(skip.data<int32_t>(), saved.data<float>(), values.data<float>(), count,
                                              session.memory.stream());
      }))
    return;
  test.equal(test.output(0, 4), skipped == 1 ? before : now, "values");
}

}  // namespace

void loss_scale_cases(Session &session) {
  for (double scale : {1.0, 65536.0, 3.0}) {
    clip_case(session, 0, scale, 1);
    clip_case(session, 0.5, scale, 1);
    clip_case(session, 7e5, scale, 1);
    clip_case(session, 7e5, scale, std::numeric_limits<float>::infinity());
    clip_case(session, kInfinity, scale, 1);
    clip_case(session, kNan, scale, 1);
  }
  for (int64_t count : {0, 1, 255, 256, 257, 40961}) {
    restore_case(session, 0, count);
    restore_case(session, 1, count);
  }
  update_case(session, {0, 64, 0, 2, 7}, {0, 64, 1, 2, 8});
  update_case(session, {0, 64, 9, 2, 7}, {0, 256, 0, 2, 8});  /* grows */
  update_case(session, {1, 64, 9, 2, 7}, {1, 16, 0, 3, 7});   /* falls */
  update_case(session, {0, std::ldexp(1, 127), 9, 0, 0}, {0, std::ldexp(1, 127), 0, 0, 1});
  update_case(session, {1, std::ldexp(1, -126), 5, 0, 0}, {1, std::ldexp(1, -126), 0, 1, 0});
}

}  // namespace chagres::tests
