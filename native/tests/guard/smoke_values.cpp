#include "smoke_values.hpp"

#include <dlfcn.h>

#include <climits>
#include <initializer_list>

namespace {

alignas(64) char readable[1 << 16];
alignas(64) char written[1 << 12];
NVTETensor tensor_list[list_length];
NVTETensor *tensor_lists[list_length];
NVTETensorPack pack;

std::uint32_t draw(unsigned seed, int place, std::uint32_t count) {
  std::uint64_t bits = (std::uint64_t{seed} << 32) + static_cast<std::uint32_t>(place) * 0x9E3779B9u;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return static_cast<std::uint32_t>((bits ^ (bits >> 31)) % count);
}

Values valid() {
  Values v{};
  v.address = readable;
  v.result = written;
  v.string = "max";
  v.tensors = tensor_list;
  v.lists = tensor_lists;
  v.pack = &pack;
  v.shape = {{16, 16}, 2};
  return v;
}

void repeat_tensors() {
  for (int i = tensor_count; i < list_length; ++i) tensor_list[i] = tensor_list[i - tensor_count];
}

void create_handles(Values &v) {
  void **const handle = v.handles;
  te_create_tensor(NVTE_DELAYED_TENSOR_SCALING, &handle[static_cast<int>(Kind::tensor)]);
  te_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 2, v.shape, &handle[static_cast<int>(Kind::grouped_tensor)]);
  te_create_quantization_config(&handle[static_cast<int>(Kind::quantization_config)]);
  te_create_matmul_config(&handle[static_cast<int>(Kind::matmul_config)]);
  te_create_grouped_matmul_config(&handle[static_cast<int>(Kind::grouped_matmul_config)]);
  te_create_fused_attn_config(&handle[static_cast<int>(Kind::fused_attn_config)]);
  te_create_fused_attn_fwd_params(&handle[static_cast<int>(Kind::fused_attn_fwd_params)]);
  te_create_fused_attn_bwd_params(&handle[static_cast<int>(Kind::fused_attn_bwd_params)]);
  te_create_tensors(NVTE_DELAYED_TENSOR_SCALING, tensor_list, tensor_count);
  repeat_tensors();
  for (auto &list : tensor_lists) list = tensor_list;
  te_tensor_pack_create(&pack);
}

Values zeros() { return Values{}; }

Values low_addresses() {
  constexpr std::uintptr_t low = 0xdead;
  Values v{};
  for (auto &handle : v.handles) handle = reinterpret_cast<void *>(low);
  v.address = v.result = reinterpret_cast<void *>(low);
  v.string = reinterpret_cast<const char *>(low);
  v.tensors = reinterpret_cast<NVTETensor *>(low);
  v.lists = reinterpret_cast<NVTETensor **>(low);
  v.pack = reinterpret_cast<NVTETensorPack *>(low);
  v.stream = reinterpret_cast<cudaStream_t>(low);
  v.integer = v.enumeration = 1;
  return v;
}

/* Handles that nobody made, everything else as it should be. */
Values foreign_handles(void *handle) {
  Values v = valid();
  for (auto &h : v.handles) h = handle;
  for (auto &tensor : tensor_list) tensor = handle;
  for (auto &list : tensor_lists) list = tensor_list;
  for (auto &tensor : pack.tensors) tensor = handle;
  pack.size = 10;
  v.integer = 1;
  return v;
}

Values foreign_slots() { return foreign_handles(reinterpret_cast<void *>(0xdead)); }
Values foreign_addresses() { return foreign_handles(readable); }

Values live(long long integer) {
  Values v = valid();
  create_handles(v);
  v.integer = integer;
  return v;
}

Values live_zero() { return live(0); }
Values live_one() { return live(1); }
Values live_negative() { return live(-1); }

Values live_two() {
  Values v = live(2);
  pack.size = 10;
  v.is_set = true;
  v.enumeration = 1;
  return v;
}

Values live_huge() {
  Values v = live(INT_MAX);
  pack.size = static_cast<std::size_t>(-1);
  return v;
}

Values live_unknown_enumerators() {
  Values v = live(1);
  v.enumeration = 12345;
  return v;
}

