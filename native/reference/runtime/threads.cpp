/* The thread pool behind parallel_for, and the float buffers that each thread keeps. */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "runtime/reference.h"

namespace chagres::reference {

namespace {

constexpr int kMaxThreads = 512;

int read_thread_count() {
  const char *wanted = std::getenv("CHAGRES_THREADS");
  if (wanted != nullptr && *wanted != '\0') {
    char *end = nullptr;
    const long count = std::strtol(wanted, &end, 10);
    CHAGRES_CHECK(*end == '\0' && count >= 1 && count <= kMaxThreads, "CHAGRES_THREADS must be a number from 1 to ",
                  kMaxThreads, ", got \"", wanted, "\"");
    return static_cast<int>(count);
  }
  /* CPUs that this process may use: containers often have fewer than the machine. */
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::clamp(CPU_COUNT(&set), 1, kMaxThreads);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

/* One parallel_for: threads claim pieces until none is left. The result of a piece does not depend on the thread that
 * runs it. */
struct Job {
  int64_t begin, end, grain, pieces;
  void (*body)(void *, int64_t, int64_t);
  void *context;
  std::atomic<int64_t> next{0};
  int64_t finished = 0; /* guarded by mutex, as are the next two */
  int64_t failed_piece = -1;
  std::exception_ptr failure;
  std::mutex mutex;
  std::condition_variable done;

  bool exhausted() const { return next.load(std::memory_order_relaxed) >= pieces; }

  void work() {
    int64_t ran = 0;
    for (int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces; ++ran) {
      try {
        const int64_t first = begin + piece * grain;
        body(context, first, std::min(first + grain, end));
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex);
        if (failed_piece < 0 || piece < failed_piece) {
          failed_piece = piece;
          failure = std::current_exception();
        }
      }
    }
    if (ran == 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    finished += ran;
    if (finished == pieces) done.notify_all();
  }
};

class Pool {
 public:
  /* Never destroyed: a worker may be in a wait when the process ends. */
  static Pool &instance() {
    static Pool *pool = new Pool;
    return *pool;
  }

  void run(const std::shared_ptr<Job> &job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      start_workers();
      jobs_.push_back(job);
    }
    const int64_t helpers = std::min<int64_t>(job->pieces - 1, thread_count() - 1);
    if (helpers >= thread_count() - 1) {
      wake_.notify_all();
    } else {
      for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();
    }
    job->work();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());
    }
    std::unique_lock<std::mutex> lock(job->mutex);
    job->done.wait(lock, [&] { return job->finished == job->pieces; });
  }

 private:
  void start_workers() {
    if (started_ && owner_ == getpid()) return;
    started_ = true;
    owner_ = getpid(); /* a forked child has no workers */
    for (int i = 1; i < thread_count(); ++i) {
      /* Signals belong to the program's own threads (the JVM's, above all). */
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::exception &) { /* no room for one more: fewer do the same work */
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }

  void serve() {
    pthread_setname_np(pthread_self(), "chagres-worker");
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      std::shared_ptr<Job> job;
      for (const auto &candidate : jobs_) {
        if (!candidate->exhausted()) {
          job = candidate;
          break;
        }
      }
      if (job == nullptr) {
        wake_.wait(lock);
        continue;
      }
      lock.unlock();
      job->work();
      job.reset();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool started_ = false;
  pid_t owner_ = 0;
};

constexpr size_t kAlignment = 64;
constexpr size_t kKeptBytes = size_t{32} << 20; /* a thread frees buffers beyond this */

/* A thread's buffers for its next use: by the logarithm of their bytes, which are a power of two. */
struct BlockCache {
  std::vector<float *> blocks[64];
  size_t bytes = 0;
  ~BlockCache() {
    for (const auto &each : blocks)
      for (float *block : each) ::operator delete(block, std::align_val_t(kAlignment));
  }
};

thread_local BlockCache cache;

}  // namespace

int thread_count() {
  static const int count = read_thread_count();
  return count;
}

void run_pieces(int64_t begin, int64_t end, int64_t grain, void (*body)(void *, int64_t, int64_t), void *context) {
  if (begin >= end) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t pieces = (end - begin - 1) / grain + 1;
  if (pieces == 1 || thread_count() == 1) {
    for (int64_t first = begin; first < end; first += grain) body(context, first, std::min(first + grain, end));
    return;
  }
  auto job = std::make_shared<Job>();
  job->begin = begin;
  job->end = end;
  job->grain = grain;
  job->pieces = pieces;
  job->body = body;
  job->context = context;
  Pool::instance().run(job);
  if (job->failure) std::rethrow_exception(job->failure);
}

Scratch::Scratch(int64_t count) {
  const size_t bytes = std::max<size_t>(static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(float), kAlignment);
#if defined(__SANITIZE_ADDRESS__) /* sees an access beyond a buffer of the exact size that is given back at once */
  bits_ = -1;
#else
  bits_ = bytes > kKeptBytes ? -1 : 64 - __builtin_clzll(bytes - 1);
#endif
  if (bits_ >= 0) {
    BlockCache &kept = cache;
    std::vector<float *> &blocks = kept.blocks[bits_];
    if (!blocks.empty()) {
      data_ = blocks.back();
      blocks.pop_back();
      kept.bytes -= size_t{1} << bits_;
      return;
    }
  }
  data_ = static_cast<float *>(::operator new(bits_ < 0 ? bytes : size_t{1} << bits_, std::align_val_t(kAlignment)));
}

Scratch::~Scratch() {
  if (bits_ >= 0) {
    BlockCache &kept = cache;
    const size_t bytes = size_t{1} << bits_;
    if (kept.bytes + bytes <= kKeptBytes) {
      try {
        kept.blocks[bits_].push_back(data_);
        kept.bytes += bytes;
        return;
      } catch (const std::bad_alloc &) { /* given back */
      }
    }
  }
  ::operator delete(data_, std::align_val_t(kAlignment));
}

}  // namespace chagres::reference
