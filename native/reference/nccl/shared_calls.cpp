/*
 * Collectives among processes, piece by piece.
 *
 * A collective is a number of steps. In each a rank reads what all wrote in the step before, then writes its part of this one. It begins
 * a step when all have written the one before, so two places for what a rank writes are enough: who has written step s has read s - 2.
 */
#include <algorithm>

#include "nccl/shared_world.h"

namespace chagres::reference {

namespace {

bool by_target(Collective kind) {
  return kind == Collective::ReduceScatter || kind == Collective::AllToAll || kind == Collective::Scatter;
}
bool root_writes(Collective kind) { return kind == Collective::Broadcast || kind == Collective::Scatter; }
bool root_reads(Collective kind) { return kind == Collective::Reduce || kind == Collective::Gather; }

SharedCall call_of(const Signature &signature, const Contribution &given) {
  return {static_cast<int32_t>(signature.kind), signature.dtype, signature.op, signature.root, signature.count,
          given.factor,                         given.color,     given.key,      given.places};
}

Signature signature_of(const SharedCall &call) {
  return {static_cast<Collective>(call.kind), call.count, call.dtype, call.op, call.root};
}

class SharedCollective : public SharedPending {
 public:
  SharedCollective(Segment &shared, int of, const Signature &called, const Contribution &gives, SharedQueue &calls)
      : SharedPending(shared, of), signature_(called), given_(gives), queue_(calls), size_(nccl_dtype_size(called.dtype)) {
    const auto ranks = static_cast<size_t>(segment.ranks());
    piece_ = segment.slot_bytes() / size_ / (by_target(called.kind) ? ranks : 1);
    const uint64_t pieces = std::max<uint64_t>(1, (called.count + piece_ - 1) / piece_);
    steps_ = called.kind == Collective::AllReduce ? 2 * pieces : pieces;
  }

  bool progress() override {
    if (queue_.empty() || queue_.front().get() != this || segment.failure().code != kNcclSuccess) return false;
    bool moved = false;
    if (!begun_) {
      begun_ = moved = true;
      first_ = own().steps.load();
      own().calls[first_ & 1] = call_of(signature_, given_);
      write(0);
    }
    while (!finished_ && all_have_written()) {
      moved = true;
      if (step_ == 0 && !agree()) return true;
      read(step_);
      if (++step_ == steps_) finished_ = true;
      else write(step_);
    }
    if (finished_) {
      done = complete();
      if (done || failed.code != kNcclSuccess) { /* the next one can begin */
        queue_.pop_front();
        return true;
      }
    }
    return moved;
  }

  bool awaits(int other) const override { return begun_ && segment.member(other).steps.load() <= first_ + step_; }

  std::string missing() const override {
    std::string names;
    for (int other = 0; other < segment.ranks(); ++other) {
      if (awaits(other)) names += text(names.empty() ? "rank " : ", ", other);
    }
    return text(names.empty() ? "the others" : names, " to call ", signature_text(signature_));
  }

 protected:
  /* After the last step; whether that is all. */
  virtual bool complete() { return true; }

  /* What a rank has called. Before the second step, for then it may go on with another call. */
  const SharedCall &call(int of) const { return segment.member(of).calls[first_ & 1]; }
  SharedMember &own() const { return segment.member(rank); }
  uint64_t first() const { return first_; }

 private:
  bool all_have_written() const {
    for (int other = 0; other < segment.ranks(); ++other) {
      if (segment.member(other).steps.load() <= first_ + step_) return false;
    }
    return true;
  }

  bool agree() {
    for (int other = 0; other < segment.ranks(); ++other) {
      const Signature theirs = signature_of(call(other));
      factors_.push_back(call(other).factor);
      const int later = std::max(rank, other), earlier = std::min(rank, other);
      if (same(theirs, signature_)) {
        const std::string difference = symmetric_difference(earlier, call(earlier).places, later, call(later).places);
        if (difference.empty()) continue;
        segment.fail(kNcclInvalidUsage, text(signature_text(signature_), ": ", difference));
        return false;
      }
      segment.fail(kNcclInvalidUsage, text("Ranks disagree about a collective: rank ", earlier, " called ",
                                           signature_text(earlier == rank ? signature_ : theirs), ", rank ", later,
                                           " called ", signature_text(later == rank ? signature_ : theirs)));
      return false;
    }
    return true;
  }

