/*
 * What ranks in several processes of one host share: who has joined, how far each has come, what failed, and room for their data.
 * It is a file in /dev/shm that only this user can open, and that has no name any more once all ranks have joined.
 *
 * A rank's process holds a lock of the file for it. The kernel gives the lock up when the process ends, however it ends.
 */
#ifndef CHAGRES_SEGMENT_H
#define CHAGRES_SEGMENT_H

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "nccl/world.h"

namespace chagres::reference {

/* Names a communicator. */
struct WorldId {
  uint64_t words[2];
  bool operator<(const WorldId &other) const {
    return words[0] != other.words[0] ? words[0] < other.words[0] : words[1] < other.words[1];
  }
};

/* The first of what a rank writes for a collective. */
struct SharedCall {
  int32_t kind, dtype, op, root;
  uint64_t count;
  Factor factor;
  int32_t color, key;
  SymmetricPlaces places;
};

struct alignas(64) SharedMember {
  std::atomic<uint32_t> state; /* MemberState */
  int32_t device, process;
  std::atomic<uint32_t> bell, sleeping;
  std::atomic<uint64_t> steps; /* that it has written */
  SharedCall calls[2];         /* by the parity of a collective's first step */
};
enum MemberState : uint32_t { kAbsent = 0, kJoined, kLeft };

/* From one rank to another. Numbers count from the beginning, transfers the first three, blocks of data the others. */
struct alignas(64) SharedChannel {
  std::atomic<uint64_t> sends, receives, completed;
  std::atomic<uint64_t> written, read;
  uint64_t count; /* of the latest send */
  int32_t dtype;
};

struct alignas(64) SharedHeader {
  std::atomic<uint32_t> magic;
  uint32_t ranks;
  std::atomic<uint32_t> ready;   /* all have joined */
  std::atomic<uint32_t> failing; /* 0, 1 while the text is written, 2 */
  int32_t code;
  char text[768];
};

class Segment {
 public:
  static constexpr int kMostRanks = 64;

  /* Opens or makes the one of this communicator. */
  static Outcome open(const WorldId &id, int ranks, std::unique_ptr<Segment> *out);
  Segment(const Segment &) = delete;
  Segment &operator=(const Segment &) = delete;
  ~Segment();

  Outcome join(int rank, int device);
  bool is_ready() const { return header().ready.load() != 0; }

  int ranks() const { return ranks_; }
  SharedMember &member(int rank) const { return members_[rank]; }
  SharedChannel &channel(int from, int to) const { return channels_[from * ranks_ + to]; }

  /* Where a rank writes its step: two places take turns. */
  char *slot(int rank, uint64_t step) const { return slots_ + (static_cast<size_t>(rank) * 2 + (step & 1)) * slot_bytes_; }
  size_t slot_bytes() const { return slot_bytes_; }
  char *block(int from, int to, uint64_t number) const {
    return blocks_ + ((static_cast<size_t>(from) * static_cast<size_t>(ranks_) + static_cast<size_t>(to)) * 2 + (number & 1)) * block_bytes_;
  }
  size_t block_bytes() const { return block_bytes_; }

  /* The first failure stays. */
  Outcome fail(int code, const std::string &text);
  Outcome failure() const;

  /* Fails when a rank's process has ended without leaving. */
  void look_for_the_dead();

  void ring(int rank);
  void ring_all();
  uint32_t bell(int rank) const { return member(rank).bell.load(); }
  /* Sleeps until the rank's bell has another value, or some time has passed. */
  void sleep(int rank, uint32_t value, std::chrono::microseconds most);

 private:
  Segment(int ranks, std::string path, int file);
  SharedHeader &header() const { return *static_cast<SharedHeader *>(memory_); }
  Outcome begin();
  Outcome reserve(size_t bytes);

  int ranks_;
  std::string path_;
  int file_;
  void *memory_ = nullptr;
  size_t control_bytes_, slot_bytes_, block_bytes_, bytes_;
  SharedMember *members_ = nullptr;
  SharedChannel *channels_ = nullptr;
  char *slots_ = nullptr, *blocks_ = nullptr;
  std::mutex joining_; /* the lock of a file keeps other processes away, but not the threads of this one */
  std::vector<std::atomic<bool>> own_; /* ranks of this process; each is set before the rank's state */
};

}  // namespace chagres::reference

#endif /* CHAGRES_SEGMENT_H */
