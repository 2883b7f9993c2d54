/* clip_scale: for norms below, at and above the limit, huge and no number. */
#include <limits>

#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void clip_case(Session &session, double norm, float max_norm, double wanted) {
  Case test(session, "clip_scale", 4, "norm=" + std::to_string(norm) + " max_norm=" + std::to_string(max_norm));
  Buffer in = session.floats(4, {norm}), out = session.floats(4, {kNan});
  if (test.run({&out}, [&] {
        return session.ops.clip_scale(in.data<float>(), max_norm, out.data<float>(), session.memory.stream());
      }))
    test.close(4, test.output(0, 4), {wanted}, {std::fabs(wanted)}, 4, "scale");
}

}  // namespace

void clip_cases(Session &session) {
  clip_case(session, 0, 1, 1);
  clip_case(session, 0.5, 1, 1);
  clip_case(session, 4, 1, 1 / (4 + static_cast<double>(1e-6f)));
  clip_case(session, 1e30, 0.25f, 0.25 / round_to(kFormats[0], 1e30));
  clip_case(session, kInfinity, 1, 0);
  clip_case(session, kNan, 1, 0);
}

}  // namespace chagres::tests
