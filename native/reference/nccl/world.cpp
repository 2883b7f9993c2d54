/* Worlds of ranks: joining, posting, waiting, failing together. */
#include "nccl/world.h"

#include <algorithm>
#include <cstdlib>

namespace chagres::reference {

namespace {

const char *const kDtypeNames[] = {"int8",    "uint8",   "int32",   "uint32",   "int64",      "uint64",
                                   "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
const char *const kOpNames[] = {"sum", "prod", "max", "min", "avg", "pre-multiplied sum"};

bool has_root(Collective kind) {
  return kind == Collective::Broadcast || kind == Collective::Reduce || kind == Collective::Gather ||
         kind == Collective::Scatter;
}

bool reduces(Collective kind) {
  return kind == Collective::AllReduce || kind == Collective::Reduce || kind == Collective::ReduceScatter;
}

void copy(void *target, const void *source, size_t bytes) {
  if (target != source && bytes > 0) std::memmove(target, source, bytes);
}

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

const char *nccl_dtype_name(int dtype) { return kDtypeNames[dtype]; }

bool same(const Signature &a, const Signature &b) {
  return a.kind == b.kind && a.count == b.count && a.dtype == b.dtype && (!reduces(a.kind) || a.op == b.op) &&
         (!has_root(a.kind) || a.root == b.root);
}

std::string signature_text(const Signature &signature) {
  if (signature.kind == Collective::Split) return collective_name(signature.kind);
  std::string out = text(collective_name(signature.kind), " of ", signature.count, " ", kDtypeNames[signature.dtype]);
  if (reduces(signature.kind)) out += text(", ", kOpNames[signature.op]);
  if (has_root(signature.kind)) out += text(", root ", signature.root);
  return out;
}

std::string symmetric_difference(int rank, const SymmetricPlaces &places, int other, const SymmetricPlaces &others) {
  if (places.send == others.send && places.receive == others.receive) return "";
  const auto side = [](const SymmetricPlaces &of) {
    const WindowPlace &place = of.receive.window != 0 ? of.receive : of.send;
    return place.window == 0 ? std::string("no window") : text("window ", place.window, " at byte ", place.offset);
  };
  return text("symmetric memory must lie at the same place of the same window on all ranks: rank ", rank, " has ",
              side(places), ", rank ", other, " has ", side(others));
}

const char *collective_name(Collective kind) {
  static const char *const names[] = {"AllReduce", "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AlltoAll",
                                      "Gather",    "Scatter",   "Split"};
  return names[static_cast<int>(kind)];
}

std::chrono::seconds collective_timeout() {
  static const std::chrono::seconds timeout = [] {
    const char *wanted = std::getenv("CHAGRES_REFERENCE_NCCL_TIMEOUT");
    const long seconds = wanted == nullptr ? 0 : std::strtol(wanted, nullptr, 10);
    return std::chrono::seconds(seconds > 0 ? seconds : 330);
  }();
  return timeout;
}

Outcome ThreadWorld::fail_all(int code, const std::string &text) {
  if (failure_.code == kNcclSuccess) failure_ = {code, text};
  changed_.notify_all();
  return failure_;
}

Outcome ThreadWorld::failure() {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

Outcome ThreadWorld::join(int rank, int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.code != kNcclSuccess) return failure_;
  Member &member = members_[static_cast<size_t>(rank)];
  if (member.joined) return {kNcclInvalidArgument, text("Rank ", rank, " has joined this communicator already")};
  for (size_t other = 0; other < members_.size(); ++other) {
    if (members_[other].joined && members_[other].device == device) {
      return fail_all(kNcclInvalidUsage, text("Ranks ", other, " and ", rank, " both use device ", device,
                                              ": each rank needs a device of its own"));
    }
  }
  member.joined = true;
  member.device = device;
  if (++joined_ == ranks()) changed_.notify_all();
  return {};
}

Outcome ThreadWorld::wait_for_all_to_join(int) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ready = [&] { return joined_ == ranks() || failure_.code != kNcclSuccess; };
  if (!changed_.wait_for(lock, collective_timeout(), ready)) {
    std::string missing;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      if (!members_[rank].joined) missing += text(missing.empty() ? "" : ", ", rank);
    }
    return fail_all(kNcclRemoteError, text("Waited ", collective_timeout().count(), " s for rank ", missing, " to join"));
  }
  /* Another rank may have gone on, and failed, before this one woke up: joining itself succeeded. */
  return joined_ == ranks() ? Outcome{} : failure_;
}

bool ThreadWorld::all_joined() {
  std::lock_guard<std::mutex> lock(mutex_);
  return joined_ == ranks();
}

Outcome ThreadWorld::post(int rank, const Signature &signature, const Contribution &given, std::shared_ptr<Pending> *pending) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (failure_.code != kNcclSuccess) return failure_;
  for (size_t other = 0; other < members_.size(); ++other) {
    if (members_[other].left) {
      return fail_all(kNcclRemoteError, text("Rank ", other, " has destroyed its communicator; rank ", rank, " called ",
                                             signature_text(signature)));
    }
  }
  uint64_t &next_round = members_[static_cast<size_t>(rank)].next_round;
  const uint64_t number = next_round;
  while (first_round_ + rounds_.size() <= number) {
    auto round = std::make_shared<Round>();
    round->given.resize(members_.size());
    round->posted.resize(members_.size());
    rounds_.push_back(std::move(round));
  }
  ++next_round;
  const std::shared_ptr<Round> round = rounds_[number - first_round_];
  if (round->arrived == 0) {
    round->signature = signature;
  } else if (!same(round->signature, signature)) {
    return fail_all(kNcclInvalidUsage, text("Ranks disagree about collective ", number, ": one called ",
                                            signature_text(round->signature), ", rank ", rank, " called ",
                                            signature_text(signature)));
  }
  round->given[static_cast<size_t>(rank)] = given;
  round->posted[static_cast<size_t>(rank)] = true;
  *pending = round;
  if (++round->arrived < ranks()) return {};
  for (int other = 1; other < ranks(); ++other) {
    const std::string difference =
        symmetric_difference(0, round->given[0].places, other, round->given[static_cast<size_t>(other)].places);
    if (!difference.empty()) return fail_all(kNcclInvalidUsage, text(signature_text(signature), ": ", difference));
  }
  lock.unlock();
  try {
    compute(*round);
  } catch (const std::exception &exception) { /* the others wait for this */
    lock.lock();
    return fail_all(kNcclInternalError, text(signature_text(signature), ": ", exception.what()));
  }
  lock.lock();
  round->done = true;
  while (!rounds_.empty() && rounds_.front()->done) {
    rounds_.pop_front();
    ++first_round_;
  }
  changed_.notify_all();
  return {};
}

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
      for (void *target : targets) copy(target, given[root].send, bytes);
      return;
    case Collective::AllGather:
      for (void *target : targets) {
        for (size_t from = 0; from < ranks; ++from) copy(at(target, from * bytes), given[from].send, bytes);
      }
      return;
    case Collective::AllToAll:
      for (size_t rank = 0; rank < ranks; ++rank) {
        for (size_t from = 0; from < ranks; ++from) {
          copy(at(targets[rank], from * bytes), at(given[from].send, rank * bytes), bytes);
        }
      }
      return;
    case Collective::Gather:
      for (size_t from = 0; from < ranks; ++from) copy(at(targets[root], from * bytes), given[from].send, bytes);
      return;
    case Collective::Scatter:
      for (size_t rank = 0; rank < ranks; ++rank) copy(targets[rank], at(given[root].send, rank * bytes), bytes);
      return;
    case Collective::Split:
      return split(round);
  }
}

