/*
 * Communicators whose ranks are in several processes of one host. What a rank gives goes piece by piece through memory that all share;
 * each rank computes its own results. Sums have the order, and so the bits, of those among threads.
 */
#ifndef CHAGRES_SHARED_WORLD_H
#define CHAGRES_SHARED_WORLD_H

#include <deque>

#include "nccl/segment.h"

namespace chagres::reference {

/* The world in which the ranks of a communicator join, from any process; once all have, `settled` is what they use. */
Outcome world_to_join(const WorldId &id, int ranks, std::shared_ptr<World> *world);

/* Something a rank in one of several processes does together with others, piece by piece. */
struct SharedPending : Pending {
  SharedPending(Segment &shared, int of) : segment(shared), rank(of) { driven = true; }

  /* Advances as far as the other ranks allow; returns whether it did. */
  virtual bool progress() = 0;
  /* What it waits for. */
  virtual std::string missing() const = 0;
  virtual bool awaits(int other) const = 0;
  /* Whether the others ring this rank's bell when it can go on. */
  virtual bool rings() const { return true; }

  Segment &segment;
  const int rank;
  Outcome failed; /* of this alone */
};

using SharedQueue = std::deque<std::shared_ptr<SharedPending>>;

std::shared_ptr<SharedPending> shared_collective(Segment &segment, int rank, const Signature &signature,
                                                 const Contribution &given, SharedQueue &queue);
std::shared_ptr<SharedPending> shared_transfer(Segment &segment, int rank, int peer, bool sending, const void *source,
                                               void *target, size_t count, int dtype, SharedQueue &queue);
std::shared_ptr<SharedPending> shared_split(Segment &segment, int rank, const Contribution &given, const WorldId &parent,
                                            SharedQueue &queue);
/* `number`: how many shrinks without the same ranks there were before. */
std::shared_ptr<SharedPending> shared_shrink(Segment &segment, int rank, const std::vector<int> &excluded,
                                             const WorldId &parent, uint64_t number);

class SharedWorld final : public World {
 public:
  /* At the end of its scope nothing of this thread is under way. */
  struct UnderWay {
    UnderWay() = default;
    UnderWay(const UnderWay &) = delete;
    UnderWay &operator=(const UnderWay &) = delete;
    ~UnderWay();
  };

  SharedWorld(const WorldId &id, int ranks);

  int ranks() const override { return threads_->ranks(); }
  Outcome join(int rank, int device) override;
  Outcome wait_for_all_to_join(int rank) override;
  bool all_joined() override;
  std::shared_ptr<World> settled() override;
  Outcome post(int rank, const Signature &signature, const Contribution &given, std::shared_ptr<Pending> *pending) override;
  Outcome post_send(int rank, int peer, const void *send, size_t count, int dtype,
                    std::shared_ptr<Pending> *pending) override;
  Outcome post_receive(int rank, int peer, void *receive, size_t count, int dtype,
                       std::shared_ptr<Pending> *pending) override;
  Outcome wait(int rank, const std::shared_ptr<Pending> &pending) override;
  Outcome post_shrink(int rank, const std::vector<int> &excluded, bool abort, std::shared_ptr<Pending> *pending) override;
  void revoke(int rank) override;
  void leave(int rank, bool aborted) override;
  Outcome failure() override;

 private:
  /* What a rank has posted and not finished. Its own thread alone looks at it. */
  struct Local {
    SharedQueue collectives;
    std::map<int, SharedQueue> sends, receives; /* by peer */
    std::map<std::vector<int>, uint64_t> shrinks;
  };

  Local &local(int rank) { return locals_[static_cast<size_t>(rank)]; }
  Outcome refusal(int rank, const std::string &call, int peer);
  void look_at_the_others(const SharedPending &pending);
  std::string absent() const;

  const WorldId id_;
  const std::shared_ptr<ThreadWorld> threads_; /* the ranks of this process */
  std::unique_ptr<Segment> segment_;           /* null: there can be no others */
  Outcome why_no_segment_;
  std::vector<Local> locals_;
};

}  // namespace chagres::reference

#endif /* CHAGRES_SHARED_WORLD_H */
