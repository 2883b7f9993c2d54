/*
 * Plans of matrix products: cuBLASLt's description of one kind of product and the kernel that computes it. Making one asks
 * cuBLASLt's heuristic; afterwards a product reads one table without a lock, sets the pointers that changed, and
 * allocates nothing.
 */
#ifndef CHAGRES_OPS_MATRIX_PRODUCT_PLAN_H
#define CHAGRES_OPS_MATRIX_PRODUCT_PLAN_H

#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "cublas.h"
#include "matrix_product_checks.h"

namespace chagres::ops {

/* All that the choice of a kernel depends on, the device and cuBLASLt's version apart. Compared and stored byte by byte: it
 * has no padding. */
struct PlanKey {
  int64_t m, n, k, workspace_bytes;
  int32_t a_dtype, b_dtype, d_dtype, trans_a, trans_b, a_scaling, b_scaling, epilogue, accumulator, multiprocessors;
  int32_t a_alignment, b_alignment, d_alignment, bias_alignment, pre_gelu_alignment, zero;

  bool operator==(const PlanKey &other) const { return memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(sizeof(PlanKey) == 12 * sizeof(uint64_t), "PlanKey has padding");

/* The part of a workspace that starts at a multiple of 256 bytes. */
struct AlignedWorkspace {
  void *memory;
  size_t bytes;
};
AlignedWorkspace aligned_workspace(const OpsMatrixProduct &product);

PlanKey key_of(const OpsMatrixProduct &product);

class PlanStore;

/* What a plan needs besides the product. */
struct PlanSite {
  const char *function;
  const cublas::Library &library;
  cublas::Handle handle;
  PlanStore &store;
};

class Plan {
 public:
  /* Null, with the text set and *status, when cuBLASLt has no kernel for the product. */
  static std::unique_ptr<Plan> make(const PlanSite &site, const OpsMatrixProduct &product, int &status);
  ~Plan();
  Plan(const Plan &) = delete;
  Plan &operator=(const Plan &) = delete;

  const PlanKey &key() const { return key_; }

  /* Enqueues the product, whose key is that of the plan. */
  int run(const PlanSite &site, const OpsMatrixProduct &product, OpsStream stream);

 private:
  struct Pointers {
    const void *bias, *pre_gelu, *a_scale, *b_scale;
  };

  Plan(const cublas::Library &library, const OpsMatrixProduct &product) : library_(library), key_(key_of(product)) {}

  int describe(const OpsMatrixProduct &product);
  int describe_layouts();
  int describe_float8(const OpsMatrixProduct &product);
  int describe_epilogue(const OpsMatrixProduct &product);
  int point(const OpsMatrixProduct &product, bool all);
  int set(int attribute, const void *value, size_t bytes) const;
  int ask(cublas::Handle handle, int wanted, std::vector<cublas::Heuristic> &answers) const;

  int enqueue(const PlanSite &site, const OpsMatrixProduct &product, const cublas::Algorithm &algorithm,
              OpsStream stream) const;
  int settle(const PlanSite &site, const OpsMatrixProduct &product, OpsStream stream);
  bool recall(const PlanSite &site);
  bool takes(const PlanSite &site, const cublas::Algorithm &stored);
  int measure(const PlanSite &site, const OpsMatrixProduct &product, OpsStream stream);

  const cublas::Library &library_;
  const PlanKey key_;
  cublas::Descriptor descriptor_ = nullptr;
  cublas::Layout a_ = nullptr, b_ = nullptr, d_ = nullptr;
  Pointers pointers_ = {};
  cublas::Algorithm first_ = {}, fastest_ = {};
  bool measured_ = false;
  std::mutex mutex_; /* the descriptor holds the pointers of the product that is enqueued */
};

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_MATRIX_PRODUCT_PLAN_H */
