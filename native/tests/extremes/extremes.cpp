/*
 * Calls every function that the reference exports: with valid arguments, with one argument at a time at its extremes
 * (numbers: lowest, -1, 0, highest; pointers: null), and with valid arguments while memory runs out. Transformer Engine's
 * functions are called through the guard. Valid arguments must succeed; every other call must return, whatever it says:
 * nothing may throw into C, end the process or take longer than a few seconds.
 *
 * No argument is left out. A count of a host array is a number that C cannot compare with the array; its extremes, though,
 * are no counts of any array, and refused for that.
 *
 * usage: extremes LIBRARY [FUNCTION]
 * Calls are made in a child process, one after the other; where one ends it, the next child goes on behind that call.
 * EXTREMES_VERBOSE in the environment prints each call and its status.
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <tuple>

#include "cases.h"

namespace extremes {

namespace {

constexpr unsigned kSeconds = 10; /* for one call, on a busy machine too */
constexpr int kMostRequests = 100; /* requests for memory of a call that are refused, one after the other */
constexpr int kMostDeaths = 200;   /* then the rest is left out */

void *library = nullptr;

/* Where a call stands among all: by case, then by what is done to its arguments; -1: nothing. */
struct Position {
  int test = -1, argument = -1, extreme = 0;

  bool is_behind(const Position &other) const {
    return std::tie(test, argument, extreme) > std::tie(other.test, other.argument, other.extreme);
  }
};

/* What the child is at; it lives in memory that both processes see. */
struct Progress {
  Position at;
  int calls, failures;
  char text[512];
};

/* ---- What the library exports ---- */

struct Exported {
  std::vector<std::string> provided, unsupported;
};

bool is_ours(const std::string &name) {
  const char *const prefixes[] = {"nvte_", "ops_", "cuda", "nccl", "cudnn", "reference_"};
  return std::any_of(std::begin(prefixes), std::end(prefixes),
                     [&](const char *prefix) { return name.compare(0, strlen(prefix), prefix) == 0; });
}

/* Functions of the symbol table. The weak ones are those that answer "not supported". */
Exported exported_functions() {
  Exported exported;
  link_map *map = nullptr;
  dlinfo(library, RTLD_DI_LINKMAP, &map);
  const ElfW(Sym) *symbols = nullptr;
  const char *names = nullptr;
  for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym) *>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char *>(entry->d_un.d_ptr);
  }
  /* The string table follows the symbol table in what linkers write. */
  for (const ElfW(Sym) *symbol = symbols; reinterpret_cast<const char *>(symbol) < names; ++symbol) {
    const std::string name = names + symbol->st_name;
    if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || !is_ours(name)) continue;
    (ELF64_ST_BIND(symbol->st_info) == STB_WEAK ? exported.unsupported : exported.provided).push_back(name);
  }
  return exported;
}

/* ---- Calls ---- */

class Child {
 public:
  /* Goes on behind the call that the progress is at. */
  Child(const std::vector<Case> &cases, Progress &progress) : cases_(cases), progress_(progress), done_(progress.at) {}

  /* Everything but what takes place without memory. */
  void run() {
    for (int i = 0; i < static_cast<int>(cases_.size()); ++i) {
      make_valid(i);
      for (int argument = 0; make_extremes(i, argument) != Made::NoSuchArgument; ++argument) {
      }
    }
  }

  /* One call whose requests for memory fail from the `request`-th on, and one with memory, which must succeed. False when
   * the first one needed fewer. */
  bool run_starved(int test, int request) {
    bool starved = false;
    {
      Fixture fixture;
      fixture.starve(request);
      int status = 0;
      call(fixture, {test, -1, 0}, {}, &status);
      starved = fixture.starved();
    }
    if (starved) make_valid(test);
    return starved;
  }

 private:
  /* Writes down where the child is, before it may die there. */
  Begin begin(const Position &position) {
    return [=](const std::string &description) {
      if (!position.is_behind(done_)) return false;
      progress_.at = position;
      std::snprintf(progress_.text, sizeof(progress_.text), "%s: %s", cases_[position.test].name, description.c_str());
      ++progress_.calls;
      alarm(kSeconds);
      return true;
    };
  }

  Made call(Fixture &fixture, const Position &position, const Change &wanted, int *status) {
    Made made = Made::Called;
    try {
      made = cases_[position.test].make(fixture, wanted, begin(position), status);
    } catch (const std::exception &thrown) {
      fixture.after_call();
      fail(std::string("threw into C: ") + thrown.what());
    }
    if (verbose_ && made == Made::Called && position.is_behind(done_))
      std::printf("%s: %d %s\n", progress_.text, *status, *status == 0 ? "" : te_last_error());
    return made;
  }

  void fail(const std::string &what) {
    ++progress_.failures;
    std::printf("FAILED %s: %s\n", progress_.text, what.c_str());
  }

  void make_valid(int test) {
    Fixture fixture;
    int status = 0;
    call(fixture, {test, -1, 0}, {}, &status);
    if (status != 0) fail("status " + std::to_string(status) + " " + te_last_error() + " " + ops_last_error());
  }

  Made make_extremes(int test, int argument) {
    for (int extreme = 0;; ++extreme) {
      Fixture fixture;
      int status = 0;
      const Made made = call(fixture, {test, argument, extreme}, {argument, extreme}, &status);
      if (made != Made::Called) return made;
    }
  }