/* Memory of the CPU reference, so that calls there compute, or read astray. GPUs' libraries get an address that stands for
 * theirs: without a driver a call gets as far as CUDA's refusal. */
void *device_address() {
  static void *const address = [] {
    void *memory = reinterpret_cast<void *>(0x7f0000000000);
    const auto allocate = reinterpret_cast<int (*)(void **, std::size_t)>(dlsym(RTLD_DEFAULT, "cudaMalloc"));
    if (dlsym(RTLD_DEFAULT, "reference_last_unsupported") != nullptr) allocate(&memory, 1 << 20);
    return memory;
  }();
  return address;
}

/* A shape and a device address. */
void fill(NVTETensor tensor, NVTEDType dtype, const NVTEShape &shape) {
  const NVTEBasicTensor data = {device_address(), dtype, shape};
  te_set_tensor_param_v2(tensor, kNVTERowwiseData, &data, sizeof(data));
}

Values filled(NVTEDType dtype, const NVTEShape &shape, long long integer) {
  Values v = live(integer);
  fill(v.handles[static_cast<int>(Kind::tensor)], dtype, shape);
  for (auto &tensor : tensor_list) fill(tensor, dtype, shape);
  return v;
}

Values matrices() { return filled(kNVTEBFloat16, {{32, 64}, 2}, 4); }
Values matrices_and_zero() { return filled(kNVTEFloat32, {{32, 64}, 2}, 0); }
Values vectors() { return filled(kNVTEInt32, {{9}, 1}, 4); }
Values vectors_and_zero() { return filled(kNVTEInt32, {{9}, 1}, 0); }
Values four_dimensions() { return filled(kNVTEBFloat16, {{2, 4, 2, 64}, 4}, 3); }
Values scalars() { return filled(kNVTEFloat32, {{}, 0}, 1); }
Values empty_matrices() { return filled(kNVTEFloat32, {{0, 0}, 2}, 0); }
Values many_dimensions() { return filled(kNVTEFloat32, {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 15}, 2); }
Values fp8_matrices() { return filled(kNVTEFloat8E4M3, {{128, 128}, 2}, 128); }

}  // namespace

const Mode modes[] = {
    {"all arguments zero", zeros},
    {"0xdead for handles and addresses", low_addresses},
    {"0xdead for handles", foreign_slots},
    {"handles that are addresses of other things", foreign_addresses},
    {"live handles, numbers 0", live_zero},
    {"live handles, numbers 1", live_one},
    {"live handles, numbers 2, flags set", live_two},
    {"live handles, numbers -1", live_negative},
    {"live handles, numbers 2^31 - 1", live_huge},
    {"live handles, unknown enumerators", live_unknown_enumerators},
    {"BF16 matrices", matrices},
    {"FP32 matrices, numbers 0", matrices_and_zero},
    {"INT32 vectors", vectors},
    {"INT32 vectors, numbers 0", vectors_and_zero},
    {"BF16 tensors of 4 dimensions", four_dimensions},
    {"scalars", scalars},
    {"empty matrices", empty_matrices},
    {"tensors of 15 dimensions", many_dimensions},
    {"FP8 matrices", fp8_matrices},
};
const int mode_count = sizeof(modes) / sizeof(modes[0]);

