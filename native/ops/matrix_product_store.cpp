#include "matrix_product_store.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cached_file.h"
#include "content_hash.h"

namespace chagres::ops {
namespace {

/* How much two sizes differ, as a part of the larger one; infinite where that is more than an eighth. */
double distance(int64_t a, int64_t b) {
  const double most = static_cast<double>(std::max(a, b)), between = std::fabs(static_cast<double>(a - b)) / most;
  return between <= 0.125 ? between : std::numeric_limits<double>::infinity();
}

/* That of all three sizes; infinite where the keys differ in anything else. */
double distance(const PlanKey &a, const PlanKey &b) {
  PlanKey alike = b;
  alike.m = a.m;
  alike.n = a.n;
  alike.k = a.k;
  if (!(alike == a)) return std::numeric_limits<double>::infinity();
  return distance(a.m, b.m) + distance(a.n, b.n) + distance(a.k, b.k);
}

}  // namespace

/* A file is the header, then a key and an algorithm for each plan. */
PlanStore::PlanStore(const std::string &folder, const std::string &device, size_t cublas_version)
    : header_("matrix products 1\n" + device + format("\ncuBLASLt %zu\n", cublas_version)),
      path_(folder + "/matrix_products-" + Hash().add(header_).hexadecimal() + ".plans") {}

PlanStore::Bytes PlanStore::bytes_of_key(const PlanKey &key) {
  Bytes bytes;
  memcpy(bytes.data(), &key, sizeof key);
  return bytes;
}

/* A damaged or foreign file counts as empty. */
void PlanStore::read() {
  constexpr size_t kRecord = sizeof(PlanKey) + sizeof(cublas::Algorithm);
  std::string content;
  read_ = true;
  if (!read_cached(path_, content) || content.compare(0, header_.size(), header_) != 0) return;
  if ((content.size() - header_.size()) % kRecord != 0) return;
  for (size_t at = header_.size(); at < content.size(); at += kRecord) {
    Bytes key;
    cublas::Algorithm algorithm;
    memcpy(key.data(), &content[at], sizeof key);
    memcpy(&algorithm, &content[at + sizeof key], sizeof algorithm);
    plans_.emplace(key, algorithm); /* what this process measured stays */
  }
}

bool PlanStore::find(const PlanKey &key, cublas::Algorithm &algorithm) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!read_) read();
  const auto found = plans_.find(bytes_of_key(key));
  if (found == plans_.end()) return false;
  algorithm = found->second;
  return true;
}

bool PlanStore::find_near(const PlanKey &key, cublas::Algorithm &algorithm) {
  std::lock_guard<std::mutex> lock(mutex_);
  double least = std::numeric_limits<double>::infinity();
  for (const auto &[bytes, chosen] : plans_) {
    PlanKey other;
    memcpy(&other, bytes.data(), sizeof other);
    const double between = distance(key, other);
    if (between >= least) continue;
    least = between;
    algorithm = chosen;
  }
  return std::isfinite(least);
}

void PlanStore::add(const PlanKey &key, const cublas::Algorithm &algorithm) {
  std::lock_guard<std::mutex> lock(mutex_);
  plans_[bytes_of_key(key)] = algorithm;
  read();
  std::string content = header_;
  for (const auto &[bytes, chosen] : plans_) {
    content.append(reinterpret_cast<const char *>(bytes.data()), bytes.size());
    content.append(reinterpret_cast<const char *>(&chosen), sizeof chosen);
  }
  write_cached(path_, content);
}

}  // namespace chagres::ops
