/* What the functions over packed tokens of context-parallel ranks share. */
#ifndef CHAGRES_CONTEXT_PARALLEL_H
#define CHAGRES_CONTEXT_PARALLEL_H

#include "runtime/reference.h"

namespace chagres::reference {

/* Checked offsets of `count` packed sequences. */
struct Sequences {
  const int32_t *starts;
  int64_t count;

  int64_t tokens() const { return starts[count]; }
  int64_t sequence_of(int64_t token) const;
};

/* Offsets from 0 to at most `tokens`, all lengths multiples of `divisor`; throws for others. */
Sequences read_sequences(NVTETensor cu_seqlens, int64_t tokens, int64_t divisor, const char *argument, const Caller &caller);

/* Tokens of a tensor [t, ...] or, of a pair such as keys and values, [2, t, h, d]. */
struct Rows {
  View view;
  int64_t parts, tokens, columns;

  int64_t bytes() const { return columns * static_cast<int64_t>(element_size(view.dtype)); }
  void *row(int64_t index) const { return element(view.data, index * columns, view.dtype); }
};

/* Throws where a token is no multiple of 16 bytes: Transformer Engine moves so many at once. */
Rows read_rows(NVTETensor handle, const char *argument, bool may_be_pair, const Caller &caller);

void expect_rows(const Rows &rows, const char *argument, const Rows &model, int64_t tokens, const Caller &caller);

}  // namespace chagres::reference

#endif /* CHAGRES_CONTEXT_PARALLEL_H */
