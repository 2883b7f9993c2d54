/* Communicators that are made from others: split, shrunk; and those that are revoked to get there. */
#include <algorithm>
#include <map>

#include "nccl/nccl.h"

namespace chagres::reference {

namespace {

constexpr int kNoColor = -1;
constexpr int kShrinkAbort = 1;

/* Makes a world of these ranks, in this order, and sets their places in it. */
void settle(const std::vector<int> &ranks, const std::vector<int> &devices, std::vector<Place> *places) {
  const auto world = std::make_shared<ThreadWorld>(devices);
  for (size_t i = 0; i < ranks.size(); ++i) (*places)[static_cast<size_t>(ranks[i])] = {world, static_cast<int>(i)};
}

/* The communicator that a split or shrink gives to the caller, NULL where it has no part in it. It is ready when the parent's call is done. */
std::function<void(const Pending &)> hand_over(Comm *parent, void **handle, bool blocking) {
  const int rank = parent->rank, device = parent->device;
  /* Allocated before other ranks are told, so that it cannot fail later. */
  const auto made = std::make_shared<NewComm>(Comm{nullptr, 0, device, false, kNcclOps, {}});
  return [=](const Pending &done) {
    const Place &place = done.places[static_cast<size_t>(rank)];
    if (place.world == nullptr) return;
    Comm *comm = made->release();
    comm->world = place.world;
    comm->rank = place.rank;
    comm->blocking = blocking;
    if (parent->blocking) {
      *handle = comm;
    } else {
      parent->results.emplace_back(handle, comm);
    }
  };
}

/* As NCCL 2.28.9, answers success for a call that is in progress: only ncclCommGetAsyncError of the parent says when it is done. */
int begun(Deferred operation) {
  const int code = submit(std::move(operation));
  return code == kNcclInProgress ? static_cast<int>(kNcclSuccess) : code;
}

Outcome check_excluded(const int *excluded, int count, const Comm &comm) {
  const int ranks = comm.world->ranks();
  if (count < 1 || count >= ranks || excluded == nullptr) {
    return {kNcclInvalidArgument,
            text("argument \"excludeRanksCount\" must be 1 to ", ranks - 1, ", got ", excluded == nullptr ? 0 : count)};
  }
  for (int i = 0; i < count; ++i) {
    if (excluded[i] < 0 || excluded[i] >= ranks || std::count(excluded, excluded + count, excluded[i]) > 1) {
      return {kNcclInvalidArgument, text("argument \"excludeRanksList\" must have ranks below ", ranks,
                                         ", each once, got ", excluded[i], " at ", i)};
    }
    if (excluded[i] == comm.rank) {
      return {kNcclInvalidArgument, text("argument \"excludeRanksList\" has the caller's own rank, ", comm.rank)};
    }
  }
  return {};
}

}  // namespace

std::map<int, std::vector<int>> ranks_by_color(const std::vector<std::pair<int, int>> &colors_and_keys) {
  std::map<int, std::vector<int>> by_color;
  for (size_t rank = 0; rank < colors_and_keys.size(); ++rank) {
    const int color = colors_and_keys[rank].first;
    if (color != kNoColor) by_color[color].push_back(static_cast<int>(rank));
  }
  for (auto &[color, all] : by_color) {
    std::stable_sort(all.begin(), all.end(), [&](int a, int b) {
      return colors_and_keys[static_cast<size_t>(a)].second < colors_and_keys[static_cast<size_t>(b)].second;
    });
  }
  return by_color;
}

ThreadWorld::ThreadWorld(const std::vector<int> &devices) : members_(devices.size()), joined_(static_cast<int>(devices.size())) {
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    members_[rank].joined = true;
    members_[rank].device = devices[rank];
  }
}

void ThreadWorld::split(Round &round) const {
  round.places.resize(members_.size());
  std::vector<std::pair<int, int>> named;
  for (const Contribution &given : round.given) named.emplace_back(given.color, given.key);
  for (const auto &[color, all] : ranks_by_color(named)) {
    std::vector<int> devices;
    for (const int rank : all) devices.push_back(members_[static_cast<size_t>(rank)].device);
    settle(all, devices, &round.places);
  }
}

