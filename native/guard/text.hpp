/* This thread's text of its last failing te_ call. */
#ifndef CHAGRES_GUARD_TEXT_HPP
#define CHAGRES_GUARD_TEXT_HPP

namespace chagres::guard {

void store(const char *format, ...) __attribute__((format(printf, 1, 2), cold));
const char *stored();

}  // namespace chagres::guard

#endif
