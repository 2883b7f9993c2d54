/*
 * Rows on their way from memory: while a thread computes one row, its packs of the next ones are copied into shared memory.
 * A thread reads only what it has copied itself, so that no barrier is needed.
 */
#pragma once

#include <common.cuh>
#include <ring_stages.cuh>

/* The packs of a row that one thread keeps: pack p is number p * lanes + lane of the row. lanes is a power of two. */
template <class T, int P>
struct RowPacks {
  int first, apart; /* columns: of pack 0, and from one to the next */
  int width;        /* of the row */
  __device__ RowPacks(int lanes, int64_t columns)
      : first(static_cast<int>(threadIdx.x & (lanes - 1)) * kPack<T>),
        apart(lanes * kPack<T>),
        width(static_cast<int>(columns)) {}
  __device__ int column(int p) const { return first + p * apart; }
  __device__ bool has(int p) const { return column(p) < width; }
};

/* K tensors, P packs a thread of each row. */
template <class T, int P, int K>
class RowRing {
 public:
  /* `shared`: the ring's memory. */
  __device__ RowRing(float *shared, const RowPacks<T, P> &packs)
      : packs_(packs), mine_(shared + static_cast<int>(threadIdx.x) * 4), address_(shared_address(mine_)) {}

  /* Begins to copy a row of each tensor that is not null. */
  __device__ void ask(const T *const (&row)[K]) {
    const SharedAddress stage = address_ + asked_ * kStageBytes;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (row[k] == nullptr) continue;
#pragma unroll
      for (int p = 0; p < P; ++p)
        if (packs_.has(p)) copy_async(stage + (k * P + p) * kThreads * 16, row[k] + packs_.column(p));
    }
  }

  /* Ends what was asked for one row, be it nothing: a row past the last. */
  __device__ void asked() {
    end_copy_group();
    asked_ = next(asked_);
  }

  /* Waits for the row that was asked for first and not yet taken; kRingStages rows are asked for by then. */
  __device__ void wait() { wait_for_copy_groups<kRingStages - 1>(); }

  /* Pack p of that row of tensor k. */
  __device__ Words pack(int k, int p) const {
    return *reinterpret_cast<const Words *>(mine_ + taken_ * (kStageBytes / 4) + (k * P + p) * kThreads * 4);
  }

  /* Ends the reading of that row: its memory may be asked for again. */
  __device__ void taken() { taken_ = next(taken_); }

 private:
  static constexpr int kStageBytes = K * P * kThreads * 16;
  __device__ static int next(int stage) { return stage + 1 == kRingStages ? 0 : stage + 1; }

  const RowPacks<T, P> packs_;
  float *const mine_;
  const SharedAddress address_;
  int asked_ = 0, taken_ = 0;
};
