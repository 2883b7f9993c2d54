/* Pointers that lead nowhere, or not far enough, are refused: read or written to, they would end the process. */
#include "check.h"
#include "cuda/cuda.h"

using namespace chagres::reference;

CHAGRES_EXPORT int cudaMalloc(void **pointer, size_t size);
CHAGRES_EXPORT int cudaFree(void *pointer);
CHAGRES_EXPORT int cudaMemset(void *pointer, int value, size_t count);
CHAGRES_EXPORT int cudaMemcpy(void *destination, const void *source, size_t count, int kind);

namespace {

/* Device memory of 64 bytes. */
class Memory {
 public:
  Memory() { cudaMalloc(&pointer_, 64); }
  Memory(const Memory &) = delete;
  ~Memory() { release(); }
  void release() {
    if (pointer_ != nullptr) cudaFree(pointer_);
    pointer_ = nullptr;
  }
  char *at(size_t offset = 0) const { return static_cast<char *>(pointer_) + offset; }

 private:
  void *pointer_ = nullptr;
};

char *nowhere() { return reinterpret_cast<char *>(uintptr_t{0x7f0000000000}); }

/* A handle that says it has floats there. */
class Floats {
 public:
  Floats(void *data, size_t count) {
    const size_t shape[] = {1, count};
    const NVTEBasicTensor record{data, kNVTEFloat32, nvte_make_shape(shape, 2)};
    nvte_set_tensor_param_v2(handle_, kNVTERowwiseData, &record, sizeof(record));
  }
  operator NVTETensor() const { return handle_; }

 private:
  check::Unset handle_;
};

}  // namespace

TEST(memset_stays_within_its_allocation) {
  Memory memory;
  nvte_memset(memory.at(), 1, 64, nullptr);
  nvte_memset(memory.at(60), 2, 4, nullptr);
  EXPECT(memory.at()[59] == 1 && memory.at()[60] == 2 && memory.at()[63] == 2);
  EXPECT_THROWS(nvte_memset(memory.at(), 0, 65, nullptr), "\"ptr\" must be 65 bytes of device memory", "to 64 bytes");
  EXPECT_THROWS(nvte_memset(memory.at(60), 0, 5, nullptr), "must be 5 bytes", "to 4 bytes");
  EXPECT_THROWS(nvte_memset(memory.at(), 0, static_cast<size_t>(-1), nullptr), "18446744073709551615", "to 64 bytes");
  EXPECT_THROWS(nvte_memset(nowhere(), 0, 1, nullptr), "a pointer to none");
  char *freed = memory.at();
  memory.release();
  EXPECT_THROWS(nvte_memset(freed, 0, 1, nullptr), "memory that was freed");
}

TEST(copies_and_random_state_stay_within_their_allocations) {
  Memory memory;
  const char source[65] = {3};
  nvte_copy_host_to_device_via_kernel(source, memory.at(), 64, nullptr);
  EXPECT_EQUAL(memory.at()[0], 3);
  EXPECT_THROWS(nvte_copy_host_to_device_via_kernel(source, memory.at(), 65, nullptr), "\"device_ptr\" must be 65 bytes");
  EXPECT_THROWS(nvte_copy_host_to_device_via_kernel(source, nowhere(), 1, nullptr), "\"device_ptr\"", "to none");
  auto *state = reinterpret_cast<int64_t *>(memory.at());
  nvte_extract_seed_and_offset(state, 0, nullptr, 7, nullptr, 8, 0, nullptr);
  EXPECT(state[0] == 7 && state[1] == 8);
  EXPECT_THROWS(nvte_extract_seed_and_offset(state + 7, 0, nullptr, 7, nullptr, 8, 0, nullptr), "\"rng_state_ptr\"");
  EXPECT_THROWS(nvte_extract_seed_and_offset(state, 1, state + 8, 7, state, 8, 0, nullptr), "\"seed_ptr\"");
}

TEST(cuda_functions_refuse_what_lies_outside) {
  Memory memory;
  char host[65] = {};
  EXPECT_EQUAL(cudaMemset(memory.at(), 0, 65), 1);
  EXPECT_EQUAL(cudaMemset(memory.at(), 0, static_cast<size_t>(-1)), 1);
  EXPECT_EQUAL(cudaMemset(nowhere(), 0, 1), 1);
  EXPECT_EQUAL(cudaMemcpy(memory.at(), host, 65, 1), 1);
  EXPECT_EQUAL(cudaMemcpy(host, memory.at(), 65, 2), 1);
  EXPECT_EQUAL(cudaMemcpy(nowhere(), host, 1, 1), 1);
  EXPECT_EQUAL(cudaMemcpy(memory.at(), nowhere(), 1, 3), 1);
  EXPECT_EQUAL(cudaMemcpy(memory.at(), host, 64, 1), 0);
}

TEST(tensors_must_have_the_memory_that_their_shapes_say) {
  Memory x, y;
  nvte_memset(x.at(), 0, 64, nullptr);
  nvte_gelu(Floats(x.at(), 16), Floats(y.at(), 16), nullptr);
  EXPECT_THROWS(nvte_gelu(Floats(x.at(), 17), Floats(y.at(), 16), nullptr), "\"input\" (rowwise data)", "68 bytes", "64");
  EXPECT_THROWS(nvte_gelu(Floats(x.at(), 16), Floats(y.at(4), 16), nullptr), "\"output\" (rowwise data)", "to 60 bytes");
  EXPECT_THROWS(nvte_gelu(Floats(nowhere(), 16), Floats(y.at(), 16), nullptr), "\"input\"", "to none");
  EXPECT_THROWS(nvte_zero_tensor(Floats(x.at(), size_t{1} << 40), nullptr), "\"tensor\"", "4398046511104 bytes");
  const Floats dangling(y.at(), 16);
  y.release();
  EXPECT_THROWS(nvte_gelu(Floats(x.at(), 16), dangling, nullptr), "\"output\"", "memory that was freed");
  Memory fresh;
  nvte_gelu(Floats(x.at(), 16), Floats(fresh.at(), 16), nullptr);
}

