/* Transfers from one process to another, piece by piece. */
#include <algorithm>

#include "nccl/shared_world.h"

namespace chagres::reference {

namespace {

/* A data block at a time: the sender writes when the receiver has come, and is at most two ahead of it. */
class SharedTransfer final : public SharedPending {
 public:
  SharedTransfer(Segment &shared, int of, int other, bool sends, const void *source, void *target, size_t count, int dtype,
                 SharedQueue &transfers)
      : SharedPending(shared, of), peer_(other), sending_(sends), source_(static_cast<const char *>(source)),
        target_(static_cast<char *>(target)), count_(count), dtype_(dtype), bytes_(count * nccl_dtype_size(dtype)),
        queue_(transfers), channel_(sends ? shared.channel(of, other) : shared.channel(other, of)) {}

  bool progress() override {
    if (queue_.empty() || queue_.front().get() != this || segment.failure().code != kNcclSuccess) return false;
    bool moved = !begun_;
    if (!begun_) begin();
    if (sending_) {
      moved = write() || moved;
      done = channel_.completed.load() > number_;
    } else if (channel_.sends.load() > number_) {
      if (!agrees()) return true;
      moved = read() || moved;
      done = moved_ == bytes_;
      if (done) {
        channel_.completed.store(number_ + 1);
        segment.ring(peer_);
      }
    }
    if (done) queue_.pop_front();
    return moved || done;
  }

  bool awaits(int other) const override { return other == peer_ && !done; }

  std::string missing() const override {
    return sending_ ? text("rank ", peer_, " to receive from rank ", rank) : text("rank ", peer_, " to send to rank ", rank);
  }

 private:
  void begin() {
    begun_ = true;
    if (sending_) {
      channel_.count = count_;
      channel_.dtype = dtype_;
    }
    number_ = (sending_ ? channel_.sends : channel_.receives)++;
    segment.ring(peer_);
  }

  bool write() {
    bool moved = false;
    while (channel_.receives.load() > number_ && moved_ < bytes_ && channel_.written.load() < channel_.read.load() + 2) {
      const size_t piece = std::min(segment.block_bytes(), bytes_ - moved_);
      std::memcpy(segment.block(rank, peer_, channel_.written.load()), source_ + moved_, piece);
      moved_ += piece;
      ++channel_.written;
      segment.ring(peer_);
      moved = true;
    }
    return moved;
  }

  bool read() {
    bool moved = false;
    while (moved_ < bytes_ && channel_.read.load() < channel_.written.load()) {
      const size_t piece = std::min(segment.block_bytes(), bytes_ - moved_);
      std::memcpy(target_ + moved_, segment.block(peer_, rank, channel_.read.load()), piece);
      moved_ += piece;
      ++channel_.read;
      segment.ring(peer_);
      moved = true;
    }
    return moved;
  }

  bool agrees() {
    if (channel_.count == count_ && channel_.dtype == dtype_) return true;
    segment.fail(kNcclInvalidUsage, text("Rank ", peer_, " sends ", channel_.count, " ", nccl_dtype_name(channel_.dtype),
                                         " to rank ", rank, ", which receives ", count_, " ", nccl_dtype_name(dtype_)));
    return false;
  }

  const int peer_;
  const bool sending_;
  const char *source_;
  char *target_;
  const size_t count_;
  const int dtype_;
  const size_t bytes_;
  SharedQueue &queue_;
  SharedChannel &channel_;
  uint64_t number_ = 0;
  size_t moved_ = 0;
  bool begun_ = false;
};

}  // namespace

std::shared_ptr<SharedPending> shared_transfer(Segment &segment, int rank, int peer, bool sending, const void *source,
                                               void *target, size_t count, int dtype, SharedQueue &queue) {
  return std::make_shared<SharedTransfer>(segment, rank, peer, sending, source, target, count, dtype, queue);
}

}  // namespace chagres::reference