  size_t elements(uint64_t piece) const { return std::min<size_t>(piece_, signature_.count - piece * piece_); }
  char *slot(int of, uint64_t step) const { return segment.slot(of, first_ + step); }
  bool is_root() const { return rank == signature_.root; }

  const char *send(size_t element) const { return static_cast<const char *>(given_.send) + element * size_; }
  char *receive(size_t element) const { return static_cast<char *>(given_.receive) + element * size_; }

  std::vector<Source> sources(uint64_t step, size_t offset) const {
    std::vector<Source> all;
    for (int other = 0; other < segment.ranks(); ++other) {
      all.push_back({slot(other, step) + offset * size_, factors_[static_cast<size_t>(other)]});
    }
    return all;
  }

  /* Where the part of a piece begins that a rank reduces for all. */
  size_t share(size_t count, int of) const {
    return count * static_cast<size_t>(of) / static_cast<size_t>(segment.ranks());
  }

  void write(uint64_t step) {
    if (signature_.count > 0) write_piece(step);
    own().steps.store(first_ + step + 1);
    if (all_have_written()) segment.ring_all();
  }

  void write_piece(uint64_t step) {
    const bool reducing_for_all = signature_.kind == Collective::AllReduce;
    const uint64_t piece = reducing_for_all ? step / 2 : step;
    const size_t count = elements(piece), begin = piece * piece_;
    if (reducing_for_all && step % 2 == 1) {
      const size_t from = share(count, rank), to = share(count, rank + 1);
      if (to == from) return;
      reduce_elements(signature_.dtype, signature_.op, sources(step - 1, from), 0, static_cast<int64_t>(to - from), slot(rank, step));
    } else if (signature_.kind != Collective::Split && (is_root() || !root_writes(signature_.kind))) {
      const int targets = by_target(signature_.kind) ? segment.ranks() : 1;
      for (int to = 0; to < targets; ++to) {
        const size_t place = static_cast<size_t>(to);
        copy_bytes(slot(rank, step) + place * piece_ * size_, send(place * signature_.count + begin), count * size_);
      }
    }
  }

  void read(uint64_t step) {
    if (signature_.count == 0 || (root_reads(signature_.kind) && !is_root())) return;
    const uint64_t piece = signature_.kind == Collective::AllReduce ? step / 2 : step;
    const size_t count = elements(piece), begin = piece * piece_, own_place = static_cast<size_t>(rank) * piece_;
    switch (signature_.kind) {
      case Collective::AllReduce:
        for (int from = 0; step % 2 == 1 && from < segment.ranks(); ++from) {
          const size_t first = share(count, from);
          copy_bytes(receive(begin + first), slot(from, step), (share(count, from + 1) - first) * size_);
        }
        return;
      case Collective::Reduce:
        return reduce_elements(signature_.dtype, signature_.op, sources(step, 0), 0, static_cast<int64_t>(count), receive(begin));
      case Collective::ReduceScatter:
        return reduce_elements(signature_.dtype, signature_.op, sources(step, own_place), 0, static_cast<int64_t>(count),
                               receive(begin));
      case Collective::Broadcast:
        return copy_bytes(receive(begin), slot(signature_.root, step), count * size_);
      case Collective::Scatter:
        return copy_bytes(receive(begin), slot(signature_.root, step) + own_place * size_, count * size_);
      case Collective::AllGather:
      case Collective::Gather:
      case Collective::AllToAll: {
        const size_t place = signature_.kind == Collective::AllToAll ? own_place : 0;
        for (int from = 0; from < segment.ranks(); ++from) {
          copy_bytes(receive(static_cast<size_t>(from) * signature_.count + begin), slot(from, step) + place * size_, count * size_);
        }
        return;
      }
      case Collective::Split:
        return;
    }
  }

