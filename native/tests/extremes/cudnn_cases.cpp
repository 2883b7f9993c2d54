/* cuDNN's functions. */
#include "cases.h"

namespace extremes {

namespace {

constexpr int kDescriptor = 15, kInt64 = 3, kDataType = 1, kPointer = 6, kHandle = 0, kMode = 14;
constexpr int kTensor = 17, kPointwise = 0, kPointwiseOperation = 13, kGraph = 15, kEngine = 2, kConfiguration = 3,
              kPlan = 5, kPack = 16;

/* A handle that lives until the call has been made. */
void *handle(Fixture &f) {
  void *made = nullptr;
  symbol<int(void **)>("cudnnCreate")(&made);
  f.finally([=] { symbol<int(void *)>("cudnnDestroy")(made); });
  return made;
}

void *dead_handle(Fixture &) {
  void *made = nullptr;
  symbol<int(void **)>("cudnnCreate")(&made);
  return made;
}

void **owned_handle(Fixture &f) {
  auto *pointer = f.out<void *>();
  f.finally([=] { symbol<int(void *)>("cudnnDestroy")(*pointer); });
  return pointer;
}

void **owned_descriptor(Fixture &f) {
  auto *pointer = f.out<void *>();
  f.finally([=] { symbol<int(void *)>("cudnnBackendDestroyDescriptor")(*pointer); });
  return pointer;
}

/* A descriptor and its attributes, which are finalized by `finalized`. */
class Described {
 public:
  Described(Fixture &f, int type) {
    symbol<int(int, void **)>("cudnnBackendCreateDescriptor")(type, &made_);
    f.finally([made = made_] { symbol<int(void *)>("cudnnBackendDestroyDescriptor")(made); });
  }
  template <class T>
  Described &set(int name, int type, std::initializer_list<T> values) {
    symbol<int(void *, int, int, int64_t, const void *)>("cudnnBackendSetAttribute")(
        made_, name, type, static_cast<int64_t>(values.size()), values.begin());
    return *this;
  }
  Described &link(int name, void *other) { return set<void *>(name, kDescriptor, {other}); }
  void *open() const { return made_; }
  void *finalized() const {
    symbol<int(void *)>("cudnnBackendFinalize")(made_);
    return made_;
  }

 private:
  void *made_ = nullptr;
};

Described tensor(Fixture &f, int64_t uid) {
  Described made(f, kTensor);
  made.set<int64_t>(900, kInt64, {16}).set<int32_t>(901, kDataType, {0}).set<int64_t>(902, kInt64, {1, 1, 8});
  made.set<int64_t>(903, kInt64, {8, 8, 1}).set<int64_t>(906, kInt64, {uid});
  return made;
}

/* The plan of y = -x, of 8 elements. */
void *plan(Fixture &f, void *of) {
  Described detail(f, kPointwise), operation(f, kPointwiseOperation), graph(f, kGraph), engine(f, kEngine),
      configuration(f, kConfiguration), plan(f, kPlan);
  detail.set<int32_t>(0, kMode, {16}).set<int32_t>(1, kDataType, {0});
  operation.link(750, detail.finalized()).link(751, tensor(f, 1).finalized()).link(753, tensor(f, 2).finalized());
  graph.set<void *>(800, kHandle, {of}).link(801, operation.finalized());
  engine.link(1300, graph.finalized()).set<int64_t>(1301, kInt64, {0});
  return plan.link(401, configuration.link(300, engine.finalized()).finalized()).finalized();
}

void *pack(Fixture &f) {
  Described pack(f, kPack);
  return pack.set<int64_t>(1000, kInt64, {1, 2}).set<void *>(1001, kPointer, {f.device(32), f.device(32)}).finalized();
}

void *to_destroy(Fixture &) {
  void *made = nullptr;
  symbol<int(int, void **)>("cudnnBackendCreateDescriptor")(kTensor, &made);
  return made;
}

}  // namespace

std::vector<Case> cudnn_cases() {
  return {
      CASE_AS(cudnnGetVersion, size_t()),
      CASE_AS(cudnnGetMaxDeviceVersion, size_t()),
      CASE_AS(cudnnGetCudartVersion, size_t()),
      CASE_AS(cudnnGetErrorString, const char *(int), 1),
      CASE_AS(cudnnGetLastErrorString, void(char *, size_t), f.out<char>(256), 256),
      CASE_AS(cudnnCreate, int(void **), owned_handle(f)),
      CASE_AS(cudnnDestroy, int(void *), dead_handle(f)),
      CASE_AS(cudnnSetStream, int(void *, void *), handle(f), f.stream()),
      CASE_AS(cudnnGetStream, int(void *, void **), handle(f), f.out<void *>()),
      CASE_AS(cudnnBackendCreateDescriptor, int(int, void **), kTensor, owned_descriptor(f)),
      CASE_AS(cudnnBackendDestroyDescriptor, int(void *), to_destroy(f)),
      CASE_AS(cudnnBackendInitialize, int(void *), tensor(f, 1).open()),
      CASE_AS(cudnnBackendFinalize, int(void *), tensor(f, 1).open()),
      CASE_AS(cudnnBackendSetAttribute, int(void *, int, int, int64_t, const void *), tensor(f, 1).open(), 902, kInt64,
              3, f.values<int64_t>({1, 2, 3})),
      CASE_AS(cudnnBackendGetAttribute, int(const void *, int, int, int64_t, int64_t *, void *),
              tensor(f, 1).finalized(), 902, kInt64, 3, f.out<int64_t>(), f.out<int64_t>(3)),
      CASE_AS(cudnnBackendExecute, int(void *, void *, void *), handle(f), plan(f, handle(f)), pack(f)),
  };
}

}  // namespace extremes
