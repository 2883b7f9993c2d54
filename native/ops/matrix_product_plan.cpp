/* A plan as cuBLASLt's description of a product: the one that Transformer Engine makes, so that the first kernel of its
 * heuristic gives the same bits. cuBLASLt is column-major: its A is our b, its m our n. */
#include "matrix_product_plan.h"

namespace chagres::ops {
namespace {

constexpr uintptr_t kWorkspaceAlignment = 256;

/* The largest power of 2 up to 256 that divides the address. */
int32_t alignment_of(const void *address) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(address) | kWorkspaceAlignment;
  return static_cast<int32_t>(bits & (~bits + 1));
}

int data_type(int dtype) {
  switch (dtype) {
    case kFloat16: return cublas::kR16F;
    case kBFloat16: return cublas::kR16BF;
    case kFloat8E4M3: return cublas::kR8FE4M3;
    case kFloat8E5M2: return cublas::kR8FE5M2;
    default: return cublas::kR32F;
  }
}

int epilogue_of(int epilogue) {
  switch (epilogue) {
    case OPS_EPILOGUE_BIAS: return cublas::kBias;
    case OPS_EPILOGUE_GELU: return cublas::kGeluAux;
    case OPS_EPILOGUE_BIAS_GELU: return cublas::kGeluAuxBias;
    case OPS_EPILOGUE_GELU_GRADIENT: return cublas::kDGelu;
    case OPS_EPILOGUE_BIAS_GRADIENT: return cublas::kBGradB;
    default: return cublas::kDefault;
  }
}

int scale_mode(int scaling) {
  return scaling == kRowBlocks ? cublas::kVec128 : scaling == kSquareBlocks ? cublas::kBlock128x128 : cublas::kScalar32F;
}

class Preference {
 public:
  explicit Preference(const cublas::Library &library) : library_(library) {}
  Preference(const Preference &) = delete;
  Preference &operator=(const Preference &) = delete;
  ~Preference() {
    if (preference_ != nullptr) library_.preference_destroy(preference_);
  }

  int create() { return library_.preference_create(&preference_); }
  template <class T>
  int set(int attribute, const T &value) {
    return library_.preference_set(preference_, attribute, &value, sizeof value);
  }
  cublas::Preference get() const { return preference_; }

 private:
  const cublas::Library &library_;
  cublas::Preference preference_ = nullptr;
};

}  // namespace

AlignedWorkspace aligned_workspace(const OpsMatrixProduct &product) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(product.workspace);
  const uintptr_t skipped = (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
  if (product.workspace_bytes <= static_cast<int64_t>(skipped)) return {nullptr, 0};
  return {static_cast<char *>(product.workspace) + skipped, static_cast<size_t>(product.workspace_bytes) - skipped};
}

PlanKey key_of(const OpsMatrixProduct &p) {
  PlanKey key = {};
  key.m = p.m;
  key.n = p.n;
  key.k = p.k;
  key.workspace_bytes = static_cast<int64_t>(aligned_workspace(p).bytes);
  key.a_dtype = p.a_dtype;
  key.b_dtype = p.b_dtype;
  key.d_dtype = p.d_dtype;
  key.trans_a = p.trans_a;
  key.trans_b = p.trans_b;
  key.a_scaling = p.a_scaling;
  key.b_scaling = p.b_scaling;
  key.epilogue = p.epilogue;
  key.accumulator = is_float8(p) ? p.accumulator : 0;
  key.multiprocessors = p.multiprocessors;
  key.a_alignment = alignment_of(p.a);
  key.b_alignment = alignment_of(p.b);
  key.d_alignment = alignment_of(p.d);
  key.bias_alignment = has_bias(p) ? alignment_of(p.bias) : 0;
  key.pre_gelu_alignment = has_pre_gelu(p) ? alignment_of(p.pre_gelu) : 0;
  return key;
}

