/* cuDNN's backend functions: what a graph of them gives, what they refuse with which text, and 100,000 calls with
 * mutations. */
#include <cstring>

#include "check.h"
#include "cudnn/backend.h"

extern "C" {
int cudnnCreate(void **);
int cudnnDestroy(void *);
int cudnnSetStream(void *, void *);
int cudnnGetStream(void *, void **);
int cudnnBackendCreateDescriptor(int, void **);
int cudnnBackendDestroyDescriptor(void *);
int cudnnBackendInitialize(void *);
int cudnnBackendFinalize(void *);
int cudnnBackendSetAttribute(void *, int, int, int64_t, const void *);
int cudnnBackendGetAttribute(const void *, int, int, int64_t, int64_t *, void *);
int cudnnBackendExecute(void *, void *, void *);
void cudnnGetLastErrorString(char *, size_t);
}

namespace {

using namespace chagres::reference::cudnn;

std::string last_error() {
  char text[1024];
  cudnnGetLastErrorString(text, sizeof(text));
  return text;
}

/* One attribute of one descriptor, as bytes, or as the numbers of other descriptors. */
struct Setting {
  size_t descriptor;
  int name, type;
  int64_t count;
  std::vector<char> bytes;
  std::vector<size_t> descriptors;
};

template <class T>
std::vector<char> bytes_of(std::initializer_list<T> values) {
  std::vector<char> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

/* What is done in order: y = gelu(a b + bias), planned and run. */
struct Script {
  std::vector<int> types; /* of the descriptors */
  std::vector<Setting> settings;
  size_t initialized = SIZE_MAX; /* which descriptor is made new before the run */
  std::vector<size_t> last; /* for each descriptor, the number of settings before it is finalized */

  size_t add(int type) {
    types.push_back(type);
    last.push_back(0);
    return types.size() - 1;
  }
  void set(size_t descriptor, int name, int type, int64_t count, std::vector<char> bytes) {
    settings.push_back({descriptor, name, type, count, std::move(bytes), {}});
    last[descriptor] = settings.size();
  }
  void link(size_t descriptor, int name, std::vector<size_t> others) {
    settings.push_back({descriptor, name, kDescriptorType, static_cast<int64_t>(others.size()), {}, others});
    last[descriptor] = settings.size();
  }
  size_t tensor(int64_t uid, int type, Dims dims, bool is_virtual) {
    const size_t made = add(kTensor);
    const Dims strides = row_major(dims);
    const auto raw = [](const Dims &numbers) {
      std::vector<char> bytes(numbers.size() * 8);
      std::memcpy(bytes.data(), numbers.data(), bytes.size());
      return bytes;
    };
    set(made, 901, kDataTypeType, 1, bytes_of<int32_t>({type}));
    set(made, 902, kInt64Type, static_cast<int64_t>(dims.size()), raw(dims));
    set(made, 903, kInt64Type, static_cast<int64_t>(dims.size()), raw(strides));
    set(made, 906, kInt64Type, 1, bytes_of<int64_t>({uid}));
    set(made, 900, kInt64Type, 1, bytes_of<int64_t>({16}));
    set(made, 907, kBooleanType, 1, bytes_of<char>({static_cast<char>(is_virtual)}));
    return made;
  }
  size_t pointwise(int mode, size_t x, size_t b, size_t y) {
    const size_t detail = add(kPointwise);
    set(detail, 0, kPointwiseModeType, 1, bytes_of<int32_t>({mode}));
    set(detail, 1, kDataTypeType, 1, bytes_of<int32_t>({kFloat}));
    const size_t operation = add(kPointwiseOperation);
    link(operation, 750, {detail});
    link(operation, 751, {x});
    if (b != x) link(operation, 752, {b});
    link(operation, 753, {y});
    return operation;
  }
};

struct Fixture {
  alignas(16) float a[2 * 3] = {1, 2, 3, 4, 5, 6}, b[3 * 4] = {1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1, 1},
                          bias[4] = {0, 1, 2, 3}, y[2 * 4] = {};
  check::Known known_a{a, sizeof(a)}, known_b{b, sizeof(b)}, known_bias{bias, sizeof(bias)}, known_y{y, sizeof(y)};
  void *handle = nullptr;
  Script script;

  Fixture() {
    EXPECT_EQUAL(cudnnCreate(&handle), 0);
    const size_t ta = script.tensor(1, kFloat, {1, 2, 3}, false), tb = script.tensor(2, kFloat, {1, 3, 4}, false);
    const size_t tbias = script.tensor(3, kFloat, {1, 1, 4}, false), tc = script.tensor(4, kFloat, {1, 2, 4}, true);
    const size_t td = script.tensor(5, kFloat, {1, 2, 4}, true), ty = script.tensor(6, kFloat, {1, 2, 4}, false);
    const size_t detail = script.add(kMatmul);
    script.set(detail, 1500, kDataTypeType, 1, bytes_of<int32_t>({kFloat}));
    const size_t product = script.add(kMatmulOperation);
    script.link(product, 1520, {ta});
    script.link(product, 1521, {tb});
    script.link(product, 1522, {tc});
    script.link(product, 1523, {detail});
    const size_t sum = script.pointwise(0, tc, tbias, td), relu = script.pointwise(100, td, td, ty);
    const size_t graph = script.add(kOperationGraph);
    script.set(graph, 800, kHandleType, 1, bytes_of<void *>({handle}));
    script.link(graph, 801, {relu, sum, product});
    const size_t heuristics = script.add(kEngineHeuristics);
    script.link(heuristics, 201, {graph});
    script.set(heuristics, 200, kHeuristicModeType, 1, bytes_of<int32_t>({3}));
    const size_t engine = script.add(kEngine);
    script.link(engine, 1300, {graph});
    script.set(engine, 1301, kInt64Type, 1, bytes_of<int64_t>({0}));
    const size_t configuration = script.add(kEngineConfig);
    script.link(configuration, 300, {engine});
    const size_t plan = script.add(kExecutionPlan);
    script.set(plan, 400, kHandleType, 1, bytes_of<void *>({handle}));
    script.link(plan, 401, {configuration});
    const size_t pack = script.add(kVariantPack);
    script.set(pack, 1000, kInt64Type, 4, bytes_of<int64_t>({1, 2, 3, 6}));
    script.set(pack, 1001, kPointerType, 4, bytes_of<void *>({a, b, bias, y}));
  }
  ~Fixture() { EXPECT_EQUAL(cudnnDestroy(handle), 0); }
};

/* Plays a script; the last two descriptors are the plan and the pack. Returns the first status that is no success. */
int play(const Script &script, void *handle, const std::vector<char> &room, bool *executed) {
  std::vector<void *> handles(script.types.size(), nullptr);
  int first = 0;
  const auto note = [&](int status) {
    if (status == 0) return;
    if (last_error().empty()) check::report(__FILE__, __LINE__, "status ", status, " has no text");
    if (first == 0) first = status;
  };
  for (size_t i = 0; i < handles.size(); ++i) note(cudnnBackendCreateDescriptor(script.types[i], &handles[i]));
  for (size_t i = 0; i < script.settings.size(); ++i) {
    const Setting &setting = script.settings[i];
    std::vector<char> elements = setting.bytes;
    for (const size_t other : setting.descriptors) {
      const void *pointer = other < handles.size() ? handles[other] : reinterpret_cast<void *>(other);
      elements.insert(elements.end(), reinterpret_cast<const char *>(&pointer),
                      reinterpret_cast<const char *>(&pointer + 1));
    }
    elements.insert(elements.end(), room.begin(), room.end());
    note(cudnnBackendSetAttribute(handles[setting.descriptor], setting.name, setting.type, setting.count,
                                  elements.data()));
    for (size_t d = 0; d < handles.size(); ++d)
      if (script.last[d] == i + 1) note(cudnnBackendFinalize(handles[d]));
  }
  if (script.initialized < handles.size()) note(cudnnBackendInitialize(handles[script.initialized]));
  const int status = cudnnBackendExecute(handle, handles[handles.size() - 2], handles.back());
  note(status);
  *executed = status == 0;
  int64_t count = 0, answer[64] = {};
  for (const size_t i : {size_t{0}, handles.size() - 2, handles.size() - 4})
    cudnnBackendGetAttribute(handles[i], script.settings[0].name, script.settings[0].type, 8, &count, answer);
  last_error();
  for (void *descriptor : handles)
    if (descriptor != nullptr) cudnnBackendDestroyDescriptor(descriptor);
  return first;
}

const std::vector<char> &some_room() {
  static const std::vector<char> room(64);
  return room;
}

/* Finalizing a graph asks for its own operations, whatever the order. */
TEST(a_graph_is_computed) {
  Fixture f;
  bool executed = false;
  EXPECT_EQUAL(play(f.script, f.handle, some_room(), &executed), 0);
  EXPECT(executed);
  const float expected[] = {1, 3, 5, 9, 4, 6, 8, 18};
  for (int i = 0; i < 8; ++i) EXPECT_EQUAL(f.y[i], expected[i]);
}

TEST(refusals_have_texts) {
  Fixture f;
  void *tensor = nullptr;
  EXPECT_EQUAL(cudnnBackendCreateDescriptor(kTensor, &tensor), 0);
  const int64_t dims[] = {2, 0};
  const int32_t type = kFloat;
  EXPECT_EQUAL(cudnnBackendSetAttribute(tensor, 902, kInt32Type, 2, dims), kAttributeType);
  EXPECT_EQUAL(last_error(),
               std::string("CUDNN_ATTR_TENSOR_DIMENSIONS: expected CUDNN_TYPE_INT64, got CUDNN_TYPE_INT32"));
  EXPECT_EQUAL(last_error(), std::string());
  EXPECT_EQUAL(cudnnBackendSetAttribute(tensor, 902, kInt64Type, 9, dims), kBadParam);
  EXPECT_EQUAL(last_error(), std::string("CUDNN_ATTR_TENSOR_DIMENSIONS: expected 1 to 8 elements, got 9"));
  EXPECT_EQUAL(cudnnBackendSetAttribute(tensor, 1520, kInt64Type, 1, dims), kBadParam);
  EXPECT_EQUAL(last_error(), std::string("attribute 1520: expected one of CUDNN_BACKEND_TENSOR_DESCRIPTOR"));
  EXPECT_EQUAL(cudnnBackendFinalize(tensor), kBadParam);
  EXPECT_EQUAL(last_error(),
               std::string("CUDNN_BACKEND_TENSOR_DESCRIPTOR: expected CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT to be set"));
  const int64_t one = 1, alignment = 16;
  EXPECT_EQUAL(cudnnBackendSetAttribute(tensor, 900, kInt64Type, 1, &alignment), 0);
  EXPECT_EQUAL(cudnnBackendSetAttribute(tensor, 901, kDataTypeType, 1, &type), 0);
  EXPECT_EQUAL(cudnnBackendSetAttribute(tensor, 902, kInt64Type, 2, dims), 0);
  EXPECT_EQUAL(cudnnBackendSetAttribute(tensor, 903, kInt64Type, 2, dims), 0);
  EXPECT_EQUAL(cudnnBackendSetAttribute(tensor, 906, kInt64Type, 1, &one), 0);
  EXPECT_EQUAL(cudnnBackendFinalize(tensor), kBadParam);
  EXPECT_EQUAL(last_error(), std::string("CUDNN_ATTR_TENSOR_DIMENSIONS: expected at least 1, got [2, 0]"));
  void *operation = nullptr;
  EXPECT_EQUAL(cudnnBackendCreateDescriptor(kMatmulOperation, &operation), 0);
  EXPECT_EQUAL(cudnnBackendSetAttribute(operation, 1520, kDescriptorType, 1, &tensor), kNotFinalized);
  EXPECT_EQUAL(last_error(), std::string("CUDNN_ATTR_OPERATION_MATMUL_ADESC: expected a finalized descriptor, got "
                                         "CUDNN_BACKEND_TENSOR_DESCRIPTOR that is not"));
  EXPECT_EQUAL(cudnnBackendDestroyDescriptor(operation), 0);
  EXPECT_EQUAL(cudnnBackendDestroyDescriptor(operation), kBadParam);
  EXPECT_EQUAL(cudnnBackendDestroyDescriptor(tensor), 0);
  void *attention = nullptr;
  EXPECT_EQUAL(cudnnBackendCreateDescriptor(39, &attention), kNotSupported);
  EXPECT_EQUAL(last_error(),
               std::string("CUDNN_BACKEND_OPERATION_EXPAND_BAND_MATRIX_DESCRIPTOR (39) is not provided by the CPU reference"));
  EXPECT_EQUAL(cudnnBackendCreateDescriptor(kTensor, nullptr), kNullPointer);
  EXPECT_EQUAL(cudnnBackendExecute(f.handle, nullptr, nullptr), kBadParam);
  EXPECT_EQUAL(last_error(), std::string("executionPlan: expected a descriptor that lives"));
}

TEST(a_handle_has_a_stream) {
  void *handle = nullptr, *stream = &handle;
  EXPECT_EQUAL(cudnnCreate(&handle), 0);
  EXPECT_EQUAL(cudnnGetStream(handle, &stream), 0);
  EXPECT(stream == nullptr);
  EXPECT_EQUAL(cudnnSetStream(handle, &stream), kBadParam);
  EXPECT_EQUAL(cudnnSetStream(handle, nullptr), 0);
  EXPECT_EQUAL(cudnnDestroy(handle), 0);
  EXPECT_EQUAL(cudnnDestroy(handle), kBadParam);
  EXPECT_EQUAL(cudnnGetStream(handle, &stream), kBadParam);
}

int64_t extreme() {
  constexpr int64_t all[] = {-1,        0,        1, 2, 3, 5, 8, 16, 100, 501, 601, int64_t(1) << 31, int64_t(1) << 40,
                             INT64_MAX, INT64_MIN};
  return all[check::random()() % (sizeof(all) / sizeof(all[0]))];
}

/* Changes one thing of a script. */
void mutate(Script &script) {
  auto &random = check::random();
  Setting &setting = script.settings[random() % script.settings.size()];
  const auto &known = attributes();
  switch (random() % 10) {
    case 9:
      script.initialized = random() % script.types.size();
      break;
    case 0:
      setting.name = known[random() % known.size()].name;
      break;
    case 1:
      setting.type = static_cast<int>(random() % 34) - 1;
      break;
    case 2: /* more than there are bytes for is refused, or lies in the room behind them */
      setting.count = std::min<int64_t>(extreme(), 8);
      break;
    case 3:
      if (!setting.bytes.empty() && setting.type != kPointerType && setting.type != kHandleType) {
        const int64_t value = extreme();
        const size_t width = std::min<size_t>(setting.bytes.size(), attribute_size(setting.type));
        const size_t at = random() % (setting.bytes.size() / width) * width;
        std::memcpy(setting.bytes.data() + at, &value, width);
      }
      break;
    case 4:
      if (!setting.descriptors.empty())
        setting.descriptors[random() % setting.descriptors.size()] = random() % (script.types.size() + 3);
      break;
    case 5:
      setting.descriptor = random() % script.types.size();
      break;
    case 6:
      script.types[random() % script.types.size()] = static_cast<int>(random() % 46) - 1;
      break;
    case 7: /* finalized earlier, later, twice or never */
      script.last[random() % script.last.size()] = random() % (script.settings.size() + 2);
      break;
    default:
      setting.count = 0;
      break;
  }
}

TEST(mutations_are_refused_or_computed) {
  Fixture f;
  int refused = 0, computed = 0;
  for (int i = 0; i < 100000; ++i) {
    Script script = f.script;
    for (uint64_t changes = 1 + check::random()() % 3; changes > 0; --changes) mutate(script);
    bool executed = false;
    const int status = play(script, f.handle, some_room(), &executed);
    (status == 0 ? computed : refused) += 1;
    if (executed) continue;
    if (status == 0) check::report(__FILE__, __LINE__, "mutation ", i, ": not computed and not refused");
  }
  std::printf("%d mutations refused, %d computed\n", refused, computed);
  EXPECT(refused > 50000);
  EXPECT(computed > 100);
}

}  // namespace
