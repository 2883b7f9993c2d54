// Calls every te_ function with many kinds of wrong arguments and fails where one ends the process or hangs.
//
// usage: guard_smoke SEEDS LIBRARY [PRELOADED...]
// Opens the preloaded libraries for all (lazily), then LIBRARY by te_open. Calls are made in child processes, one or
// more a function, so that a crash names its function; then the harmless ones all in this process. SEEDS: how many
// times to draw arguments at random for each function. GUARD_SMOKE_VERBOSE in the environment prints each call's status
// and text.

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "smoke_values.hpp"

namespace {

struct Call {
  const char *name;
  int (*make)(const Values &);
};

#include "smoke_calls.h"

constexpr int call_count = sizeof(calls) / sizeof(calls[0]);
constexpr unsigned seconds = 120;
constexpr int no_text = 98;
const bool verbose = std::getenv("GUARD_SMOKE_VERBOSE") != nullptr;

int make(const Call &call, const Values &values, const char *what) {
  const int status = call.make(values);
  if (verbose) std::printf("%s: %s: %d %s\n", what, call.name, status, status == 0 ? "" : te_last_error());
  return status == TE_SUCCESS || te_last_error()[0] != '\0' ? status : no_text;
}

/* Runs `body` in a child and returns its exit status, or minus the signal that ended it. */
template <typename Body>
int in_child(Body body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(seconds);
    if (!verbose && std::freopen("/dev/null", "w", stderr) == nullptr) _exit(no_text + 1);
    const int status = body();
    std::fflush(stdout);
    _exit(status);
  }
  int end = 0;
  waitpid(child, &end, 0);
  return WIFEXITED(end) ? WEXITSTATUS(end) : -WTERMSIG(end);
}

void report(const Call &call, const char *what, unsigned seed, int end) {
  std::printf("FAILED %s (%s, seed %u): ended with %s %d\n", call.name, what, seed, end < 0 ? "signal" : "status",
              end < 0 ? -end : end);
}

using Counts = int[TE_NOT_OPEN + 1];

/* All modes of a function share a child; where it dies each mode gets its own, to name the one. */
int run_modes(const Call &call, int first, int last, Counts *counts) {
  return in_child([&] {
    for (int m = first; m <= last; ++m) {
      const int status = make(call, modes[m].values(), modes[m].name);
      if (status == no_text) return no_text;
      ++counts[m][status];
    }
    return 0;
  });
}

int run_modes() {
  constexpr std::size_t most_modes = 64;
  auto *const counts = static_cast<Counts *>(
      mmap(nullptr, most_modes * sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  int failures = 0;
  for (const Call &call : calls) {
    if (run_modes(call, 0, mode_count - 1, counts) == 0) continue;
    for (int m = 0; m < mode_count; ++m) {
      const int end = run_modes(call, m, m, counts);
      if (end == 0) continue;
      ++failures;
      report(call, modes[m].name, 0, end);
    }
  }
  for (int m = 0; m < mode_count; ++m) {
    std::printf("%-45s %3d success, %3d error, %3d refused, %3d missing\n", modes[m].name, counts[m][TE_SUCCESS],
                counts[m][TE_ERROR], counts[m][TE_REFUSED], counts[m][TE_MISSING]);
  }
  return failures;
}

int run_drawn(const Call &call, unsigned first, unsigned last) {
  return in_child([&] {
    for (unsigned seed = first; seed <= last; ++seed) {
      if (make(call, drawn(seed), "drawn") == no_text) return no_text;
    }
    return 0;
  });
}

int run_seeds(unsigned seeds) {
  int failures = 0;
  for (const Call &call : calls) {
    if (run_drawn(call, 1, seeds) == 0) continue;
    for (unsigned seed = 1; seed <= seeds; ++seed) {
      const int end = run_drawn(call, seed, seed);
      if (end == 0) continue;
      ++failures;
      report(call, "drawn", seed, end);
      break;
    }
  }
  return failures;
}

}  // namespace

int main(int count, char **arguments) {
  if (count < 3) {
    std::printf("usage: guard_smoke SEEDS LIBRARY [PRELOADED...]\n");
    return 2;
  }
  for (int i = 3; i < count; ++i) {
    if (dlopen(arguments[i], RTLD_LAZY | RTLD_GLOBAL) == nullptr) {
      std::printf("%s\n", dlerror());
      return 1;
    }
  }
  if (te_open(arguments[2]) != TE_SUCCESS) {
    std::printf("%s\n", te_last_error());
    return 1;
  }
  const unsigned seeds = static_cast<unsigned>(std::atoi(arguments[1]));
  const int failures = run_modes() + run_seeds(seeds);
  if (failures == 0) {
    for (int m = 0; m < harmless_modes; ++m) {
      for (const Call &call : calls) make(call, modes[m].values(), modes[m].name);
    }
  }
  std::printf("%d functions, %d kinds of arguments, %u seeds: %d calls ended the process\n", call_count, mode_count,
              seeds, failures);
  return failures == 0 ? 0 : 1;
}
