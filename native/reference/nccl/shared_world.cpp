/* Worlds of ranks in several processes: joining, posting, waiting, leaving. */
#include "nccl/shared_world.h"

#include <sched.h>

#include <algorithm>
#include <new>

namespace chagres::reference {

namespace {

using Clock = std::chrono::steady_clock;

/* Looks before a rank sleeps: the others are mostly as far. */
constexpr int kEagerLooks = 20;
constexpr auto kLookForTheDead = std::chrono::milliseconds(50);
/* Where no bell rings. */
constexpr auto kPause = std::chrono::microseconds(200);

/* What the thread has posted, of all worlds. A vector: it needs no memory while it is empty. */
std::vector<std::shared_ptr<SharedPending>> &under_way() {
  thread_local std::vector<std::shared_ptr<SharedPending>> all;
  return all;
}

bool progress_all() {
  bool moved = false;
  auto &all = under_way();
  for (const auto &one : all) moved = (!one->done && one->failed.code == kNcclSuccess && one->progress()) || moved;
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto &one) { return one->done; }), all.end());
  return moved;
}

/* Communicators that ranks of this process may still join. */
std::mutex worlds_mutex;
std::map<WorldId, std::weak_ptr<SharedWorld>> &worlds() {
  static auto *map = new std::map<WorldId, std::weak_ptr<SharedWorld>>;
  return *map;
}

}  // namespace

Outcome world_to_join(const WorldId &id, int ranks, std::shared_ptr<World> *world) {
  if (ranks == 1) {
    *world = std::make_shared<ThreadWorld>(1);
    return {};
  }
  std::lock_guard<std::mutex> lock(worlds_mutex);
  for (auto entry = worlds().begin(); entry != worlds().end();) {
    entry = entry->second.expired() ? worlds().erase(entry) : std::next(entry);
  }
  std::weak_ptr<SharedWorld> &known = worlds()[id];
  std::shared_ptr<SharedWorld> found = known.lock();
  if (found == nullptr) known = found = std::make_shared<SharedWorld>(id, ranks);
  if (found->ranks() != ranks) {
    return {kNcclInvalidArgument, text("argument \"nranks\" is ", ranks, ", another rank says ", found->ranks())};
  }
  *world = std::move(found);
  return {};
}

SharedWorld::UnderWay::~UnderWay() {
  for (const auto &one : under_way()) {
    try {
      if (one->failed.code != kNcclSuccess || one->segment.failure().code != kNcclSuccess) continue;
      one->segment.fail(kNcclInternalError, "A rank has given up what it had begun");
    } catch (const std::bad_alloc &) { /* the others run into their timeout */
    }
  }
  under_way().clear();
}

SharedWorld::SharedWorld(const WorldId &id, int ranks)
    : id_(id), threads_(std::make_shared<ThreadWorld>(ranks)), locals_(static_cast<size_t>(ranks)) {
  why_no_segment_ = Segment::open(id, ranks, &segment_);
}

Outcome SharedWorld::join(int rank, int device) {
  if (why_no_segment_.code == kNcclInvalidArgument && ranks() <= Segment::kMostRanks) return why_no_segment_;
  const Outcome outcome = threads_->join(rank, device);
  if (segment_ == nullptr) return outcome;
  if (outcome.code == kNcclSuccess) return segment_->join(rank, device);
  const Outcome failure = threads_->failure();
  return failure.code == kNcclSuccess ? outcome : segment_->fail(failure.code, failure.text);
}

bool SharedWorld::all_joined() { return segment_ != nullptr ? segment_->is_ready() : threads_->all_joined(); }

std::shared_ptr<World> SharedWorld::settled() {
  if (threads_->all_joined()) return threads_;
  return nullptr;
}