TEST(operations_must_have_the_memory_that_their_sizes_say) {
  Memory x, y;
  cudaMemset(x.at(), 0, 64);
  EXPECT_EQUAL(ops_add(x.at(), x.at(), y.at(), 16, kNVTEFloat32, nullptr), static_cast<int>(OPS_SUCCESS));
  EXPECT_EQUAL(ops_add(x.at(), x.at(), y.at(), 17, kNVTEFloat32, nullptr), static_cast<int>(OPS_INVALID_ARGUMENT));
  EXPECT_EQUAL(std::string(ops_last_error()), "ops_add: x is a pointer to 64 bytes; expected 68 bytes of device memory");
  EXPECT_EQUAL(ops_add(x.at(), x.at(), nowhere(), 16, kNVTEFloat32, nullptr), static_cast<int>(OPS_INVALID_ARGUMENT));
  EXPECT_EQUAL(std::string(ops_last_error()), "ops_add: y is no device memory; expected 64 bytes of device memory");
  EXPECT_EQUAL(ops_row_sum(x.at(), reinterpret_cast<float *>(y.at()), 0, int64_t{1} << 40, 1 << 10, kNVTEFloat32, nullptr),
               static_cast<int>(OPS_INVALID_ARGUMENT));
  EXPECT_EQUAL(ops_add(x.at(), x.at(), y.at(), 16, kNVTEFloat32, nullptr), static_cast<int>(OPS_SUCCESS));
}

namespace {

std::string refusal_of(const OpsAttention &attention) {
  EXPECT_EQUAL(ops_attention_forward(&attention, nullptr), static_cast<int>(OPS_INVALID_ARGUMENT));
  return ops_last_error();
}

}  // namespace

TEST(attention_must_have_the_memory_that_its_offsets_say) {
  Memory q, k, o, statistics, offsets, kv_offsets;
  cudaMemset(q.at(), 0, 64);
  cudaMemset(k.at(), 0, 64);
  auto *cu_seqlens = reinterpret_cast<int32_t *>(offsets.at());
  auto *cu_seqlens_kv = reinterpret_cast<int32_t *>(kv_offsets.at());
  cu_seqlens[0] = cu_seqlens_kv[0] = 0;
  cu_seqlens[1] = cu_seqlens_kv[1] = 2;
  OpsAttention attention{};
  attention.q = q.at();
  attention.k = attention.v = k.at();
  attention.o = o.at();
  attention.log_sum_exp = reinterpret_cast<float *>(statistics.at());
  attention.cu_seqlens_q = cu_seqlens;
  attention.cu_seqlens_kv = cu_seqlens_kv;
  attention.query = attention.key = attention.value = attention.output = {0, 8, 8};
  attention.statistics = {0, 1, 1};
  attention.sequences = attention.heads = attention.kv_heads = 1;
  attention.length = attention.kv_length = 2;
  attention.head_dim = attention.value_dim = 8;
  attention.window_left = attention.window_right = -1;
  attention.scale = 1;
  attention.dtype = kNVTEFloat32;
  attention.packed = attention.kv_packed = 1;
  EXPECT_EQUAL(ops_attention_forward(&attention, nullptr), static_cast<int>(OPS_SUCCESS));
  cu_seqlens[1] = 3;
  EXPECT_EQUAL(refusal_of(attention),
               std::string("ops_attention_forward: q is a pointer to 64 bytes; expected 96 bytes of device memory"));
  cu_seqlens[1] = -1;
  EXPECT_EQUAL(refusal_of(attention), std::string("ops_attention_forward: cu_seqlens_q is decreasing or not from 0 on; "
                                                  "expected offsets that start at 0 and do not decrease"));
  cu_seqlens[1] = 1;
  cu_seqlens_kv[1] = 4;
  EXPECT_EQUAL(refusal_of(attention),
               std::string("ops_attention_forward: k is a pointer to 64 bytes; expected 128 bytes of device memory"));
  cu_seqlens_kv[1] = -1;
  EXPECT_EQUAL(refusal_of(attention), std::string("ops_attention_forward: cu_seqlens_kv is decreasing or not from 0 on; "
                                                  "expected offsets that start at 0 and do not decrease"));
  cu_seqlens_kv[1] = 2;
  attention.sequences = 16;
  EXPECT_EQUAL(refusal_of(attention), std::string("ops_attention_forward: cu_seqlens_q is a pointer to 64 bytes; expected "
                                                  "68 bytes of device memory"));
  attention.sequences = 1;
  attention.kv_packed = 0;
  attention.kv_length = 3;
  EXPECT_EQUAL(refusal_of(attention),
               std::string("ops_attention_forward: k is a pointer to 64 bytes; expected 96 bytes of device memory"));
  attention.kv_length = 2;
  EXPECT_EQUAL(ops_attention_forward(&attention, nullptr), static_cast<int>(OPS_SUCCESS));
}