std::unique_ptr<Plan> Plan::make(const PlanSite &site, const OpsMatrixProduct &product, int &status) {
  std::unique_ptr<Plan> plan(new Plan(site.library, product));
  int error = plan->describe(product);
  if (error != 0) {
    status = cublas::failure(site.function, site.library, "the description of a product for cuBLASLt", error);
    return nullptr;
  }
  std::vector<cublas::Heuristic> answers;
  error = plan->ask(site.handle, 1, answers);
  if (error != 0 && error != cublas::kNotSupported) {
    status = cublas::failure(site.function, site.library, "cublasLtMatmulAlgoGetHeuristic", error);
    return nullptr;
  }
  if (answers.empty()) {
    status = fail(OPS_CUDA_ERROR,
                  format("%s: cuBLASLt %zu has no kernel for m %s, n %s, k %s with a_dtype %d, b_dtype %d, d_dtype %d and "
                         "epilogue %d; sizes and addresses that are multiples of 16 bytes fit most of them",
                         site.function, site.library.version(), number(product.m).c_str(), number(product.n).c_str(),
                         number(product.k).c_str(), product.a_dtype, product.b_dtype, product.d_dtype, product.epilogue));
    return nullptr;
  }
  plan->first_ = plan->fastest_ = answers[0].algorithm;
  return plan;
}

Plan::~Plan() {
  for (const cublas::Layout layout : {a_, b_, d_})
    if (layout != nullptr) library_.layout_destroy(layout);
  if (descriptor_ != nullptr) library_.descriptor_destroy(descriptor_);
}

int Plan::set(int attribute, const void *value, size_t bytes) const {
  return library_.descriptor_set(descriptor_, attribute, value, bytes);
}

int Plan::describe(const OpsMatrixProduct &product) {
  const bool tf32 = product.a_dtype == kFloat32 && product.d_dtype == kFloat32;
  const int compute = tf32 ? cublas::kCompute32FFastTf32 : cublas::kCompute32F;
  const int a_operation = product.trans_b != 0 ? cublas::kOperationT : cublas::kOperationN;
  const int b_operation = product.trans_a != 0 ? cublas::kOperationT : cublas::kOperationN;
  int error = describe_layouts();
  if (error == 0) error = library_.descriptor_create(&descriptor_, compute, cublas::kR32F);
  if (error == 0) error = set(cublas::kTransA, &a_operation, sizeof a_operation);
  if (error == 0) error = set(cublas::kTransB, &b_operation, sizeof b_operation);
  if (error == 0 && product.multiprocessors != 0)
    error = set(cublas::kSmCountTarget, &product.multiprocessors, sizeof product.multiprocessors);
  if (error == 0 && is_float8(product)) error = describe_float8(product);
  if (error == 0) error = describe_epilogue(product);
  return error == 0 ? point(product, true) : error;
}

int Plan::describe_layouts() {
  const auto m = static_cast<uint64_t>(key_.n), n = static_cast<uint64_t>(key_.m), k = static_cast<uint64_t>(key_.k);
  const bool transposed_a = key_.trans_b != 0, transposed_b = key_.trans_a != 0;
  const auto create = [&](cublas::Layout *layout, int dtype, uint64_t rows, uint64_t columns) {
    return library_.layout_create(layout, data_type(dtype), rows, columns, static_cast<int64_t>(rows));
  };
  int error = create(&a_, key_.b_dtype, transposed_a ? k : m, transposed_a ? m : k);
  if (error == 0) error = create(&b_, key_.a_dtype, transposed_b ? n : k, transposed_b ? k : n);
  return error == 0 ? create(&d_, key_.d_dtype, m, n) : error;
}

int Plan::describe_float8(const OpsMatrixProduct &product) {
  const int8_t fast = product.accumulator == OPS_ACCUMULATOR_FAST ? 1 : 0;
  const int a_mode = scale_mode(product.b_scaling), b_mode = scale_mode(product.a_scaling);
  int error = set(cublas::kFastAccum, &fast, sizeof fast);
  if (error == 0) error = set(cublas::kAScaleMode, &a_mode, sizeof a_mode);
  if (error == 0) error = set(cublas::kBScaleMode, &b_mode, sizeof b_mode);
  if (error != 0 || !has_bias(product)) return error;
  const int type = data_type(bias_dtype(product));
  return set(cublas::kBiasDataType, &type, sizeof type);
}