namespace {

const NVTEShape shapes[] = {{{32, 64}, 2},        {{64, 32}, 2},     {{9}, 1},           {{1}, 1},
                            {{32}, 1},            {{64}, 1},         {{0, 64}, 2},       {{2, 4, 2, 64}, 4},
                            {{8, 2, 64}, 3},      {{128, 128}, 2},   {{}, 0},            {{2, 1, 32, 32}, 4},
                            {{4, 1, 1, 64}, 4},   {{2, 16, 2, 8}, 4}, {{64, 0}, 2},      {{0}, 1},
                            {{2, 16, 128, 32}, 4}, {{7, 33}, 2},     {{1024, 1024}, 2}};
constexpr std::uint32_t shape_count = sizeof(shapes) / sizeof(shapes[0]);
const NVTEDType dtypes[] = {kNVTEFloat32, kNVTEBFloat16, kNVTEFloat32,    kNVTEBFloat16,   kNVTEInt32,     kNVTEInt64,
                            kNVTEByte,    kNVTEFloat16,  kNVTEFloat8E4M3, kNVTEFloat8E5M2, kNVTEFloat4E2M1};
const NVTEScalingMode scalings[] = {NVTE_DELAYED_TENSOR_SCALING, NVTE_DELAYED_TENSOR_SCALING, NVTE_MXFP8_1D_SCALING,
                                    NVTE_BLOCK_SCALING_1D,       NVTE_BLOCK_SCALING_2D,       NVTE_NVFP4_1D_SCALING};

NVTEShape transposed(const NVTEShape &shape) {
  NVTEShape result = shape;
  if (shape.ndim == 2) result = {{shape.data[1], shape.data[0]}, 2};
  return result;
}

void set(NVTETensor tensor, NVTETensorParam param, NVTEDType dtype, const NVTEShape &shape) {
  const NVTEBasicTensor data = {reinterpret_cast<void *>(0x7f0000000000), dtype, shape};
  te_set_tensor_param_v2(tensor, param, &data, sizeof(data));
}

/* In most seeds all tensors have one shape and each half of the list one type; some have scales and transposes. */
void draw_tensor(unsigned seed, int i) {
  const bool is_shared = draw(seed, 900, 4) != 0;
  const int half = i / (tensor_count / 2);
  const NVTEShape &shape = shapes[draw(seed, is_shared ? 901 : 1300 + i, shape_count)];
  const NVTEDType dtype = dtypes[draw(seed, is_shared ? 903 + half : 1200 + i, 11)];
  te_create_tensor(scalings[draw(seed, is_shared ? 902 : 1000 + i, 6)], &tensor_list[i]);
  if (draw(seed, 1100 + i, 8) != 0) set(tensor_list[i], kNVTERowwiseData, dtype, shape);
  if (draw(seed, 1500 + i, 3) == 0) set(tensor_list[i], kNVTEColumnwiseData, dtype, transposed(shape));
  const bool is_quantized = dtype >= kNVTEFloat8E4M3;
  for (const NVTETensorParam param : {kNVTEScale, kNVTEAmax, kNVTERowwiseScaleInv, kNVTEColumnwiseScaleInv}) {
    if (is_quantized || draw(seed, 1600 + 16 * i + param, 8) == 0) set(tensor_list[i], param, kNVTEFloat32, {{1}, 1});
  }
}

}  // namespace

Values drawn(unsigned seed) {
  Values v = live(1);
  v.seed = seed;
  for (int i = 0; i < tensor_count; ++i) draw_tensor(seed, i);
  repeat_tensors();
  pack.size = draw(seed, 1400, 11);
  return v;
}

void *Values::handle(int place, Kind kind) const {
  if (seed == 0 || kind != Kind::tensor) return handles[static_cast<int>(kind)];
  const int half = place < static_cast<int>(draw(seed, 905, 10)) ? 0 : 1;
  return tensor_list[half * (tensor_count / 2) + draw(seed, place, tensor_count / 2)];
}

long long Values::number(int place) const {
  static const long long numbers[] = {0, 1, 2, 3, 4, 8, 16, 32, 64, 128, -1, INT_MAX, INT_MIN, LLONG_MAX};
  return seed == 0 ? integer : numbers[draw(seed, 100 + place, 14)];
}

int Values::enumerator(int place) const {
  return seed == 0 ? enumeration : static_cast<int>(draw(seed, 200 + place, 12));
}

float Values::real(int place) const {
  static const float numbers[] = {0.0f, 1.0f, -1.0f, 0.5f, 1e-5f, 3.4e38f};
  return seed == 0 ? floating : numbers[draw(seed, 300 + place, 6)];
}

bool Values::flag(int place) const { return seed == 0 ? is_set : draw(seed, 400 + place, 2) == 1; }

const char *Values::text(int place) const {
  static const char *const texts[] = {"max", "most_recent", "add", "copy", "none", ""};
  return seed == 0 ? string : texts[draw(seed, 500 + place, 6)];
}