Outcome ThreadWorld::post_send(int rank, int peer, const void *send, size_t count, int dtype,
                         std::shared_ptr<Pending> *pending) {
  return post_transfer(rank, peer, true, send, nullptr, count, dtype, pending);
}

Outcome ThreadWorld::post_receive(int rank, int peer, void *receive, size_t count, int dtype,
                            std::shared_ptr<Pending> *pending) {
  return post_transfer(peer, rank, false, nullptr, receive, count, dtype, pending);
}

Outcome ThreadWorld::post_transfer(int from, int to, bool sending, const void *source, void *target, size_t count, int dtype,
                             std::shared_ptr<Pending> *pending) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.code != kNcclSuccess) return failure_;
  const int peer = sending ? to : from;
  if (members_[static_cast<size_t>(peer)].left) {
    return fail_all(kNcclRemoteError, text("Rank ", peer, " has destroyed its communicator; rank ", sending ? from : to,
                                           sending ? " sends to it" : " receives from it"));
  }
  auto &queue = transfers_[{from, to}];
  auto waiting = std::find_if(queue.begin(), queue.end(),
                              [&](const auto &entry) { return sending ? !entry->has_source : !entry->has_target; });
  const bool matched = waiting != queue.end();
  if (!matched) waiting = queue.insert(queue.end(), std::make_shared<Transfer>());
  const std::shared_ptr<Transfer> transfer = *waiting;
  if (matched && (transfer->count != count || transfer->dtype != dtype)) {
    const auto side = [&](bool sends) {
      const bool ours = sends == sending;
      return text(ours ? count : transfer->count, " ", kDtypeNames[ours ? dtype : transfer->dtype]);
    };
    return fail_all(kNcclInvalidUsage, text("Rank ", from, " sends ", side(true), " to rank ", to, ", which receives ",
                                            side(false)));
  }
  transfer->count = count;
  transfer->dtype = dtype;
  if (sending) {
    transfer->source = source;
    transfer->has_source = true;
  } else {
    transfer->target = target;
    transfer->has_target = true;
  }
  *pending = transfer;
  if (matched) {
    copy(transfer->target, transfer->source, count * nccl_dtype_size(dtype));
    transfer->done = true;
    queue.erase(waiting);
    changed_.notify_all();
  }
  return {};
}

