/* The plans that were measured, in one file of the cache folder for a kind of device and a version of cuBLASLt. */
#ifndef CHAGRES_OPS_MATRIX_PRODUCT_STORE_H
#define CHAGRES_OPS_MATRIX_PRODUCT_STORE_H

#include <array>
#include <map>
#include <mutex>
#include <string>

#include "matrix_product_plan.h"

namespace chagres::ops {

class PlanStore {
 public:
  /* device: its name and whatever else tells it from others. */
  PlanStore(const std::string &folder, const std::string &device, size_t cublas_version);

  bool find(const PlanKey &key, cublas::Algorithm &algorithm);

  /* The algorithm of the nearest key whose sizes differ by at most an eighth each, and nothing else. */
  bool find_near(const PlanKey &key, cublas::Algorithm &algorithm);

  /* Keeps an algorithm, and what other processes wrote meanwhile. Where the file cannot be written, later processes measure
   * again. */
  void add(const PlanKey &key, const cublas::Algorithm &algorithm);

 private:
  using Bytes = std::array<unsigned char, sizeof(PlanKey)>;
  static Bytes bytes_of_key(const PlanKey &key);

  void read();

  std::string header_, path_;
  std::map<Bytes, cublas::Algorithm> plans_;
  bool read_ = false;
  std::mutex mutex_;
};

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_MATRIX_PRODUCT_STORE_H */
