/*
 * What the files of cuDNN's backend share: descriptors as maps of attributes, and the graph that they describe.
 *
 * Numbers are those of cudnn_graph.h of cuDNN 9.19. A descriptor is checked when an attribute is set (its type and
 * count), and again when it is finalized (what its operation needs); a plan is interpreted by execute.cpp, one
 * operation after the other.
 */
#ifndef CHAGRES_CUDNN_BACKEND_H
#define CHAGRES_CUDNN_BACKEND_H

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <vector>

#include "cuda/cuda.h"

namespace chagres::reference::cudnn {

/* cudnnStatus_t */
enum Status {
  kSuccess = 0,
  kNotInitialized = 1001,
  kBadParam = 2000,
  kNullPointer = 2002,
  kMisalignedPointer = 2003,
  kNotFinalized = 2004,
  kOutOfBound = 2005,
  kSizeInsufficient = 2006,
  kShapeMismatch = 2008,
  kDuplicatedEntries = 2009,
  kAttributeType = 2010,
  kDescriptorMismatch = 2012,
  kNotSupported = 3000,
  kGraphPattern = 3001,
  kUnsupportedDataType = 3003,
  kInternalError = 4000,
  kHostAllocationFailed = 4003,
  kExecutionFailed = 5000,
};

/* cudnnBackendDescriptorType_t */
enum DescriptorType {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kEngineHeuristics = 4,
  kExecutionPlan = 5,
  kConvolutionForward = 10,
  kConvolutionBackwardFilter = 11,
  kConvolutionBackwardData = 12,
  kPointwiseOperation = 13,
  kGenStats = 14,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kMatmulOperation = 19,
  kBnFinalize = 20,
  kReduction = 21,
  kReductionOperation = 22,
  kBnBackwardWeights = 23,
  kResample = 24,
  kResampleForward = 25,
  kResampleBackward = 26,
  kConcatenate = 27,
  kNormForward = 29,
  kNormBackward = 30,
  kReshape = 31,
  kRng = 32,
  kRngOperation = 33,
  kPagedCacheLoad = 35,
  kBlockScaleQuantize = 36,
  kBlockScaleDequantize = 37,
  kSdpaForward = 41,
  kMoeGroupedMatmul = 42,
  kSdpaBackward = 43,
};

/* cudnnBackendAttributeType_t */
enum AttributeType {
  kHandleType = 0,
  kDataTypeType = 1,
  kBooleanType = 2,
  kInt64Type = 3,
  kFloatType = 4,
  kDoubleType = 5,
  kPointerType = 6,
  kConvolutionModeType = 7,
  kHeuristicModeType = 8,
  kNanPropagationType = 10,
  kNumericalNoteType = 11,
  kPointwiseModeType = 14,
  kDescriptorType = 15,
  kGenStatsModeType = 16,
  kBnFinalizeModeType = 17,
  kReductionOperatorType = 18,
  kBehaviorNoteType = 19,
  kReorderingModeType = 20,
  kResampleModeType = 21,
  kPaddingModeType = 22,
  kInt32Type = 23,
  kCharType = 24,
  kFractionType = 26,
  kNormModeType = 27,
  kNormPhaseType = 28,
  kRngDistributionType = 29,
  kMoeModeType = 30,
};

/* cudnnDataType_t, without those that the reference lacks */
enum DataType {
  kFloat = 0,
  kDouble = 1,
  kHalf = 2,
  kInt8 = 3,
  kInt32 = 4,
  kUint8 = 6,
  kBfloat16 = 9,
  kInt64 = 10,
  kBoolean = 11,
  kE4m3 = 12,
  kE5m2 = 13,
  kE8m0 = 15,
};

/* Leaves a function with a status and a text for cudnnGetLastErrorString. */
class Refusal : public std::runtime_error {
 public:
  Refusal(int status, const std::string &message) : std::runtime_error(message), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

template <class... Parts>
[[noreturn]] void refuse(int status, const Parts &...parts) {
  throw Refusal(status, text(parts...));
}

/* CHAGRES_REQUIRE(rank > 0, kBadParam, "x: expected dimensions, got ", rank); the text is only made for a refusal. */
#define CHAGRES_REQUIRE(condition, ...)                                    \
  do {                                                                     \
    if (!(condition)) ::chagres::reference::cudnn::refuse(__VA_ARGS__);    \
  } while (false)

/* To be called inside a catch: the status of what was thrown, whose text cudnnGetLastErrorString gets. */
int caught() noexcept;

/* Ends every exported function, so that none throws into C. */
#define CHAGRES_CUDNN_CATCH                       \
  catch (...) {                                   \
    return ::chagres::reference::cudnn::caught(); \
  }

using Dims = std::vector<int64_t>;

constexpr size_t kMostDims = 8;
constexpr int64_t kMany = 65536;
/* Elements of a tensor that the interpreter holds as double. */
constexpr int64_t kMostElements = int64_t(1) << 28;

std::string dims_text(const Dims &dims); /* "[2, 3]" */
int64_t count_of(const Dims &dims);
Dims row_major(const Dims &dims); /* packed strides */

struct TensorSpec {
  int64_t uid = 0;
  int type = kFloat;
  Dims dims, strides;
  int64_t alignment = 1;
  bool is_virtual = false, is_by_value = false;
  std::shared_ptr<const TensorSpec> offsets; /* of a ragged tensor: where each sequence begins, and the last one ends */