Outcome ThreadWorld::post_shrink(int rank, const std::vector<int> &excluded, bool abort, std::shared_ptr<Pending> *pending) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!abort && failure_.code != kNcclSuccess) return failure_;
  if (abort) fail_all(kNcclRemoteError, text("Rank ", rank, " shrank the communicator and ended what was under way"));
  auto waiting = std::find_if(shrinks_.begin(), shrinks_.end(), [&](const auto &entry) {
    return entry->excluded == excluded && !entry->posted[static_cast<size_t>(rank)];
  });
  if (waiting == shrinks_.end()) {
    auto made = std::make_shared<Shrink>();
    made->outlives_failure = true;
    made->excluded = excluded;
    made->posted.resize(members_.size());
    made->places.resize(members_.size());
    waiting = shrinks_.insert(shrinks_.end(), std::move(made));
  }
  const std::shared_ptr<Shrink> shrink = *waiting;
  shrink->posted[static_cast<size_t>(rank)] = true;
  *pending = shrink;
  if (++shrink->arrived < ranks() - static_cast<int>(excluded.size())) return {};
  std::vector<int> staying, devices;
  for (int other = 0; other < ranks(); ++other) {
    if (!shrink->posted[static_cast<size_t>(other)]) continue;
    staying.push_back(other);
    devices.push_back(members_[static_cast<size_t>(other)].device);
  }
  settle(staying, devices, &shrink->places);
  shrink->done = true;
  shrinks_.erase(waiting);
  changed_.notify_all();
  return {};
}

void ThreadWorld::revoke(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  fail_all(kNcclRemoteError, text("Rank ", rank, " revoked the communicator"));
}

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT ncclResult_t ncclCommSplit(const void *handle, int color, int key, void **made, const void *config) try {
  constexpr const char *kFunction = "ncclCommSplit";
  Comm *comm = comms().find(handle);
  if (comm == nullptr) {
    return refuse_in_group(kNcclInvalidArgument, kFunction, ": argument \"comm\" is no living communicator");
  }
  const Outcome ready = check_ready(*comm);
  if (ready.code != kNcclSuccess) return refuse_in_group(ready.code, kFunction, ": ", ready.text);
  if (made == nullptr) return refuse_in_group(kNcclInvalidArgument, kFunction, ": argument \"newcomm\" is NULL");
  *made = nullptr;
  if (color < kNoColor) {
    return refuse_in_group(kNcclInvalidArgument, kFunction, ": argument \"color\" must be at least 0, or -1 for no part, got ",
                           color);
  }
  if (comm->finalized) return refuse_in_group(kNcclInvalidUsage, kFunction, ": the communicator was finalized");
  const Outcome outcome = check_config(config);
  if (outcome.code != kNcclSuccess) return refuse_in_group(outcome.code, kFunction, ": ", outcome.text);
  Contribution given;
  given.color = color;
  given.key = key;
  return begun({comm, [=](std::shared_ptr<Pending> *pending) {
                   return comm->world->post(comm->rank, {Collective::Split, 0, 0, 0, 0}, given, pending);
                 },
                 nullptr, hand_over(comm, made, is_blocking(config, comm->blocking))});
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommShrink(const void *handle, const int *excluded, int count, void **made,
                                           const void *config, int flags) try {
  constexpr const char *kFunction = "ncclCommShrink";
  Comm *comm = comms().find(handle);
  if (comm == nullptr) {
    return refuse_in_group(kNcclInvalidArgument, kFunction, ": argument \"comm\" is no living communicator");
  }
  const Outcome ready = check_ready(*comm);
  if (ready.code != kNcclSuccess) return refuse_in_group(ready.code, kFunction, ": ", ready.text);
  if (made == nullptr) return refuse_in_group(kNcclInvalidArgument, kFunction, ": argument \"newcomm\" is NULL");
  *made = nullptr;
  if (flags != 0 && flags != kShrinkAbort) {
    return refuse_in_group(kNcclInvalidArgument, kFunction, ": argument \"shrinkFlags\" must be 0 or 1, got ", flags);
  }
  Outcome outcome = check_config(config);
  if (outcome.code == kNcclSuccess) outcome = check_excluded(excluded, count, *comm);
  if (outcome.code != kNcclSuccess) return refuse_in_group(outcome.code, kFunction, ": ", outcome.text);
  std::vector<int> sorted(excluded, excluded + count);
  std::sort(sorted.begin(), sorted.end());
  return begun({comm, [=](std::shared_ptr<Pending> *pending) {
                   return comm->world->post_shrink(comm->rank, sorted, flags == kShrinkAbort, pending);
                 },
                 nullptr, hand_over(comm, made, is_blocking(config, comm->blocking))});
} CHAGRES_NCCL_CATCH

/* Ends what waits on this communicator. On a GPU each rank revokes its own part; here one call reaches all ranks. */
CHAGRES_EXPORT ncclResult_t ncclCommRevoke(const void *handle, int flags) try {
  Comm *comm = comms().find(handle);
  if (comm == nullptr) return refuse(kNcclInvalidArgument, "ncclCommRevoke: argument \"comm\" is no living communicator");
  if (flags != 0) return refuse(kNcclInvalidArgument, "ncclCommRevoke: argument \"revokeFlags\" must be 0, got ", flags);
  comm->world->revoke(comm->rank);
  if (comm->blocking) return kNcclSuccess;
  stop(comm);
  comm->failed = {};
  return in_progress(comm, Outcome{});
} CHAGRES_NCCL_CATCH
