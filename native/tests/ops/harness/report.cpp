#include "harness/report.h"

#include <cstdio>
#include <exception>

namespace chagres::tests {

namespace {
constexpr int kMostPrinted = 40;

std::string number(double value) {
  char text[40];
  snprintf(text, sizeof(text), "%.9g", value);
  return text;
}
}  // namespace

void Report::failure(const std::string &operation, const std::string &dtype, const std::string &text) {
  ++row(operation, dtype).failures;
  if (++printed_ <= kMostPrinted) printf("FAILED %s %s: %s\n", operation.c_str(), dtype.c_str(), text.c_str());
}

bool Report::print() const {
  int failures = 0;
  printf("%-24s %-10s %7s %12s  %s\n", "operation", "dtype", "cases", "error/limit", "result");
  for (const auto &[key, row] : rows_) {
    printf("%-24s %-10s %7d %12.3f  %s\n", key.first.c_str(), key.second.c_str(), row.cases, row.worst,
           row.failures == 0 ? "ok" : "FAILED");
    failures += row.failures;
  }
  printf("%d failures\n", failures);
  return failures == 0;
}

std::string shape_text(std::initializer_list<std::pair<const char *, int64_t>> sizes) {
  std::string text;
  for (const auto &[name, size] : sizes)
    text += (text.empty() ? "" : " ") + std::string(name) + "=" + std::to_string(size);
  return text;
}

Case::Case(Session &session, const char *operation, int dtype, std::string text)
    : session_(session), operation_(operation), dtype_(format_of(dtype).name), text_(std::move(text)) {
  ++session_.report.row(operation_, dtype_).cases;
}

void Case::fail(const std::string &text) { session_.report.failure(operation_, dtype_, text_ + ": " + text); }

bool Case::run(const std::vector<Buffer *> &outputs, const std::function<int()> &call) {
  try {
    std::vector<Bytes> initial;
    for (Buffer *output : outputs) initial.push_back(output->download());
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t i = 0; i < outputs.size(); ++i) outputs[i]->upload(initial[i]);
      const int status = call();
      if (status != OPS_SUCCESS) {
        fail("status " + std::to_string(status) + ", " + session_.ops.last_error());
        return false;
      }
      std::vector<Bytes> results;
      for (Buffer *output : outputs) results.push_back(output->download());
      if (pass == 1 && results != results_) fail("a second run gave other bits");
      results_ = std::move(results);
    }
    return true;
  } catch (const std::exception &exception) {
    fail(exception.what());
    return false;
  }
}

void Case::equal(const Doubles &got, const Doubles &wanted, const char *what) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::isnan(wanted[i]) ? std::isnan(got[i]) : got[i] == wanted[i]) continue;
    return fail(std::string(what) + "[" + std::to_string(i) + "] is " + number(got[i]) + "; expected " +
                number(wanted[i]));
  }
}

void Case::equal_bytes(const Bytes &got, const Bytes &wanted, const char *what) {
  for (size_t i = 0; i < wanted.size(); ++i)
    if (got[i] != wanted[i])
      return fail(std::string(what) + " byte " + std::to_string(i) + " is " + std::to_string(got[i]) + "; expected " +
                  std::to_string(wanted[i]));
}

void Case::close(int dtype, const Doubles &got, const Doubles &wanted, const Doubles &scale, double slack,
                 const char *what) {
  const Format &format = format_of(dtype);
  double &worst = session_.report.row(operation_, dtype_).worst;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!std::isfinite(wanted[i])) {
      if (std::isnan(wanted[i]) ? std::isnan(got[i]) : got[i] == wanted[i]) continue;
    }
    const double limit =
        format.roundoff() * std::fabs(wanted[i]) + slack * kFormats[0].roundoff() * scale[i] + format.smallest();
    const double error = std::fabs(got[i] - wanted[i]) / limit;
    if (error <= 1) {
      worst = std::max(worst, error);
      continue;
    }
    return fail(std::string(what) + "[" + std::to_string(i) + "] is " + number(got[i]) + "; expected " +
                number(wanted[i]) + " within " + number(limit));
  }
}

}  // namespace chagres::tests