Outcome SharedWorld::wait_for_all_to_join(int rank) {
  if (segment_ == nullptr) {
    Outcome outcome = threads_->wait_for_all_to_join(rank);
    if (outcome.code != kNcclSuccess) outcome.text += text("; other processes cannot: ", why_no_segment_.text);
    return outcome;
  }
  const auto begin = Clock::now();
  while (!segment_->is_ready()) {
    const uint32_t bell = segment_->bell(rank);
    if (segment_->failure().code != kNcclSuccess) break;
    if (Clock::now() - begin > collective_timeout()) {
      segment_->fail(kNcclRemoteError, text("Waited ", collective_timeout().count(), " s for rank ", absent(), " to join"));
      break;
    }
    segment_->look_for_the_dead();
    ++segment_->member(rank).sleeping;
    if (!segment_->is_ready()) segment_->sleep(rank, bell, kLookForTheDead);
    --segment_->member(rank).sleeping;
  }
  /* Another rank may have gone on, and failed, before this one woke up: joining itself succeeded. */
  return segment_->is_ready() ? Outcome{} : segment_->failure();
}

std::string SharedWorld::absent() const {
  std::string missing;
  for (int rank = 0; rank < segment_->ranks(); ++rank) {
    if (segment_->member(rank).state.load() == kAbsent) missing += text(missing.empty() ? "" : ", ", rank);
  }
  return missing;
}

/* Why a rank cannot post. `peer`: the one other that it needs, or -1 for all. */
Outcome SharedWorld::refusal(int rank, const std::string &call, int peer) {
  if (segment_ == nullptr || !segment_->is_ready()) return {kNcclInvalidUsage, "Not all ranks have joined the communicator"};
  const Outcome failed = segment_->failure();
  if (failed.code != kNcclSuccess) return failed;
  for (int other = 0; other < ranks(); ++other) {
    if ((peer >= 0 && other != peer) || segment_->member(other).state.load() != kLeft) continue;
    return segment_->fail(kNcclRemoteError, text("Rank ", other, " has destroyed its communicator; rank ", rank, call));
  }
  return {};
}

Outcome SharedWorld::post(int rank, const Signature &signature, const Contribution &given,
                          std::shared_ptr<Pending> *pending) {
  const Outcome outcome = refusal(rank, text(" called ", signature_text(signature)), -1);
  if (outcome.code != kNcclSuccess) return outcome;
  SharedQueue &queue = local(rank).collectives;
  const auto made = signature.kind == Collective::Split ? shared_split(*segment_, rank, given, id_, queue)
                                                        : shared_collective(*segment_, rank, signature, given, queue);
  under_way().push_back(made);
  queue.push_back(made);
  *pending = made;
  made->progress();
  return {};
}

Outcome SharedWorld::post_send(int rank, int peer, const void *send, size_t count, int dtype,
                               std::shared_ptr<Pending> *pending) {
  const Outcome outcome = refusal(rank, " sends to it", peer);
  if (outcome.code != kNcclSuccess) return outcome;
  SharedQueue &queue = local(rank).sends[peer];
  const auto made = shared_transfer(*segment_, rank, peer, true, send, nullptr, count, dtype, queue);
  under_way().push_back(made);
  queue.push_back(made);
  *pending = made;
  return {};
}

Outcome SharedWorld::post_receive(int rank, int peer, void *receive, size_t count, int dtype,
                                  std::shared_ptr<Pending> *pending) {
  const Outcome outcome = refusal(rank, " receives from it", peer);
  if (outcome.code != kNcclSuccess) return outcome;
  SharedQueue &queue = local(rank).receives[peer];
  const auto made = shared_transfer(*segment_, rank, peer, false, nullptr, receive, count, dtype, queue);
  under_way().push_back(made);
  queue.push_back(made);
  *pending = made;
  return {};
}

Outcome SharedWorld::post_shrink(int rank, const std::vector<int> &excluded, bool abort,
                                 std::shared_ptr<Pending> *pending) {
  const Outcome failed = failure();
  if (!abort && failed.code != kNcclSuccess) return failed;
  if (segment_ == nullptr) return {kNcclInvalidUsage, "Not all ranks have joined the communicator"};
  if (abort) segment_->fail(kNcclRemoteError, text("Rank ", rank, " shrank the communicator and ended what was under way"));
  const auto made = shared_shrink(*segment_, rank, excluded, id_, local(rank).shrinks[excluded]++);
  under_way().push_back(made);
  *pending = made;
  return {};
}

