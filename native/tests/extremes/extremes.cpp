/*
 * Calls every function that the reference exports: with valid arguments, with one argument at a time at its extremes
 * (numbers: lowest, -1, 0, highest; pointers: null), and with valid arguments while memory runs out. Transformer Engine's
 * functions are called through the guard. Valid arguments must succeed; every other call must return: nothing may throw into
 * C, end the process or take longer than a few seconds. A call that is refused has written nothing to the memory of its
 * arguments; one that succeeds with an argument of 0 or null, nothing but what the valid call writes, or zeros.
 *
 * No argument is left out, but one extreme of some is: a length of an array on the host that is too large by a little. C
 * cannot compare it with the array, and would read what lies behind. Lengths that no array has are refused. They are
 *   num_gemms, num_tensors, num_tensor_lists, num_tensors_per_list, num_outputs  of te_multi_tensor_* and other lists
 *   size of an NVTETensorPack, ndim of te_make_shape                             of te_fused_attn_*, te_make_shape
 *   size_in_bytes, of attributes and of te_get_tensor_param_v2                   of what is copied from or to the host
 *   ndev                                                                         of ncclCommInitAll
 *   len, size                                                                    of texts that cuda*, cudnn* write
 *   count, width, height                                                         of the host's side of cudaMemcpy*
 * Java passes the lengths of its own arrays.
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

/* Arguments, counted from 1, of which 0 or null is a choice like others: results differ from those of the valid call. */
struct Choice {
  const char *function;
  int argument;
  const char *meaning;
};

constexpr Choice kChoices[] = {
    {"ops_adam", 14, "L2 instead of decoupled decay"},
    {"ops_adam", 15, "no bias correction"},
    {"ops_adam_ranges", 10, "L2 instead of decoupled decay"},
    {"ops_adam_ranges", 11, "no bias correction"},
    {"ops_optimizer_step", 7, "SGD"},
    {"ops_optimizer_step", 15, "states of eight bits"},
    {"ops_adafactor", 6, "sums alone"},
    {"ops_bias_add", 3, "no residual"},
    {"ops_cross_entropy_backward", 4, "the gradient is not divided"},
    {"ops_cross_entropy_backward", 6, "a loss scale of 1"},
    {"ops_cross_entropy_backward", 7, "each token's gradient is 1"},
    {"ops_cross_entropy_forward", 3, "the loss is divided by what was counted"},
    {"ops_embedding_backward", 6, "no token: beta times what was there"},
    {"ops_row_sum", 4, "no row: beta times what was there"},
    {"ops_scale_sequences_add", 2, "the product alone"},
    {"ops_sequence_pool_backward", 3, "no gaps between sequences"},
    {"ops_sequence_pool_forward", 3, "no gaps between sequences"},
    {"ops_sequence_pool_forward", 8, "no token: the largest of none"},
    {"ops_token_dropout_factors", 3, "no gaps between sequences"},
    {"ops_token_dropout_factors", 5, "all factors are 0"},
    {"ops_token_dropout_factors", 6, "the mask is another token"},
    {"ops_vocabulary_cross_entropy_loss", 4, "the loss is divided by what was counted"},
    {"ops_vocabulary_cross_entropy_maximum", 4, "the rank has no class: negative infinity"},
    {"te_extract_seed_and_offset", 2, "no graph is captured: the state holds numbers"},
    {"te_extract_seed_and_offset", 7, "the graph has drawn nothing yet"},
    {"te_fp8_block_scaling_compute_partial_amax", 5, "all rows of blocks share one row of magnitudes"},
    {"te_fp8_block_scaling_compute_partial_amax", 6, "all blocks of a row share one magnitude"},
    {"te_fused_attn_bwd", 31, "a window without tokens on the left"},
    {"te_fused_attn_fwd", 29, "a window without tokens on the left"},
    {"te_hadamard_transform", 4, "no row changes its sign"},
    {"te_multi_tensor_adam_capturable_cuda", 11, "L2 instead of decoupled decay"},
    {"te_multi_tensor_adam_capturable_cuda", 12, "no bias correction"},
    {"te_multi_tensor_adam_capturable_master_cuda", 11, "L2 instead of decoupled decay"},
    {"te_multi_tensor_adam_capturable_master_cuda", 12, "no bias correction"},
    {"te_multi_tensor_adam_cuda", 10, "step 0, whose bias correction divides by 0"},
    {"te_multi_tensor_adam_cuda", 11, "L2 instead of decoupled decay"},
    {"te_multi_tensor_adam_cuda", 12, "no bias correction"},
    {"te_multi_tensor_adam_fp8_cuda", 10, "step 0, whose bias correction divides by 0"},
    {"te_multi_tensor_adam_fp8_cuda", 11, "L2 instead of decoupled decay"},
    {"te_multi_tensor_adam_fp8_cuda", 12, "no bias correction"},
    {"te_multi_tensor_adam_param_remainder_cuda", 10, "step 0, whose bias correction divides by 0"},
    {"te_multi_tensor_adam_param_remainder_cuda", 11, "L2 instead of decoupled decay"},
    {"te_multi_tensor_adam_param_remainder_cuda", 12, "no bias correction"},
    {"te_multi_tensor_compute_scale_and_scale_inv_cuda", 7, "scales that need not be powers of 2"},
    {"te_populate_rng_state_async", 3, "the offset goes on from call to call"},
    {"te_populate_rng_state_async", 4, "the offset goes on from call to call"},
    {"te_populate_rng_state_async", 6, "the stream does not choose: the offset goes on from call to call"},
    {"te_scaled_dswiglu", 6, "gates lie behind the values, not between them"},
};