int Plan::describe_epilogue(const OpsMatrixProduct &product) {
  const int epilogue = epilogue_of(product.epilogue);
  int error = set(cublas::kEpilogue, &epilogue, sizeof epilogue);
  if (error != 0 || !has_pre_gelu(product)) return error;
  const int64_t leading = product.n;
  const int type = data_type(product.d_dtype);
  error = set(cublas::kEpilogueAuxLd, &leading, sizeof leading);
  return error == 0 ? set(cublas::kEpilogueAuxDataType, &type, sizeof type) : error;
}

/* Sets the pointers that the descriptor holds, `all` or those that changed. */
int Plan::point(const OpsMatrixProduct &product, bool all) {
  int error = 0;
  const auto pointer = [&](bool wanted, int attribute, const void *&known, const void *now) {
    if (error != 0 || !wanted || (!all && known == now)) return;
    error = set(attribute, &now, sizeof now);
    known = error == 0 ? now : nullptr;
  };
  pointer(has_bias(product), cublas::kBiasPointer, pointers_.bias, product.bias);
  pointer(has_pre_gelu(product), cublas::kEpilogueAuxPointer, pointers_.pre_gelu, product.pre_gelu);
  pointer(is_float8(product), cublas::kAScalePointer, pointers_.a_scale, product.b_scale_inverse);
  pointer(is_float8(product), cublas::kBScalePointer, pointers_.b_scale, product.a_scale_inverse);
  return error;
}

/* Asks for kernels that add no parts of a sum up in 16 bits, as Transformer Engine does. */
int Plan::ask(cublas::Handle handle, int wanted, std::vector<cublas::Heuristic> &answers) const {
  answers.clear();
  Preference preference(library_);
  const auto bytes = static_cast<size_t>(key_.workspace_bytes);
  const auto alignment = [](int32_t value) { return static_cast<uint32_t>(value); };
  int error = preference.create();
  if (error == 0) error = preference.set(cublas::kMaxWorkspaceBytes, bytes);
  if (error == 0) error = preference.set(cublas::kMinAlignmentA, alignment(key_.b_alignment));
  if (error == 0) error = preference.set(cublas::kMinAlignmentB, alignment(key_.a_alignment));
  if (error == 0) error = preference.set(cublas::kMinAlignmentC, alignment(key_.d_alignment));
  if (error == 0) error = preference.set(cublas::kMinAlignmentD, alignment(key_.d_alignment));
  if (error == 0) error = preference.set(cublas::kReductionSchemeMask, cublas::kReductionInComputeType);
  if (error != 0) return error;
  std::vector<cublas::Heuristic> found(static_cast<size_t>(wanted));
  int count = 0;
  error = library_.heuristic(handle, descriptor_, a_, b_, d_, d_, preference.get(), wanted, found.data(), &count);
  if (error != 0) return error;
  for (int i = 0; i < count; ++i) {
    const cublas::Heuristic &answer = found[static_cast<size_t>(i)];
    if (answer.state == 0 && answer.workspace_bytes <= bytes) answers.push_back(answer);
  }
  return 0;
}

int Plan::enqueue(const PlanSite &site, const OpsMatrixProduct &product, const cublas::Algorithm &algorithm,
                  OpsStream stream) const {
  const float one = 1;
  const AlignedWorkspace workspace = aligned_workspace(product);
  return library_.matmul(site.handle, descriptor_, &one, product.b, a_, product.a, b_, &product.accumulate, product.d, d_,
                         product.d, d_, &algorithm, workspace.memory, workspace.bytes, stream);
}

int Plan::run(const PlanSite &site, const OpsMatrixProduct &product, OpsStream stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  int error = point(product, false);
  if (error != 0) return cublas::failure(site.function, library_, "cublasLtMatmulDescSetAttribute", error);
  const bool fastest = product.plan == OPS_PLAN_MEASURED;
  if (fastest && !measured_) {
    const int status = settle(site, product, stream);
    if (status != OPS_SUCCESS) return status;
  }
  error = enqueue(site, product, fastest ? fastest_ : first_, stream);
  return error == 0 ? OPS_SUCCESS : cublas::failure(site.function, library_, "cublasLtMatmul", error);
}

}  // namespace chagres::ops
