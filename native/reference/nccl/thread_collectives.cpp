/* What a collective of ranks that are threads computes, by the thread that came last. */
#include <cstring>

#include "nccl/world.h"

namespace chagres::reference {

namespace {

const void *at(const void *pointer, size_t bytes) { return static_cast<const char *>(pointer) + bytes; }
void *at(void *pointer, size_t bytes) { return static_cast<char *>(pointer) + bytes; }

/* targets: where ranks want elements begin .. begin + count of the reduction, beginning at their element 0. */
void reduce_range(const Signature &signature, const std::vector<Source> &sources, size_t begin,
                  const std::vector<void *> &targets) {
  const size_t size = nccl_dtype_size(signature.dtype);
  constexpr int64_t kPiece = 8192;
  parallel_for(0, static_cast<int64_t>(signature.count), kPiece, [&](int64_t first, int64_t last) {
    Scratch result((last - first) * 2); /* room for eight bytes an element */
    reduce_elements(signature.dtype, signature.op, sources, static_cast<int64_t>(begin) + first, last - first,
                    result.data());
    for (void *target : targets) {
      std::memcpy(at(target, static_cast<size_t>(first) * size), result.data(), static_cast<size_t>(last - first) * size);
    }
  });
}

}  // namespace

void ThreadWorld::compute(Round &round) const {
  const Signature &signature = round.signature;
  const size_t bytes = signature.count * nccl_dtype_size(signature.dtype);
  const std::vector<Contribution> &given = round.given;
  const size_t ranks = given.size();
  const auto root = static_cast<size_t>(signature.root);
  std::vector<Source> sources;
  std::vector<void *> targets;
  for (const Contribution &one : given) {
    sources.push_back({one.send, one.factor});
    targets.push_back(one.receive);
  }
  switch (signature.kind) {
    case Collective::AllReduce:
      return reduce_range(signature, sources, 0, targets);
    case Collective::Reduce:
      return reduce_range(signature, sources, 0, {targets[root]});
    case Collective::ReduceScatter: {
      /* A target may lie in its own rank's source, at that rank's place: nobody else reads that place. */
      for (size_t rank = 0; rank < ranks; ++rank) reduce_range(signature, sources, rank * signature.count, {targets[rank]});
      return;
    }
    case Collective::Broadcast:
      for (void *target : targets) copy_bytes(target, given[root].send, bytes);
      return;
    case Collective::AllGather:
      for (void *target : targets) {
        for (size_t from = 0; from < ranks; ++from) copy_bytes(at(target, from * bytes), given[from].send, bytes);
      }
      return;
    case Collective::AllToAll:
      for (size_t rank = 0; rank < ranks; ++rank) {
        for (size_t from = 0; from < ranks; ++from) {
          copy_bytes(at(targets[rank], from * bytes), at(given[from].send, rank * bytes), bytes);
        }
      }
      return;
    case Collective::Gather:
      for (size_t from = 0; from < ranks; ++from) copy_bytes(at(targets[root], from * bytes), given[from].send, bytes);
      return;
    case Collective::Scatter:
      for (size_t rank = 0; rank < ranks; ++rank) copy_bytes(targets[rank], at(given[root].send, rank * bytes), bytes);
      return;
    case Collective::Split:
      return split(round);
  }
}

}  // namespace chagres::reference