  int64_t span() const; /* elements from the first to the last, inclusive */
  std::string text() const;
};

struct Descriptor;

struct Value {
  int type = 0;
  int64_t count = 0;
  std::vector<char> bytes;
  std::vector<std::shared_ptr<const Descriptor>> descriptors;
};

enum class Role { kNone, kRead, kWritten };

/* One type or two that an attribute may have. */
class AttributeTypes {
 public:
  AttributeTypes(int first) : types_{first, first}, count_(1) {}
  AttributeTypes(int first, int second) : types_{first, second}, count_(2) {}
  const int *begin() const { return types_; }
  const int *end() const { return types_ + count_; }

 private:
  int types_[2];
  int count_;
};

/* What a descriptor may have set: types, and how many elements; most 0: cuDNN answers it and nobody sets it. */
struct Attribute {
  int descriptor, name;
  const char *text;
  AttributeTypes types;
  int64_t least, most;
  bool required;
  Role role; /* of the tensor that an operation's attribute names */

  bool type_is(int type) const { return std::find(types.begin(), types.end(), type) != types.end(); }
};

const std::vector<Attribute> &attributes();
const Attribute &attribute(int descriptor, int name); /* refuses what the descriptor lacks */
const char *descriptor_name(int type);
std::string attribute_type_name(int type);
size_t attribute_size(int type); /* bytes of an element; 0 for a type that is unknown */

struct Graph;

/* The descriptor behind a cudnnBackendDescriptor_t; refuses a handle that is none. */
std::shared_ptr<Descriptor> living_descriptor(const void *handle, const char *argument);

/* Puts another descriptor behind a cudnnBackendDescriptor_t. */
void replace_descriptor(const void *handle, std::shared_ptr<Descriptor> made);

struct Descriptor {
  int type = 0;
  bool finalized = false;
  std::map<int, Value> values;
  TensorSpec tensor;                   /* of a finalized tensor */
  std::shared_ptr<const Graph> graph;  /* of a finalized operation graph, and what is made of it */

  bool has(int name) const { return values.count(name) != 0; }
  int64_t integer(int name) const;
  int64_t integer(int name, int64_t otherwise) const { return has(name) ? integer(name) : otherwise; }
  double number(int name, double otherwise) const;
  Dims integers(int name) const; /* fractions are divided, and must be whole */
  const Descriptor &descriptor(int name) const;
  const TensorSpec &spec(int name) const { return descriptor(name).tensor; }
};

/* What an operation reads and writes, in the order of its attributes. */
struct Step {
  std::shared_ptr<const Descriptor> operation;
  std::vector<const TensorSpec *> reads, writes;
};

struct Graph {
  std::vector<Step> steps; /* producers before consumers */
  std::map<int64_t, TensorSpec> tensors;
  std::set<int64_t> negated; /* gradients of sinks, which cuDNN's engine for attention gives with their sign */
};

std::shared_ptr<const Graph> make_graph(const std::vector<std::shared_ptr<const Descriptor>> &operations);

/* Sets an attribute, or refuses it. */
void set_attribute(Descriptor &descriptor, int name, int type, int64_t count, const void *elements);

/* A plan as text, and the graph of a plan that is made of one. */
std::string plan_text(const Descriptor &plan);
std::shared_ptr<const Graph> planned_graph(const Descriptor &plan);

/* Checks a descriptor and makes it finalized. */
void finalize(Descriptor &descriptor);

/* Whether an attribute of an operation names a tensor that it writes: mean and inverse variance are read by inference.
 */
bool writes(const Descriptor &operation, const Attribute &attribute);

/* Each refuses what the operation cannot be: wrong shapes, types, attributes. */
void check_pointwise(const Descriptor &operation);
void check_matmul(const Descriptor &operation);
void check_reduction_operator(const Descriptor &description);
void check_reduction(const Descriptor &operation);
void check_convolution(const Descriptor &operation);
void check_norm_forward(const Descriptor &operation);
void check_norm_backward(const Descriptor &operation);
void check_resample(const Descriptor &operation);
void check_concatenate(const Descriptor &operation);
void check_reshape(const Descriptor &operation);
void check_rng(const Descriptor &operation);
void check_gen_stats(const Descriptor &operation);
void check_bn_finalize(const Descriptor &operation);
void check_bn_backward_weights(const Descriptor &operation);
void check_paged_cache_load(const Descriptor &operation);
void check_block_scale(const Descriptor &operation);
void check_sdpa(const Descriptor &operation);
void check_moe(const Descriptor &operation);

/* Refuses, with "not supported", what is a valid graph that the reference does not compute. */
void check_support(const Graph &graph);

/* ---- Values ---- */

/* A tensor's elements, row-major; each is a value of the tensor's type. */
struct Array {
  Dims dims;
  std::vector<double> values;

