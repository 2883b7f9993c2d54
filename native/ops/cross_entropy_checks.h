/* The checks of cross-entropy, whole and by parts of the classes, shared by both libraries that export it; as checks.h. */
#ifndef CHAGRES_OPS_CROSS_ENTROPY_CHECKS_H
#define CHAGRES_OPS_CROSS_ENTROPY_CHECKS_H

#include "checks.h"

namespace chagres::ops {

inline void check_label_smoothing(Arguments &arguments, float label_smoothing) {
  if (!(label_smoothing >= 0 && label_smoothing <= 1))
    arguments.refuse("label_smoothing", format("%g", label_smoothing), "0 to 1");
}

/* Checks common to forward and backward; true if the pointers must be checked, too. */
inline bool logits_shape(Arguments &arguments, float label_smoothing, int64_t tokens, int64_t classes, int64_t stride,
                         int dtype) {
  check_label_smoothing(arguments, label_smoothing);
  arguments.float_dtype("dtype", dtype)
      .between("tokens", tokens, 0, INT32_MAX)
      .between("stride", stride, 1)
      .between("classes", classes, 1, stride)
      .countable("tokens * stride", {tokens, stride, size_of(dtype)});
  return !arguments.wrong();
}

/* Of logits that have a part of the classes, or none. */
inline bool logits_part(Arguments &arguments, int64_t tokens, int64_t classes, int64_t stride, int dtype) {
  arguments.float_dtype("dtype", dtype)
      .between("tokens", tokens, 0, INT32_MAX)
      .between("stride", stride, 0)
      .between("classes", classes, 0, stride)
      .countable("tokens * stride", {tokens, stride, size_of(dtype)});
  return !arguments.wrong();
}

inline int check_cross_entropy_forward(const void *logits, const void *labels, const void *divisor,
                                       float label_smoothing, const void *log_sum_exp, const void *token_losses,
                                       const void *loss, const void *counted, int64_t tokens, int64_t classes,
                                       int64_t stride, int dtype) {
  Arguments arguments("ops_cross_entropy_forward");
  if (!logits_shape(arguments, label_smoothing, tokens, classes, stride, dtype)) return arguments.status();
  if (divisor != nullptr) arguments.pointer("divisor", divisor, 4, 4);
  if (divisor != nullptr && divisor == counted)
    arguments.refuse("divisor", "the address of counted", "another, or null to divide by the tokens counted here");
  arguments.pointer("loss", loss, 4, 4).pointer("counted", counted, 4, 4);
  if (tokens == 0) return arguments.status();
  if (token_losses != nullptr) arguments.pointer("token_losses", token_losses, 4, bytes_of({tokens, 4}));
  return arguments.pointer("logits", logits, size_of(dtype), bytes_of({tokens, stride, size_of(dtype)}))
      .pointer("labels", labels, 4, bytes_of({tokens, 4}))
      .pointer("log_sum_exp", log_sum_exp, 4, bytes_of({tokens, 4}))
      .status();
}

inline int check_cross_entropy_backward(const void *logits, const void *labels, const void *log_sum_exp,
                                        const void *counted, const void *loss_scale, const void *token_gradients,
                                        float label_smoothing, const void *dlogits, int64_t tokens, int64_t classes,
                                        int64_t stride, int64_t first, int64_t all_classes, int dtype) {
  Arguments arguments("ops_cross_entropy_backward");
  check_label_smoothing(arguments, label_smoothing);
  if (!logits_part(arguments, tokens, classes, stride, dtype)) return arguments.status();
  arguments.between("all_classes", all_classes, std::max(classes, int64_t{1}));
  if (!arguments.wrong()) arguments.between("first", first, 0, all_classes - classes);
  if (arguments.wrong() || tokens == 0 || stride == 0) return arguments.status();
  if (counted != nullptr) arguments.pointer("counted", counted, 4, 4);
  if (loss_scale != nullptr) arguments.pointer("loss_scale", loss_scale, 4, 4);
  if (token_gradients != nullptr) arguments.pointer("token_gradients", token_gradients, 4, bytes_of({tokens, 4}));
  const int64_t matrix = bytes_of({tokens, stride, size_of(dtype)});
  return arguments.pointer("logits", logits, size_of(dtype), matrix)
      .pointer("labels", labels, 4, bytes_of({tokens, 4}))
      .pointer("log_sum_exp", log_sum_exp, 4, bytes_of({tokens, 4}))
      .pointer("dlogits", dlogits, size_of(dtype), matrix)
      .status();
}

inline int check_vocabulary_cross_entropy_maximum(const void *logits, const void *maximum, int64_t tokens,
                                                  int64_t classes, int64_t stride, int dtype) {
  Arguments arguments("ops_vocabulary_cross_entropy_maximum");
  if (!logits_part(arguments, tokens, classes, stride, dtype) || tokens == 0) return arguments.status();
  if (classes > 0) arguments.pointer("logits", logits, size_of(dtype), bytes_of({tokens, stride, size_of(dtype)}));
  return arguments.pointer("maximum", maximum, 4, bytes_of({tokens, 4})).status();
}

inline int check_vocabulary_cross_entropy_sums(const void *logits, const void *labels, const void *maximum,
                                               float label_smoothing, const void *sums, int64_t tokens, int64_t classes,
                                               int64_t stride, int64_t first, int dtype) {
  Arguments arguments("ops_vocabulary_cross_entropy_sums");
  check_label_smoothing(arguments, label_smoothing);
  if (!logits_part(arguments, tokens, classes, stride, dtype)) return arguments.status();
  arguments.between("first", first, 0);
  if (arguments.wrong() || tokens == 0) return arguments.status();
  if (classes > 0) arguments.pointer("logits", logits, size_of(dtype), bytes_of({tokens, stride, size_of(dtype)}));
  return arguments.pointer("labels", labels, 4, bytes_of({tokens, 4}))
      .pointer("maximum", maximum, 4, bytes_of({tokens, 4}))
      .pointer("sums", sums, 4, bytes_of({label_smoothing == 0 ? 2 : 3, tokens, 4}))
      .status();
}

inline int check_vocabulary_cross_entropy_loss(const void *maximum, const void *sums, const void *labels,
                                               const void *divisor, float label_smoothing, const void *log_sum_exp,
                                               const void *token_losses, const void *loss, const void *counted,
                                               int64_t tokens, int64_t classes) {
  Arguments arguments("ops_vocabulary_cross_entropy_loss");
  check_label_smoothing(arguments, label_smoothing);
  arguments.between("tokens", tokens, 0, INT32_MAX).between("classes", classes, 1);
  if (divisor != nullptr) arguments.pointer("divisor", divisor, 4, 4);
  if (divisor != nullptr && divisor == counted)
    arguments.refuse("divisor", "the address of counted", "another, or null to divide by the tokens counted here");
  arguments.pointer("loss", loss, 4, 4).pointer("counted", counted, 4, 4);
  if (arguments.wrong() || tokens == 0) return arguments.status();
  if (token_losses != nullptr) arguments.pointer("token_losses", token_losses, 4, bytes_of({tokens, 4}));
  return arguments.pointer("maximum", maximum, 4, bytes_of({tokens, 4}))
      .pointer("sums", sums, 4, bytes_of({label_smoothing == 0 ? 2 : 3, tokens, 4}))
      .pointer("labels", labels, 4, bytes_of({tokens, 4}))
      .pointer("log_sum_exp", log_sum_exp, 4, bytes_of({tokens, 4}))
      .status();
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_CROSS_ENTROPY_CHECKS_H */
