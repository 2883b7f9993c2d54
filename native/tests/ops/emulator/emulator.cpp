#include "emulator.h"

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "harness/numbers.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace chagres::emulator {
namespace {

constexpr size_t kStackBytes = 128 * 1024;
constexpr unsigned kWarp = 32;

enum class State { kReady, kAtBarrier, kInExchange, kDone };

/* Where a fiber or the scheduler goes on. swapcontext enters a fiber first; after that the compiler's own setjmp and
 * longjmp switch without a system call. The C library's are slow under AddressSanitizer, which clears the stack's
 * shadow at each longjmp; so are these in functions that it instruments. */
struct Context {
  ucontext_t first;
  void *next[5];
};
#define SWITCHES_STACKS __attribute__((noipa, no_sanitize_address)) /* other fibers run before it returns */

/* Apart from those that call setjmp, as the compiler asks. */
SWITCHES_STACKS void go_on(Context &context) { __builtin_longjmp(context.next, 1); }

struct Fiber {
  Context context;
  std::unique_ptr<char[]> stack;
  bool entered = false;
  Index index;
  State state = State::kDone;
  Exchange kind = Exchange::kSync;
  uint32_t value = 0;
  unsigned source = 0;
  uint32_t result = 0;
};

std::mutex run_mutex; /* one launch at a time: the kernels' shared memory is static */
Launch current_launch;
const Body *current_body = nullptr;
Fiber *current = nullptr;
Context scheduler;
std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<float> shared;

/* AddressSanitizer must know on which stack it is. */
#if defined(__SANITIZE_ADDRESS__)
const void *scheduler_stack = nullptr;
size_t scheduler_stack_bytes = 0;
void *scheduler_fake_stack = nullptr;
void before_fiber(Fiber &fiber) {
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, fiber.stack.get(), kStackBytes);
}
void after_fiber() { __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr); }
void fiber_entered() { __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes); }
void fiber_leaves() { __sanitizer_start_switch_fiber(nullptr, scheduler_stack, scheduler_stack_bytes); }
#else
void before_fiber(Fiber &) {}
void after_fiber() {}
void fiber_entered() {}
void fiber_leaves() {}
#endif

SWITCHES_STACKS void leave(State state) {
  Fiber *self = current;
  self->state = state;
  fiber_leaves();
  if (__builtin_setjmp(self->context.next) == 0) go_on(scheduler);
  fiber_entered();
}

/* A fiber runs one thread of each block. */
void fiber_main() {
  fiber_entered();
  for (;;) {
    (*current_body)();
    leave(State::kDone);
  }
}

SWITCHES_STACKS void resume(Fiber &fiber) {
  current = &fiber;
  before_fiber(fiber);
  if (__builtin_setjmp(scheduler.next) == 0) {
    if (fiber.entered) go_on(fiber.context);
    fiber.entered = true;
    swapcontext(&scheduler.first, &fiber.context.first);
  }
  after_fiber();
}

void start(unsigned i) {
  if (i == fibers.size()) {
    fibers.push_back(std::make_unique<Fiber>());
    Fiber &fiber = *fibers.back();
    fiber.stack = std::make_unique<char[]>(kStackBytes);
    getcontext(&fiber.context.first);
    fiber.context.first.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.first.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.context.first, fiber_main, 0);
  }
  fibers[i]->index = {i, 0, 0};
  fibers[i]->state = State::kReady;
}

/* Does the exchange that all of the warp's threads wait in; false when they do not. */
bool finish_exchange(unsigned first, unsigned threads) {
  const unsigned size = std::min(kWarp, threads - first);
  uint32_t votes = 0;
  for (unsigned lane = 0; lane < size; ++lane) {
    const Fiber &fiber = *fibers[first + lane];
    if (fiber.state != State::kInExchange || fiber.kind != fibers[first]->kind) return false;
    votes |= (fiber.value != 0 ? 1u : 0u) << lane;
  }
  if (size < kWarp) throw std::logic_error("a warp exchange in a warp of fewer than 32 threads");
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    Fiber &fiber = *fibers[first + lane];
    fiber.result = fiber.kind == Exchange::kBallot ? votes : fibers[first + fiber.source % kWarp]->value;
    fiber.state = State::kReady;
  }
  return true;
}

