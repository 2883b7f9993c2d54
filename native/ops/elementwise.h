/* Checks of the element-wise operations, shared by both libraries that export ops.h. */
#ifndef CHAGRES_OPS_ELEMENTWISE_H
#define CHAGRES_OPS_ELEMENTWISE_H

#include "arguments.h"

namespace chagres::ops {

constexpr size_t kMostInputs = 3; /* of an operation: UNARY to TERNARY in elementwise.cu */

/* The tensor of an argument called `name`. */
struct Elements {
  const char *name;
  const void *pointer;
};

/* Checks the memory of one tensor. */
inline Arguments &check_elements(Arguments &arguments, const Elements &elements, int64_t count, int dtype) {
  const int64_t size = size_of(dtype);
  return arguments.countable("count", {count, size}).pointer(elements.name, elements.pointer, size, bytes_of({count, size}));
}

/* result = formula of the inputs, all of dtype. */
inline int check_elementwise(const char *function, std::initializer_list<Elements> inputs, const Elements &result,
                             int64_t count, int dtype) {
  Arguments arguments(function);
  arguments.float_dtype("dtype", dtype).between("count", count, 0);
  if (arguments.wrong() || count == 0) return arguments.status();
  for (const Elements &input : inputs) check_elements(arguments, input, count, dtype);
  return check_elements(arguments, result, count, dtype).status();
}

/* The same, which raises amax. */
inline int check_elementwise_amax(const char *function, std::initializer_list<Elements> inputs, const Elements &result,
                                  const float *amax, int64_t count, int dtype) {
  Arguments arguments(function);
  arguments.between("count", count, 0);
  if (!arguments.wrong() && count > 0) arguments.pointer("amax", amax, 4, 4);
  return arguments.wrong() ? arguments.status() : check_elementwise(function, inputs, result, count, dtype);
}

inline int check_accumulate(const void *x, const void *y, int64_t count, int dtype) {
  Arguments arguments("ops_accumulate");
  arguments.float_dtype("dtype", dtype).between("count", count, 0);
  if (arguments.wrong() || count == 0) return arguments.status();
  check_elements(arguments, {"x", x}, count, dtype);
  return check_elements(arguments, {"y", y}, count, kFloat32).status();
}

inline int check_cast(const void *x, int x_dtype, const void *y, int y_dtype, int64_t count) {
  Arguments arguments("ops_cast");
  arguments.float_dtype("x_dtype", x_dtype).float_dtype("y_dtype", y_dtype).between("count", count, 0);
  if (arguments.wrong() || count == 0) return arguments.status();
  check_elements(arguments, {"x", x}, count, x_dtype);
  return check_elements(arguments, {"y", y}, count, y_dtype).status();
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_ELEMENTWISE_H */
