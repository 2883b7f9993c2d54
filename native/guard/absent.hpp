#ifndef CHAGRES_GUARD_ABSENT_HPP
#define CHAGRES_GUARD_ABSENT_HPP

#include <cstddef>

namespace chagres::guard {

/* Why the CPU reference lacks nvte_`name`; null where it has it, or nobody said why. */
const char *absent_because(const char *name);

}  // namespace chagres::guard

#endif
