/* Ranks that are threads of this process: joining, posting, waiting, failing together. */
#include <algorithm>

#include "nccl/world.h"

namespace chagres::reference {

namespace {

/* From 1. No later thread has it, as it may have this one's id. */
uint64_t number_of_this_thread() {
  static std::atomic<uint64_t> threads{0};
  thread_local const uint64_t number = ++threads;
  return number;
}

}  // namespace

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

void ThreadWorld::used_by_this_thread(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  members_[static_cast<size_t>(rank)].user = number_of_this_thread();
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
    const auto first = std::find(round->posted.begin(), round->posted.end(), true) - round->posted.begin();
    return fail_all(kNcclInvalidUsage, text("Ranks disagree about collective ", number + 1, ": rank ", first, " called ",
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
  round->computing = true;
  lock.unlock();
  try {
    compute(*round);
  } catch (const std::exception &exception) { /* the others wait for this */
    lock.lock();
    round->computing = false;
    return fail_all(kNcclInternalError, text(signature_text(signature), ": ", exception.what()));
  }
  lock.lock();
  round->computing = false;
  round->done = true;
  while (!rounds_.empty() && rounds_.front()->done) {
    rounds_.pop_front();
    ++first_round_;
  }
  changed_.notify_all();
  return {};
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
      return text(ours ? count : transfer->count, " ", nccl_dtype_name(ours ? dtype : transfer->dtype));
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
    copy_bytes(transfer->target, transfer->source, count * nccl_dtype_size(dtype));
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

/* mutex_ held. A rank that does not come while this thread waits, as far as anyone can tell: this thread makes its calls. -1: none. */
int ThreadWorld::awaited_of_this_thread(const std::shared_ptr<Pending> &pending) const {
  const auto is_own = [&](size_t rank) { return members_[rank].user == number_of_this_thread(); };
  for (const auto &round : rounds_) {
    for (size_t rank = 0; round == pending && rank < members_.size(); ++rank) {
      if (!round->posted[rank] && is_own(rank)) return static_cast<int>(rank);
    }
  }
  for (const auto &[ends, queue] : transfers_) {
    if (std::find(queue.begin(), queue.end(), pending) == queue.end()) continue;
    const int peer = std::static_pointer_cast<Transfer>(pending)->has_source ? ends.second : ends.first;
    if (is_own(static_cast<size_t>(peer))) return peer;
  }
  return -1;
}

Outcome ThreadWorld::wait(int rank, const std::shared_ptr<Pending> &pending) {
  std::unique_lock<std::mutex> lock(mutex_);
  /* Another thread may take the rank's calls over, but hardly after so long. */
  constexpr std::chrono::seconds kLongestForOwn{10};
  const int own = awaited_of_this_thread(pending);
  const std::chrono::seconds timeout = own < 0 ? collective_timeout() : std::min(collective_timeout(), kLongestForOwn);
  const auto ready = [&] {
    const bool given_up = is_abandoned() || (failure_.code != kNcclSuccess && !pending->outlives_failure);
    return pending->done || (given_up && !pending->computing);
  };
  /* Who abandons this does not know on what it waits. */
  const auto end = std::chrono::steady_clock::now() + timeout;
  bool ended = ready();
  while (!ended && (pending->computing || std::chrono::steady_clock::now() < end)) {
    ended = changed_.wait_for(lock, abandoned == nullptr ? std::chrono::milliseconds(timeout) : kAbandonedLook, ready);
  }
  if (!ended) {
    return fail_all(kNcclRemoteError, text("Rank ", rank, " waited ", timeout.count(), " s for ", missing_ranks(pending),
                                           own < 0 ? "" : text("; this thread, which waits, makes the calls of rank ", own,
                                           ": on the reference a call and the launch of a graph return when all ranks have "
                                           "made theirs, so give each rank a thread, or put the calls into one group")));
  }
  if (pending->done) return {};
  return failure_.code != kNcclSuccess ? failure_ : abandoned_outcome();
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
