#ifndef CHAGRES_GUARD_UNRESOLVED_HPP
#define CHAGRES_GUARD_UNRESOLVED_HPP

#include <string>
#include <vector>

namespace chagres::guard {

/* Functions and data that an opened library uses, must have, and that neither it nor any library visible to it
 * defines. The dynamic linker looks for them at the first call and ends the process where it finds none. */
std::vector<std::string> unresolved_symbols(void *library);

}  // namespace chagres::guard

#endif