/* Runs a warp as far as it gets without the others. */
void run_warp(unsigned first, unsigned threads, bool descending) {
  const unsigned last = std::min(first + kWarp, threads);
  do {
    for (unsigned i = first; i < last; ++i) {
      Fiber &fiber = *fibers[descending ? last - 1 - (i - first) : i];
      if (fiber.state == State::kReady) resume(fiber);
    }
  } while (finish_exchange(first, threads));
}

/* Lets the threads go on that wait at the block's barrier; false when all are done. */
bool pass_barrier(unsigned threads) {
  unsigned done = 0, waiting = 0;
  for (unsigned i = 0; i < threads; ++i) {
    done += fibers[i]->state == State::kDone;
    waiting += fibers[i]->state == State::kAtBarrier;
    fibers[i]->state = fibers[i]->state == State::kAtBarrier ? State::kReady : fibers[i]->state;
  }
  if (done == threads) return false;
  if (waiting != threads) throw std::logic_error("not all threads reach the same barrier or warp exchange");
  return true;
}

/* Each warp runs as far ahead of the others as it can, in ascending order in one block and in descending order in the
 * next: a missing barrier shows in one of them. */
void run_block(unsigned threads, bool descending) {
  const unsigned warps = (threads + kWarp - 1) / kWarp;
  for (unsigned i = 0; i < threads; ++i) start(i);
  do {
    for (unsigned i = 0; i < warps; ++i) run_warp((descending ? warps - 1 - i : i) * kWarp, threads, descending);
  } while (pass_barrier(threads));
}

std::vector<Kernel> &kernels() {
  static std::vector<Kernel> all;
  return all;
}

}  // namespace

const Index &thread_index() { return current->index; }
const Launch &launch() { return current_launch; }
float *dynamic_shared() { return shared.data(); }
void wait_for_block() { leave(State::kAtBarrier); }

uint32_t exchange(Exchange kind, uint32_t value, unsigned source) {
  Fiber *self = current;
  self->kind = kind;
  self->value = value;
  self->source = source;
  leave(State::kInExchange);
  return self->result;
}

/* Kernels decode and encode all the time: each number is decoded once, and what rounds to a normal number is encoded by its
 * bits. The rest, and what is right, is the formats' own. */
float decode(int dtype, uint16_t bits) {
  static const std::vector<float> numbers = [] {
    std::vector<float> all;
    for (const int of : {5, 6})
      for (uint32_t each = 0; each < 0x10000; ++each) all.push_back(static_cast<float>(tests::decode(tests::format_of(of), each)));
    return all;
  }();
  return numbers[(dtype == 5 ? 0u : 0x10000u) + bits];
}

uint16_t encode(int dtype, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
  if (dtype == 6 && magnitude >= 0x00800000 && magnitude < 0x7f000000)
    return static_cast<uint16_t>(sign | (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16);
  if (dtype == 5 && magnitude >= 0x38800000 && magnitude < 0x47000000) /* 2^-14 to 2^15; exponents have biases of 127 and 15 */
    return static_cast<uint16_t>(sign | (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
  const tests::Format &format = tests::format_of(dtype);
  return static_cast<uint16_t>(tests::encode(format, tests::round_to(format, value)));
}

Registration::Registration(const char *file, const char *name, Adapter adapter) {
  const std::string path = file;
  kernels().push_back({path.substr(path.rfind('/') + 1), name, std::move(adapter)});
}

const Kernel *find_kernel(const std::string &source, const std::string &name) {
  for (const Kernel &kernel : kernels())
    if (kernel.source == source && kernel.name == name) return &kernel;
  return nullptr;
}

void run(const Launch &launch, const Body &body) {
  std::lock_guard<std::mutex> lock(run_mutex);
  current_launch = launch;
  current_body = &body;
  bool descending = false;
  for (unsigned y = 0; y < launch.grid.y; ++y)
    for (unsigned x = 0; x < launch.grid.x; ++x) {
      /* Of the exact size, so that AddressSanitizer sees an access beyond it; NaN, as nothing is zero for free. */
      std::vector<float>(launch.shared_bytes / sizeof(float), NAN).swap(shared);
      current_launch.block_index = {x, y, 0};
      run_block(launch.block.x, descending);
      descending = !descending;
    }
}

}  // namespace chagres::emulator
