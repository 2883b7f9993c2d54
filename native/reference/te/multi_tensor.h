/* Lists of tensors that one call works through: what norms, scaling and optimizers share. */
#ifndef CHAGRES_MULTI_TENSOR_H
#define CHAGRES_MULTI_TENSOR_H

#include <vector>

#include "runtime/reference.h"

namespace chagres::reference {

constexpr std::initializer_list<NVTEDType> kFloatDtypes = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16};

/* lists[l][j]: list l, tensor j. */
using Lists = std::vector<std::vector<View>>;

struct ListArguments {
  int chunk_size;
  NVTETensor flag; /* noop_flag or is_infinite: Int32 [1] */
  NVTETensor **tensors;
  size_t lists;
  size_t tensors_per_list;
};

/* Views of all tensors. `names` has one name a list and so gives their number; dtypes: floating-point unless Int16 is
 * allowed too. Throws when the counts are wrong, a tensor is dead, empty, or of another size than its first list's. */
Lists read_lists(const ListArguments &arguments, const std::vector<const char *> &names, const Caller &caller,
                 std::initializer_list<NVTEDType> dtypes = kFloatDtypes);

/* The Int32 flag cell. */
int32_t *read_flag(NVTETensor flag, const char *argument, const Caller &caller);

/* A cell that a tensor argument holds: one element of `dtype`. */
void *read_cell(NVTETensor handle, const char *argument, NVTEDType dtype, const Caller &caller);

void expect_list_dtype(const std::vector<View> &list, const char *name, NVTEDType dtype, const Caller &caller);

/* Both moments Float32 or both BFloat16, tensor by tensor. */
void expect_moments(const std::vector<View> &first, const std::vector<View> &second, const Caller &caller);

/* A run of elements of tensor `tensor`. */
struct Chunk {
  size_t tensor;
  int64_t first, count;
};

/* Cuts every tensor of a list. */
std::vector<Chunk> cut(const std::vector<View> &list, int64_t size);

/* work(chunk) for every chunk on all threads; each element belongs to one chunk, so order does not matter. */
template <class Work>
void for_chunks(const std::vector<View> &list, Work &&work) {
  const std::vector<Chunk> chunks = cut(list, 16384);
  parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) work(chunks[static_cast<size_t>(i)]);
  });
}

inline void load_chunk(float *run, const std::vector<View> &list, const Chunk &chunk) {
  const View &view = list[chunk.tensor];
  to_float(run, element(view.data, chunk.first, view.dtype), view.dtype, chunk.count);
}

inline void store_chunk(const std::vector<View> &list, const Chunk &chunk, const float *run) {
  const View &view = list[chunk.tensor];
  from_float(element(view.data, chunk.first, view.dtype), run, view.dtype, chunk.count);
}

}  // namespace chagres::reference

#endif /* CHAGRES_MULTI_TENSOR_H */
