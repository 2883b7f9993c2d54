/*
 * Checks every operation of one library against double precision: results, equal bits from a second run, memory round
 * the tensors, texts for bad arguments, and on a device the capture in a graph. Exit status 0 when all is right, 1 when
 * a check failed, 2 when it could not start.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <set>
#include <string>

#include "harness/report.h"

using namespace chagres::tests;

namespace {

const char *const kUsage =
    "usage: ops_device_check LIBRARY [--cuda-runtime PATH --nvrtc PATH --cache FOLDER] [--seed N] [--large] [--time]\n"
    "                        [--every N] [--only STEM | --except STEM ...]\n"
    "  LIBRARY         libchagres_ops.so, or libchagres_reference.so, which computes in host memory\n"
    "  --cuda-runtime  libcudart.so.13, for libchagres_ops.so; tensors then live on device 0\n"
    "  --nvrtc         libnvrtc.so.13\n"
    "  --cache         folder for compiled kernels\n"
    "  --seed          of the random numbers (default 1)\n"
    "  --large         with sizes that fill a GPU\n"
    "  --time          then print the times of training's sizes (12 GiB of memory)\n"
    "  --every         one of N cases of attention, which take long under sanitizers (default 1: all)\n"
    "  --only          the cases of one stem alone, such as residual_norm, and its times\n"
    "  --except        all cases but those of these stems\n";

struct Cases {
  const char *stem;
  void (*run)(Session &session);
};
const Cases kCases[] = {
    {"arguments", argument_cases},
    {"attention_arguments", attention_argument_cases},
    {"elementwise", elementwise_cases},
    {"clip", clip_cases},
    {"adam", adam_cases},
    {"optimizer_step", optimizer_step_cases},
    {"adafactor", adafactor_cases},
    {"loss_scale", loss_scale_cases},
    {"quantization_statistics", quantization_statistics_cases},
    {"dequantize_blocks", dequantize_blocks_cases},
    {"dropout", dropout_cases},
    {"bias", bias_cases},
    {"drop_path", drop_path_cases},
    {"token_dropout", token_dropout_cases},
    {"sequence_pool", sequence_pool_cases},
    {"rows", rows_cases},
    {"embedding", embedding_cases},
    {"row_sum", row_sum_cases},
    {"matrix_product", matrix_product_cases},
    {"residual_norm", residual_norm_cases},
    {"gated_gradient", gated_gradient_cases},
    {"cross_entropy", cross_entropy_cases},
    {"vocabulary_cross_entropy", vocabulary_cross_entropy_cases},
    {"rotary", rotary_cases},
    {"attention", attention_cases},
    {"attention_scores", attention_score_cases},
    {"attention_merge", attention_merge_cases},
    {"graph", graph_cases},
    {"range", range_cases},
    {"activity", activity_cases},
};

bool is_stem(const std::string &text) {
  for (const Cases &cases : kCases)
    if (text == cases.stem) return true;
  return false;
}

struct Options {
  std::string library, cuda_runtime, nvrtc, cache;
  std::string only; /* a stem, or empty: all */
  std::set<std::string> except;
  uint64_t seed = 1;
  int every = 1;
  bool large = false;
  bool time = false;
};

bool parse(int count, char **arguments, Options &options) {
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const bool last = i + 1 == count;
    if (argument == "--time") options.time = true;
    else if (argument == "--large") options.large = true;
    else if (argument == "--cuda-runtime" && !last) options.cuda_runtime = arguments[++i];
    else if (argument == "--nvrtc" && !last) options.nvrtc = arguments[++i];
    else if (argument == "--cache" && !last) options.cache = arguments[++i];
    else if (argument == "--only" && !last && is_stem(arguments[i + 1])) options.only = arguments[++i];
    else if (argument == "--except" && !last && is_stem(arguments[i + 1])) options.except.insert(arguments[++i]);
    else if (argument == "--every" && !last) options.every = std::atoi(arguments[++i]);
    else if (argument == "--seed" && !last) options.seed = std::strtoull(arguments[++i], nullptr, 10);
    else if (argument[0] != '-' && options.library.empty()) options.library = argument;
    else return false;
  }
  return !options.library.empty() && options.every > 0 && (options.only.empty() || options.except.empty()) &&
         options.cuda_runtime.empty() == options.nvrtc.empty() && options.nvrtc.empty() == options.cache.empty();
}

int check(const Options &options) {
  const bool device = !options.cuda_runtime.empty();
  const Ops ops = open_library(options.library);
  if (ops.open(options.cuda_runtime.c_str(), options.nvrtc.c_str(), nullptr, options.cache.c_str()) != OPS_SUCCESS) {
    fprintf(stderr, "%s\n", ops.last_error());
    return 2;
  }
  const auto memory = device ? cuda_memory(options.cuda_runtime) : host_memory(options.library);
  Report report;
  Session session = {ops, open_shared(options.library), *memory, report, Random(options.seed), options.large, options.every};
  printf("%s, seed %llu\n", options.library.c_str(), static_cast<unsigned long long>(options.seed));
  for (const Cases &cases : kCases)
    if ((options.only.empty() || options.only == cases.stem) && options.except.count(cases.stem) == 0)
      cases.run(session);
  const bool right = report.print();
  if (options.time) print_times(session, options.only);
  return right ? 0 : 1;
}

}  // namespace

int main(int count, char **arguments) {
  Options options;
  if (!parse(count, arguments, options)) {
    fputs(kUsage, stderr);
    return 2;
  }
  try {
    return check(options);
  } catch (const std::exception &exception) {
    fprintf(stderr, "%s\n", exception.what());
    return 2;
  }
}