  const Signature signature_;
  const Contribution given_;
  SharedQueue &queue_;
  const size_t size_;
  size_t piece_;   /* elements a step, for each target */
  uint64_t steps_; /* how many */
  uint64_t first_ = 0, step_ = 0;
  std::vector<Factor> factors_; /* by rank */
  bool begun_ = false, finished_ = false;
};

WorldId child_of(const WorldId &parent, uint64_t what, uint64_t number, const std::vector<int> &ranks) {
  WorldId id = parent;
  const auto mix = [&](uint64_t value) {
    for (uint64_t &word : id.words) {
      word = (word ^ value) * 0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d;
      word ^= word >> 29;
      value += 0x94d049bb133111eb;
    }
  };
  mix(what);
  mix(number);
  for (const int rank : ranks) mix(static_cast<uint64_t>(rank));
  return id;
}

/* Ranks of a communicator that join another one, in this order. */
class Child {
 public:
  Outcome join(const WorldId &id, const std::vector<int> &ranks, int rank, int device) {
    const Outcome outcome = world_to_join(id, static_cast<int>(ranks.size()), &world_);
    if (outcome.code != kNcclSuccess) return outcome;
    place_ = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    return world_->join(place_, device);
  }
  bool ready() const { return world_->all_joined(); }
  Outcome failure() const { return world_->failure(); }
  Place place() const {
    std::shared_ptr<World> settled = world_->settled();
    return {settled == nullptr ? world_ : settled, place_};
  }

 private:
  std::shared_ptr<World> world_;
  int place_ = 0;
};

class SharedSplit final : public SharedCollective {
 public:
  SharedSplit(Segment &shared, int of, const Contribution &given, const WorldId &parent, SharedQueue &calls)
      : SharedCollective(shared, of, {Collective::Split, 0, 0, 0, 0}, given, calls), color_(given.color), parent_(parent) {
    places.resize(static_cast<size_t>(shared.ranks()));
  }
  bool rings() const override { return !joining_; }

 protected:
  bool complete() override {
    if (!joining_) {
      joining_ = true;
      std::vector<std::pair<int, int>> named;
      for (int other = 0; other < segment.ranks(); ++other) named.emplace_back(call(other).color, call(other).key);
      const auto by_color = ranks_by_color(named);
      const auto found = by_color.find(color_);
      if (found == by_color.end()) return true;
      member_ = true;
      failed = child_.join(child_of(parent_, 1, first(), found->second), found->second, rank, own().device);
    }
    if (!member_) return true;
    if (failed.code == kNcclSuccess && child_.ready()) {
      places[static_cast<size_t>(rank)] = child_.place();
      return true;
    }
    if (failed.code == kNcclSuccess) failed = child_.failure();
    return false;
  }

 private:
  const int color_;
  const WorldId parent_;
  Child child_;
  bool joining_ = false, member_ = false;
};

class SharedShrink final : public SharedPending {
 public:
  SharedShrink(Segment &shared, int of, const std::vector<int> &excluded, const WorldId &parent, uint64_t number)
      : SharedPending(shared, of) {
    outlives_failure = true;
    places.resize(static_cast<size_t>(shared.ranks()));
    for (int other = 0; other < shared.ranks(); ++other) {
      if (std::find(excluded.begin(), excluded.end(), other) == excluded.end()) staying_.push_back(other);
    }
    failed = child_.join(child_of(parent, 2, number, staying_), staying_, rank, shared.member(rank).device);
  }

  bool progress() override {
    if (!child_.ready()) {
      failed = child_.failure();
      return false;
    }
    places[static_cast<size_t>(rank)] = child_.place();
    return done = true;
  }
  bool awaits(int) const override { return false; }
  bool rings() const override { return false; }
  std::string missing() const override { return "those that stay to call Shrink"; }

 private:
  std::vector<int> staying_;
  Child child_;
};

}  // namespace

std::shared_ptr<SharedPending> shared_collective(Segment &segment, int rank, const Signature &signature,
                                                 const Contribution &given, SharedQueue &queue) {
  return std::make_shared<SharedCollective>(segment, rank, signature, given, queue);
}

std::shared_ptr<SharedPending> shared_split(Segment &segment, int rank, const Contribution &given, const WorldId &parent,
                                            SharedQueue &queue) {
  return std::make_shared<SharedSplit>(segment, rank, given, parent, queue);
}

std::shared_ptr<SharedPending> shared_shrink(Segment &segment, int rank, const std::vector<int> &excluded,
                                             const WorldId &parent, uint64_t number) {
  return std::make_shared<SharedShrink>(segment, rank, excluded, parent, number);
}

}  // namespace chagres::reference
