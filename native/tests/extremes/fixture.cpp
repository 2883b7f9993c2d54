#include "fixture.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cases.h"
#include "starve.h"

namespace extremes {

namespace {

void must(int status, const char *what) {
  if (status == 0) return;
  std::printf("the fixture cannot be made: %s answered %d %s\n", what, status, te_last_error());
  std::fflush(stdout);
  std::_Exit(3);
}

size_t bits_of(NVTEDType dtype) {
  switch (dtype) {
    case kNVTEFloat4E2M1:
      return 4;
    case kNVTEInt64:
      return 64;
    case kNVTEInt32:
    case kNVTEFloat32:
      return 32;
    case kNVTEInt16:
    case kNVTEFloat16:
    case kNVTEBFloat16:
      return 16;
    default:
      return 8;
  }
}

NVTEShape shape_of(std::initializer_list<size_t> dimensions) {
  NVTEShape shape{};
  for (const size_t dimension : dimensions) shape.data[shape.ndim++] = dimension;
  return shape;
}

}  // namespace

Fixture::Fixture() { symbol<int(int)>("cudaSetDevice")(0); }

Fixture::~Fixture() {
  static auto *const group_end = symbol<int()>("ncclGroupEnd");
  for (int depth = 0; depth < 4 && group_end() == 0; ++depth) {
  }
  for (auto action = actions_.rbegin(); action != actions_.rend(); ++action) (*action)();
}

std::string Fixture::description() const {
  if (starve_at_ < 0) return "valid arguments";
  return "valid arguments, without memory from request " + std::to_string(starve_at_) + " on";
}

void Fixture::before_call() {
  before_ = contents();
  if (starve_at_ >= 0) begin_starving(starve_at_);
}

void Fixture::after_call() {
  if (starve_at_ >= 0) starved_ = end_starving();
}

void *Fixture::copy(void *target, const void *source, size_t bytes) {
  if (bytes > 0) std::memcpy(target, source, bytes);
  return target;
}

void *Fixture::device(size_t bytes, int byte) {
  static auto *const allocate = symbol<int(void **, size_t)>("cudaMalloc");
  static auto *const free = symbol<int(void *)>("cudaFree");
  void *memory = nullptr;
  must(allocate(&memory, bytes), "cudaMalloc");
  finally([=] { free(memory); });
  if (bytes > 0) std::memset(memory, byte, bytes); /* the reference's device memory is the host's */
  memory_.push_back({memory, bytes, true});
  return memory;
}

void *Fixture::to_free(void *memory) {
  const auto is_freed = [=](const Memory &one) { return one.start == memory; };
  memory_.erase(std::remove_if(memory_.begin(), memory_.end(), is_freed), memory_.end());
  return memory;
}

Fixture::Contents Fixture::contents() const {
  Contents contents;
  for (const Memory &one : memory_) 
    contents.push_back({std::string(static_cast<const char *>(one.start), one.bytes), one.on_device});
  return contents;
}

void *Fixture::host(size_t bytes) {
  void *memory = std::calloc(bytes == 0 ? 1 : bytes, 1);
  finally([=] { std::free(memory); });
  memory_.push_back({memory, bytes, false});
  return memory;
}

template <class Create, class Destroy>
void *Fixture::made(Create create, Destroy destroy) {
  void *handle = nullptr;
  must(create(&handle), "a create function");
  finally([=] { destroy(handle); });
  return handle;
}

NVTETensor Fixture::unset() {
  return made([](void **tensor) { return te_create_tensor(NVTE_DELAYED_TENSOR_SCALING, tensor); }, te_destroy_tensor);
}

void Fixture::set(NVTETensor tensor, NVTEDType dtype, const NVTEShape &shape, void *data) {
  const NVTEBasicTensor record = {data, dtype, shape};
  must(te_set_tensor_param_v2(tensor, kNVTERowwiseData, &record, sizeof(record)), "te_set_tensor_param_v2");
}

NVTETensor Fixture::tensor(NVTEDType dtype, const NVTEShape &shape) {
  size_t count = 1;
  for (size_t i = 0; i < shape.ndim; ++i) count *= shape.data[i];
  NVTETensor tensor = unset();
  /* A small number in every type of 8, 16 and 32 bits with a fraction, so that a 0 that is written shows. */
  const bool fractional = dtype != kNVTEByte && dtype != kNVTEInt16 && dtype != kNVTEInt32 && dtype != kNVTEInt64;
  set(tensor, dtype, shape, device((count * bits_of(dtype) + 7) / 8, fractional ? 0x3c : 0));
  return tensor;
}

NVTETensor Fixture::tensor(NVTEDType dtype, std::initializer_list<size_t> shape) { return tensor(dtype, shape_of(shape)); }

NVTETensor Fixture::int32s(std::initializer_list<int32_t> values) {
  NVTETensor tensor = unset();
  set(tensor, kNVTEInt32, shape_of({values.size()}), device_values(values));
  return tensor;
}

NVTETensor Fixture::int64s(std::initializer_list<int64_t> values) {
  NVTETensor tensor = unset();
  set(tensor, kNVTEInt64, shape_of({values.size()}), device_values(values));
  return tensor;
}

NVTETensor Fixture::floats(std::initializer_list<float> values) {
  NVTETensor tensor = unset();
  set(tensor, kNVTEFloat32, shape_of({values.size()}), device_values(values));
  return tensor;
}

NVTETensor *Fixture::handles(std::initializer_list<NVTETensor> tensors) { return values(tensors); }

NVTETensor **Fixture::lists(std::initializer_list<NVTETensor *> lists) { return values(lists); }

NVTETensor Fixture::workspace(const std::function<int(NVTETensor)> &call) {
  NVTETensor query = unset();
  must(call(query), "a workspace query");
  NVTEShape shape{};
  NVTEDType dtype = kNVTEByte;
  te_tensor_shape(query, &shape);
  te_tensor_type(query, &dtype);
  return tensor(dtype, shape);
}

NVTETensorPack *Fixture::pack() {
  auto *pack = out<NVTETensorPack>();
  must(te_tensor_pack_create(pack), "te_tensor_pack_create");
  finally([=] { te_tensor_pack_destroy(pack); });
  return pack;
}

void Fixture::fill(NVTETensorPack *pack) {
  for (size_t i = 0; i < pack->size; ++i) {
    NVTEShape shape{};
    NVTEDType dtype = kNVTEByte;
    te_tensor_shape(pack->tensors[i], &shape);
    te_tensor_type(pack->tensors[i], &dtype);
    size_t bytes = bits_of(dtype) / 8;
    for (size_t d = 0; d < shape.ndim; ++d) bytes *= shape.data[d];
    set(pack->tensors[i], dtype, shape, device(bytes));
  }
}

NVTEQuantizationConfig Fixture::quantization_config() {
  return made(te_create_quantization_config, te_destroy_quantization_config);
}
NVTEMatmulConfig Fixture::matmul_config() { return made(te_create_matmul_config, te_destroy_matmul_config); }
NVTEFusedAttnConfig Fixture::fused_attn_config() { return made(te_create_fused_attn_config, te_destroy_fused_attn_config); }
NVTEFusedAttnFwdParams Fixture::fused_attn_fwd_params() {
  return made(te_create_fused_attn_fwd_params, te_destroy_fused_attn_fwd_params);
}
NVTEFusedAttnBwdParams Fixture::fused_attn_bwd_params() {
  return made(te_create_fused_attn_bwd_params, te_destroy_fused_attn_bwd_params);
}

void *Fixture::stream() { return made(symbol<int(void **)>("cudaStreamCreate"), symbol<int(void *)>("cudaStreamDestroy")); }

void *Fixture::event(bool recorded) {
  void *event = made(symbol<int(void **)>("cudaEventCreate"), symbol<int(void *)>("cudaEventDestroy"));
  if (recorded) must(symbol<int(void *, void *)>("cudaEventRecord")(event, nullptr), "cudaEventRecord");
  return event;
}

UniqueId Fixture::id() {
  UniqueId id;
  must(symbol<int(UniqueId *)>("ncclGetUniqueId")(&id), "ncclGetUniqueId");
  return id;
}

void *Fixture::comm() {
  const UniqueId unique = id();
  return made(
      [&](void **comm) { return symbol<int(void **, int, UniqueId, int)>("ncclCommInitRank")(comm, 1, unique, 0); },
      symbol<int(void *)>("ncclCommDestroy"));
}

/* ---- Extremes of structs ---- */

bool vary(UniqueId &value, int index) {
  if (index > 0) return false;
  value = UniqueId{};
  return true;
}

bool vary(NVTEShape &value, int index) {
  Fields fields(index);
  fields.field(value.ndim);
  fields.field(value.data[0]);
  return fields.done();
}

bool vary(const NVTEBasicTensor *&value, int index) {
  static NVTEBasicTensor changed;
  changed = *value;
  Fields fields(index - 1);
  fields.field(changed.data_ptr);
  fields.field(changed.dtype);
  fields.field(changed.shape);
  value = index == 0 ? nullptr : &changed;
  return index == 0 || fields.done();
}

}  // namespace extremes