  const std::vector<Case> &cases_;
  Progress &progress_;
  const Position done_;
  const bool verbose_ = std::getenv("EXTREMES_VERBOSE") != nullptr;
};

/* What no case calls; and the cases whose function the library does not export. */
int print_uncovered(const std::vector<Case> &cases, const Exported &exported) {
  std::set<std::string> called;
  for (const Case &test : cases) {
    const std::string name = test.name;
    called.insert(name.compare(0, 3, "te_") == 0 ? "nvte_" + name.substr(3) : name);
  }
  int missing = 0;
  for (const std::string &name : exported.provided) {
    if (called.erase(name) == 1) continue;
    ++missing;
    std::printf("FAILED %s: the library exports it, and no case calls it\n", name.c_str());
  }
  for (const std::string &name : called) {
    if (std::find(exported.unsupported.begin(), exported.unsupported.end(), name) != exported.unsupported.end()) continue;
    ++missing;
    std::printf("FAILED %s: a case calls it, and the library does not export it\n", name.c_str());
  }
  return missing;
}

/* Functions that answer "not supported", whatever their arguments. */
std::vector<Case> unsupported_cases(const std::vector<std::string> &names) {
  std::vector<Case> cases;
  for (const std::string &name : names) {
    auto *const function = reinterpret_cast<int (*)()>(find_symbol(name.c_str()));
    cases.push_back({name.c_str(), [=](Fixture &fixture, const Change &wanted, const Begin &begin, int *status) {
                       if (wanted.argument >= 0) return Made::NoSuchArgument;
                       if (!begin("any arguments")) return Made::Called;
                       fixture.before_call();
                       *status = function() == 0; /* right is a status that is no success */
                       fixture.after_call();
                       return Made::Called;
                     }});
  }
  return cases;
}

/* So that a wild size is refused at once and takes no memory from others. Sanitizers map terabytes. */
void limit_memory() {
#ifndef __SANITIZE_ADDRESS__
  const rlimit limit = {rlim_t{4} << 30, rlim_t{4} << 30};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

/* Runs `body` in a child: its exit status; where it died, that is printed, and counted in *deaths. */
template <class Body>
int in_child(const Progress &progress, int *deaths, const Body &body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    limit_memory();
    const int status = body();
    std::fflush(stdout);
    _exit(status);
  }
  int end = 0;
  waitpid(child, &end, 0);
  if (WIFEXITED(end) && WEXITSTATUS(end) <= 1) return WEXITSTATUS(end);
  const bool hangs = WIFSIGNALED(end) && WTERMSIG(end) == SIGALRM;
  std::printf("FAILED %s: %s\n", progress.text,
              hangs ? "hangs" : WIFSIGNALED(end) ? strsignal(WTERMSIG(end)) : "ended the process");
  ++*deaths;
  return -1;
}

int run(const std::vector<Case> &cases) {
  auto *progress = static_cast<Progress *>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  *progress = Progress{};
  int deaths = 0;
  while (deaths < kMostDeaths && in_child(*progress, &deaths, [&] { return Child(cases, *progress).run(), 0; }) != 0) {
  }
  const int calls = progress->calls;
  /* A child each, for whoever got memory once may keep it for the next call. */
  for (int i = 0; i < static_cast<int>(cases.size()); ++i) {
    for (int request = 0; request < kMostRequests; ++request) {
      progress->at = Position{};
      if (in_child(*progress, &deaths, [&] { return Child(cases, *progress).run_starved(i, request) ? 1 : 0; }) != 1) break;
    }
  }
  std::printf("%zu functions, %d calls, %d without memory: %d failed, %d ended the process\n", cases.size(), calls,
              progress->calls - calls, progress->failures, deaths);
  return progress->failures + deaths;
}

}  // namespace

void *find_symbol(const char *name) {
  void *symbol = dlsym(library, name);
  if (symbol == nullptr) {
    std::printf("%s\n", dlerror());
    std::exit(2);
  }
  return symbol;
}

}  // namespace extremes

int main(int count, char **arguments) {
  using namespace extremes;
  if (count < 2) {
    std::printf("usage: extremes LIBRARY [FUNCTION]\n");
    return 2;
  }
  setenv("CHAGRES_REFERENCE_NCCL_TIMEOUT", "1", 1);
  setenv("CHAGRES_REFERENCE_MEMORY", "268435456", 1);
  setenv("CHAGRES_THREADS", "2", 1);
  library = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr || te_open(arguments[1]) != TE_SUCCESS) {
    std::printf("%s\n", library == nullptr ? dlerror() : te_last_error());
    return 2;
  }
  std::vector<Case> cases;
  for (const auto &some : {te_cases(), te_list_cases(), fused_attn_cases(), ops_cases(), cuda_cases(), nccl_cases()})
    cases.insert(cases.end(), some.begin(), some.end());
  const Exported exported = exported_functions();
  const int uncovered = print_uncovered(cases, exported);
  const std::vector<Case> unsupported = unsupported_cases(exported.unsupported);
  cases.insert(cases.end(), unsupported.begin(), unsupported.end());
  if (count > 2) {
    const std::string wanted = arguments[2];
    cases.erase(std::remove_if(cases.begin(), cases.end(), [&](const Case &test) { return wanted != test.name; }),
                cases.end());
  }
  return run(cases) + uncovered == 0 && !cases.empty() ? 0 : 1;
}