Outcome SharedWorld::wait(int rank, const std::shared_ptr<Pending> &pending) try {
  auto &mine = static_cast<SharedPending &>(*pending);
  SharedMember &own = segment_->member(rank);
  auto since = Clock::now(), looked = since;
  for (int look = 0;; ++look) {
    const bool sleepy = look >= kEagerLooks;
    const uint32_t bell = segment_->bell(rank);
    if (sleepy) ++own.sleeping;
    const bool moved = progress_all();
    const bool ended = mine.done || mine.failed.code != kNcclSuccess || is_abandoned() ||
                       (!mine.outlives_failure && segment_->failure().code != kNcclSuccess);
    if (sleepy && !moved && !ended) {
      const auto &all = under_way();
      const bool rings = std::all_of(all.begin(), all.end(), [&](const auto &one) {
        return &one->segment == segment_.get() && one->rank == rank && one->rings();
      });
      segment_->sleep(rank, bell, rings ? kLookForTheDead : kPause);
    }
    if (sleepy) --own.sleeping;
    if (mine.done) return {};
    if (mine.failed.code != kNcclSuccess) return mine.failed;
    if (ended && segment_->failure().code != kNcclSuccess) return segment_->failure();
    if (ended) return abandoned_outcome();
    const auto now = Clock::now();
    if (moved) {
      since = now;
      look = 0;
    } else if (now - since > collective_timeout()) {
      return segment_->fail(kNcclRemoteError, text("Rank ", rank, " waited ", collective_timeout().count(), " s for ",
                                                   mine.missing()));
    } else if (now - looked > kLookForTheDead) {
      looked = now;
      look_at_the_others(mine);
    } else if (!sleepy) {
      sched_yield();
    }
  }
} catch (const std::exception &exception) { /* the others wait for this */
  return segment_->fail(kNcclInternalError, text("Rank ", rank, ": ", exception.what()));
}

void SharedWorld::look_at_the_others(const SharedPending &pending) {
  segment_->look_for_the_dead();
  for (int other = 0; other < ranks(); ++other) {
    if (segment_->member(other).state.load() != kLeft || !pending.awaits(other)) continue;
    segment_->fail(kNcclRemoteError, text("Rank ", other, " destroyed its communicator while others wait for it"));
  }
}

void SharedWorld::revoke(int rank) {
  const std::string text_of = text("Rank ", rank, " revoked the communicator");
  if (segment_ != nullptr) segment_->fail(kNcclRemoteError, text_of);
  if (segment_ == nullptr || threads_->all_joined()) threads_->revoke(rank); /* others may have settled there */
}

void SharedWorld::leave(int rank, bool aborted) {
  if (segment_ == nullptr || threads_->all_joined()) threads_->leave(rank, aborted); /* others may have settled there */
  if (segment_ == nullptr) return;
  SharedMember &own = segment_->member(rank);
  own.state.store(kLeft);
  if (aborted) {
    segment_->fail(kNcclRemoteError, text("Rank ", rank, " aborted the communicator"));
    return;
  }
  bool awaited = !segment_->is_ready();
  for (int other = 0; segment_->is_ready() && other < ranks(); ++other) {
    const SharedChannel &to = segment_->channel(other, rank), &from = segment_->channel(rank, other);
    awaited = awaited || segment_->member(other).steps.load() > own.steps.load() ||
              to.sends.load() > to.completed.load() || from.receives.load() > from.completed.load();
  }
  if (awaited) {
    segment_->fail(kNcclRemoteError, text("Rank ", rank, " destroyed its communicator while others wait for it"));
  }
}

Outcome SharedWorld::failure() {
  if (segment_ == nullptr) return threads_->failure();
  if (segment_->is_ready()) segment_->look_for_the_dead();
  return segment_->failure();
}

}  // namespace chagres::reference