/* mutex_ held */
std::string ThreadWorld::missing_ranks(const std::shared_ptr<Pending> &pending) const {
  for (const auto &round : rounds_) {
    if (round != pending) continue;
    std::string missing;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      if (!round->posted[rank]) missing += text(missing.empty() ? "rank " : ", ", rank);
    }
    return text(missing, " to call ", signature_text(round->signature));
  }
  for (const auto &shrink : shrinks_) {
    if (shrink != pending) continue;
    std::string missing;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      const auto &excluded = shrink->excluded;
      const bool stays = std::find(excluded.begin(), excluded.end(), static_cast<int>(rank)) == excluded.end();
      if (stays && !shrink->posted[rank]) missing += text(missing.empty() ? "rank " : ", ", rank);
    }
    return text(missing, " to call Shrink");
  }
  for (const auto &[ends, queue] : transfers_) {
    if (std::find(queue.begin(), queue.end(), pending) == queue.end()) continue;
    const auto transfer = std::static_pointer_cast<Transfer>(pending);
    return transfer->has_source ? text("rank ", ends.second, " to receive from rank ", ends.first)
                                : text("rank ", ends.first, " to send to rank ", ends.second);
  }
  return "the others";
}

Outcome ThreadWorld::wait(int rank, const std::shared_ptr<Pending> &pending) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ready = [&] {
    return pending->done || (failure_.code != kNcclSuccess && !pending->outlives_failure);
  };
  if (!changed_.wait_for(lock, collective_timeout(), ready)) {
    return fail_all(kNcclRemoteError, text("Rank ", rank, " waited ", collective_timeout().count(), " s for ",
                                           missing_ranks(pending)));
  }
  return pending->done ? Outcome{} : failure_;
}

void ThreadWorld::leave(int rank, bool aborted) {
  std::lock_guard<std::mutex> lock(mutex_);
  Member &member = members_[static_cast<size_t>(rank)];
  member.left = true;
  if (aborted) {
    fail_all(kNcclRemoteError, text("Rank ", rank, " aborted the communicator"));
    return;
  }
  const bool awaited = std::any_of(rounds_.begin(), rounds_.end(), [&](const auto &round) {
    return !round->done && round->arrived > 0 && !round->posted[static_cast<size_t>(rank)];
  });
  const bool expected = std::any_of(transfers_.begin(), transfers_.end(), [&](const auto &entry) {
    return (entry.first.first == rank || entry.first.second == rank) && !entry.second.empty();
  });
  if (awaited || expected) {
    fail_all(kNcclRemoteError, text("Rank ", rank, " destroyed its communicator while others wait for it"));
  }
}

}  // namespace chagres::reference