bool is_choice(const std::string &function, int argument) {
  return std::any_of(std::begin(kChoices), std::end(kChoices), [&](const Choice &one) {
    return function == one.function && argument == one.argument - 1;
  });
}

/* Functions that tell through their last pointer how much room they need, and refuse then what is too small. */
bool tells_size(const std::string &function, int argument) {
  return function.compare(0, 7, "te_get_") == 0 && argument == 3;
}

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

  Made call(Fixture &fixture, const Position &position, Change wanted, int *status) {
    Made made = Made::Called;
    try {
      made = cases_[position.test].make(fixture, wanted, begin(position), status);
    } catch (const std::exception &thrown) {
      fixture.after_call();
      fail(std::string("threw into C: ") + thrown.what());
    }
    if (made == Made::Called && position.is_behind(done_)) look_at_memory(fixture, position, wanted, *status);
    if (verbose_ && made == Made::Called && position.is_behind(done_))
      std::printf("%s: %d %s\n", progress_.text, *status, *status == 0 ? "" : te_last_error());
    return made;
  }

  /* A refused call has written nothing. One that succeeds without a pointer, or with a number of 0, has written to each
   * memory of the device what the valid call writes there, or zeros, as sums of nothing are, or nothing. */
  void look_at_memory(const Fixture &fixture, const Position &position, const Change &wanted, int status) {
    if (fixture.is_starved_on_purpose()) return;
    const Fixture::Contents before = fixture.contents_before(), after = fixture.contents();
    const std::string function = cases_[position.test].name;
    if (position.argument < 0) valid_ = after;
    if (position.argument < 0 || before == after) return;
    if (status != 0) {
      if (!tells_size(function, position.argument)) fail("refused with status " + std::to_string(status) + ", but memory of the arguments was written");
      return;
    }
    if (!wanted.is_nothing || is_choice(function, position.argument)) return;
    for (size_t i = 0; i < after.size(); ++i)
      if (after[i].on_device && after[i] != before[i] && after[i].bytes != std::string(after[i].bytes.size(), '\0') && (i >= valid_.size() || after[i] != valid_[i]))
        fail("succeeded, and memory " + std::to_string(i) + " of the arguments has neither what it had nor zeros nor what the"
             " valid call leaves there");
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
  Fixture::Contents valid_; /* of the latest case */
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
    cases.push_back({name.c_str(), [=](Fixture &fixture, Change &wanted, const Begin &begin, int *status) {
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
  for (const auto &some : {te_cases(), te_list_cases(), fused_attn_cases(), ops_cases(), cuda_cases(), cudnn_cases(), nccl_cases()})
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