  Array() = default;
  explicit Array(const Dims &shape) : dims(shape), values(static_cast<size_t>(count_of(shape))) {}
};

size_t data_type_size(int type); /* 0 for a type that the reference lacks */
const char *data_type_name(int type);
double rounded(double value, int type); /* to the nearest value of the type */
double load_element(const void *data, int64_t index, int type);
void store_element(void *data, int64_t index, int type, double value);

/* The values of a run of a graph. */
class Evaluation {
 public:
  Evaluation(const Graph &graph, const std::map<int64_t, void *> &pointers) : graph_(graph), pointers_(pointers) {}
  const Array &read(const Descriptor &operation, int name) { return read_one_of(operation, name, 0); }
  const Array &read_one_of(const Descriptor &operation, int name, size_t index);
  double scalar(const Descriptor &operation, int name) { return read(operation, name).values[0]; }
  void write(const Descriptor &operation, int name, Array array); /* rounds to the tensor's type */
  void store(); /* what is not virtual goes to memory */

 private:
  const Graph &graph_;
  const std::map<int64_t, void *> &pointers_;
  std::map<int64_t, Array> arrays_;
  std::vector<int64_t> written_;

  /* Calls visit(position, index) for each element in memory: of a ragged tensor, those within its sequences. */
  template <class Visit>
  void placed(const TensorSpec &tensor, Visit &&visit);
};

void compute_pointwise(Evaluation &values, const Descriptor &operation);
void compute_matmul(Evaluation &values, const Descriptor &operation);
void compute_reduction(Evaluation &values, const Descriptor &operation);
void compute_convolution_forward(Evaluation &values, const Descriptor &operation);
void compute_convolution_backward_data(Evaluation &values, const Descriptor &operation);
void compute_convolution_backward_filter(Evaluation &values, const Descriptor &operation);
void compute_norm_forward(Evaluation &values, const Descriptor &operation);
void compute_norm_backward(Evaluation &values, const Descriptor &operation);
void compute_resample_forward(Evaluation &values, const Descriptor &operation);
void compute_resample_backward(Evaluation &values, const Descriptor &operation);
void compute_concatenate(Evaluation &values, const Descriptor &operation);
void compute_reshape(Evaluation &values, const Descriptor &operation);
void compute_rng(Evaluation &values, const Descriptor &operation);
void compute_gen_stats(Evaluation &values, const Descriptor &operation);
void compute_bn_finalize(Evaluation &values, const Descriptor &operation);
void compute_bn_backward_weights(Evaluation &values, const Descriptor &operation);
void compute_paged_cache_load(Evaluation &values, const Descriptor &operation);
void compute_block_scale_quantize(Evaluation &values, const Descriptor &operation);
void compute_block_scale_dequantize(Evaluation &values, const Descriptor &operation);
void compute_sdpa_forward(Evaluation &values, const Descriptor &operation);
void compute_sdpa_backward(Evaluation &values, const Descriptor &operation);
void compute_moe(Evaluation &values, const Descriptor &operation);

/* Refuses a tensor of an operation, where it is set, that has other dimensions. */
void require_dims(const Descriptor &operation, int name, const Dims &dims);

/* Strides by which `small`, whose dimensions are those of `large` or 1, is read along `large`. */
Dims broadcast_strides(const Dims &small, const Dims &large);
bool broadcasts(const Dims &small, const Dims &large);
bool divides(const Dims &small, const Dims &large); /* each dimension that of `large` */

/* Calls visit(position, offsets) for each element of `dims`, in row-major order; offsets move by strides. */
template <size_t N, class Visit>
void walk(const Dims &dims, const std::array<Dims, N> &strides, Visit &&visit) {
  const int64_t count = count_of(dims);
  Dims index(dims.size(), 0);
  std::array<int64_t, N> offsets{};
  for (int64_t position = 0; position < count; ++position) {
    visit(position, offsets);
    for (size_t d = dims.size(); d-- > 0;) {
      for (size_t n = 0; n < N; ++n) offsets[n] += strides[n][d];
      if (++index[d] < dims[d]) break;
      for (size_t n = 0; n < N; ++n) offsets[n] -= dims[d] * strides[n][d];
      index[d] = 0;
    }
  }
}

}  // namespace chagres::reference::cudnn

#endif /* CHAGRES_CUDNN_BACKEND_H */
