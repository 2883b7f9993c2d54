/* Which of cuBLASLt's kernels is the fastest for a plan: timed on the operands of the call that asks, whose results are
 * computed anew afterwards. */
#include <algorithm>
#include <cmath>
#include <limits>

#include "matrix_product_plan.h"
#include "matrix_product_store.h"

namespace chagres::ops {
namespace {

constexpr int kAnswers = 8; /* of the heuristic, best guess first */
constexpr int kRounds = 5;  /* in turns, so that a clock that changes meets all of them; the median counts */
constexpr int kMostRepetitions = 50;
constexpr float kRoundMilliseconds = 0.5f;
constexpr float kWorthIt = 1.03f; /* times nearer than this are noise: then the first kernel stays */
constexpr float kNever = std::numeric_limits<float>::infinity();

struct Candidate {
  cublas::Algorithm algorithm;
  std::vector<float> times = {}; /* milliseconds of a product */

  float median() {
    if (times.empty()) return kNever;
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }
};

/* Two events of a stream. */
class Stopwatch {
 public:
  Stopwatch(const cublas::Library &library, OpsStream stream) : library_(library), stream_(stream) {}
  Stopwatch(const Stopwatch &) = delete;
  Stopwatch &operator=(const Stopwatch &) = delete;
  ~Stopwatch() {
    for (void *event : {start_, stop_})
      if (event != nullptr) library_.event_destroy(event);
  }

  int create() {
    const int error = library_.event_create(&start_);
    return error == 0 ? library_.event_create(&stop_) : error;
  }

  /* Milliseconds of one call of `work`, kNever where it fails. What CUDA says, 0 when all is well. */
  template <class Work>
  int time(int repetitions, const Work &work, float &milliseconds) {
    int refused = 0;
    int error = library_.event_record(start_, stream_);
    for (int i = 0; error == 0 && refused == 0 && i < repetitions; ++i) refused = work();
    if (error == 0) error = library_.event_record(stop_, stream_);
    if (error == 0) error = library_.event_synchronize(stop_);
    if (error == 0) error = library_.event_elapsed(&milliseconds, start_, stop_);
    milliseconds = refused == 0 ? milliseconds / static_cast<float>(repetitions) : kNever;
    return error;
  }

 private:
  const cublas::Library &library_;
  OpsStream stream_;
  void *start_ = nullptr, *stop_ = nullptr;
};

bool is_capturing(const cublas::Library &library, OpsStream stream) {
  int status = 0;
  return library.is_capturing(stream, &status) != 0 || status != 0;
}

}  // namespace

/* Finds the fastest kernel, when it may be looked for now. */
int Plan::settle(const PlanSite &site, const OpsMatrixProduct &product, OpsStream stream) {
  if (recall(site)) return OPS_SUCCESS;
  if (product.accumulate != 0 || is_capturing(library_, stream)) return OPS_SUCCESS;
  return measure(site, product, stream);
}

/* What was measured for this product, or for one of nearly the same sizes: token counts differ from batch to batch. */
bool Plan::recall(const PlanSite &site) {
  cublas::Algorithm stored;
  if (site.store.find(key_, stored) && takes(site, stored)) return true;
  return site.store.find_near(key_, stored) && takes(site, stored);
}

/* Takes a kernel for the fastest, where cuBLASLt has it for the product. */
bool Plan::takes(const PlanSite &site, const cublas::Algorithm &stored) {
  cublas::Heuristic result = {};
  const int error = library_.check(site.handle, descriptor_, a_, b_, d_, d_, &stored, &result);
  if (error != 0 || result.state != 0 || result.workspace_bytes > static_cast<size_t>(key_.workspace_bytes)) return false;
  fastest_ = stored;
  measured_ = true;
  return true;
}

int Plan::measure(const PlanSite &site, const OpsMatrixProduct &product, OpsStream stream) {
  std::vector<cublas::Heuristic> answers;
  ask(site.handle, kAnswers, answers); /* where it has none, the first kernel stays */
  std::vector<Candidate> candidates = {{first_}};
  for (const cublas::Heuristic &answer : answers)
    if (memcmp(&answer.algorithm, &first_, sizeof first_) != 0) candidates.push_back({answer.algorithm});

  Stopwatch watch(library_, stream);
  int error = watch.create();
  int repetitions = 1;
  for (int round = -1; error == 0 && candidates.size() > 1 && round < kRounds; ++round) { /* -1 loads the kernels */
    for (Candidate &candidate : candidates) {
      float milliseconds = 0;
      error = watch.time(repetitions, [&] { return enqueue(site, product, candidate.algorithm, stream); }, milliseconds);
      if (error != 0) break;
      if (round >= 0) candidate.times.push_back(milliseconds);
    }
    if (round >= 0 || error != 0) continue;
    float milliseconds = 0;
    error = watch.time(2, [&] { return enqueue(site, product, first_, stream); }, milliseconds);
    const float wanted = std::ceil(kRoundMilliseconds / std::max(milliseconds, 1e-6f));
    repetitions = static_cast<int>(std::min(std::max(wanted, 2.0f), static_cast<float>(kMostRepetitions)));
  }
  if (error != 0) return cuda_failure(site.function, "the timing of cuBLASLt's kernels", error);

  const float first = candidates[0].median();
  float least = first;
  for (Candidate &candidate : candidates) {
    const float median = candidate.median();
    if (median * kWorthIt > first || median >= least) continue;
    least = median;
    fastest_ = candidate.algorithm;
  }
  measured_ = true;
  site.store.add(key_, fastest_);
  return OPS_SUCCESS;
}

}  // namespace chagres::ops
