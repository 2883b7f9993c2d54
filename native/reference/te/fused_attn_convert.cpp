/* Between packed and padded tokens, and the state of dropout's generator. */
#include "te/recorded.h"
#include "te/fused_attn_problem.h"

namespace chagres::reference {

namespace {

struct Conversion {
  const int32_t *starts;
  int64_t batch, length;
  size_t token_bytes;
};

/* Checks both tensors against each other and cu_seqlens against both. */
Conversion check_conversion(NVTETensor thd, const char *thd_argument, NVTETensor bshd, const char *bshd_argument,
                            NVTETensor cu_seqlens, const Caller &caller) {
  const View packed = view(thd, thd_argument, {}, caller), padded = view(bshd, bshd_argument, {}, caller);
  const AttentionExtent t = attention_extent(thd, thd_argument, NVTE_THD, caller);
  const AttentionExtent b = attention_extent(bshd, bshd_argument, NVTE_BSHD, caller);
  if (packed.dtype != padded.dtype || t.heads != b.heads || t.dim != b.dim)
    fail(caller, text("Tensors \"", thd_argument, "\" and \"", bshd_argument,
                      "\" must have equal dtype, heads and head "
                      "dimension, got ",
                      dtype_name(packed.dtype), " ", shape_text(packed.shape), " and ", dtype_name(padded.dtype), " ",
                      shape_text(padded.shape)));
  const View cu = view(cu_seqlens, "cu_seqlens", {kNVTEInt32}, caller);
  expect_count(cu, "cu_seqlens", b.sequences + 1, caller);
  const auto *starts = static_cast<const int32_t *>(cu.data);
  for (int64_t i = 0; i <= b.sequences; ++i) {
    const int64_t before = i == 0 ? 0 : starts[i - 1], length = starts[i] - before;
    if (length < 0 || length > (i == 0 ? 0 : b.length) || starts[i] > t.tokens)
      fail(caller, text("Tensor \"cu_seqlens\" must start at 0, not decrease, have sequences of at most ", b.length,
                        " tokens and end at ", t.tokens, " or before, got ", starts[i], " at index ", i));
  }
  return {starts, b.sequences, b.length, static_cast<size_t>(t.heads * t.dim) * element_size(packed.dtype)};
}

char *bytes_of(NVTETensor handle) { return static_cast<char *>(tensor(handle, "tensor").data().data_ptr); }

template <class Copy>
void for_sequences(const Conversion &conversion, const Copy &copy) {
  parallel_for(0, conversion.batch, 1, [&](int64_t b, int64_t) {
    const size_t packed = static_cast<size_t>(conversion.starts[b]) * conversion.token_bytes;
    const size_t padded = static_cast<size_t>(b * conversion.length) * conversion.token_bytes;
    copy(packed, padded, static_cast<size_t>(conversion.starts[b + 1] - conversion.starts[b]) * conversion.token_bytes);
  });
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

/* Rows past a sequence's length stay as they are. */
void nvte_convert_thd_to_bshd(NVTETensor tensor, NVTETensor cu_seqlens, NVTETensor new_tensor, int b, int max_seq_len,
                              cudaStream_t stream) {
  if (recorded(nvte_convert_thd_to_bshd, tensor, cu_seqlens, new_tensor, b, max_seq_len, stream)) return;
  const Conversion conversion =
      check_conversion(tensor, "tensor", new_tensor, "new_tensor", cu_seqlens, Caller::here());
  CHAGRES_CHECK(b == conversion.batch && max_seq_len == conversion.length,
                "b and max_seq_len must be those of "
                "\"new_tensor\", ",
                conversion.batch, " and ", conversion.length, ", got ", b, " and ", max_seq_len);
  const char *source = bytes_of(tensor);
  char *destination = bytes_of(new_tensor);
  for_sequences(conversion, [&](size_t packed, size_t padded, size_t count) {
    std::memcpy(destination + padded, source + packed, count);
  });
}

void nvte_convert_bshd_to_thd(NVTETensor tensor, NVTETensor cu_seqlens, NVTETensor new_tensor, int t, cudaStream_t stream) {
  if (recorded(nvte_convert_bshd_to_thd, tensor, cu_seqlens, new_tensor, t, stream)) return;
  const Conversion conversion =
      check_conversion(new_tensor, "new_tensor", tensor, "tensor", cu_seqlens, Caller::here());
  const int64_t tokens = attention_extent(new_tensor, "new_tensor", NVTE_THD, Caller::here()).tokens;
  CHAGRES_CHECK(t == tokens, "t must be the tokens of \"new_tensor\", ", tokens, ", got ", t);
  const char *source = bytes_of(tensor);
  char *destination = bytes_of(new_tensor);
  for_sequences(conversion, [&](size_t packed, size_t padded, size_t count) {
    std::memcpy(destination + packed, source + padded, count);
  });
}

/* captured: seed and offset are read through the pointers and the offset within the graph is added. */
void nvte_extract_seed_and_offset(int64_t *rng_state_ptr, int captured, int64_t *seed_ptr, uint64_t seed_val,
                                  int64_t *offset_ptr, uint64_t offset_val, uint32_t offset_intragraph, cudaStream_t stream) {
  if (recorded(nvte_extract_seed_and_offset, rng_state_ptr, captured, seed_ptr, seed_val, offset_ptr, offset_val,
               offset_intragraph, stream)) return;
  expect_memory(rng_state_ptr, 2 * sizeof(int64_t), "rng_state_ptr");
  if (captured == 0) {
    rng_state_ptr[0] = static_cast<int64_t>(seed_val);
    rng_state_ptr[1] = static_cast<int64_t>(offset_val);
    return;
  }
  expect_memory(seed_ptr, sizeof(int64_t), "seed_ptr");
  expect_memory(offset_ptr, sizeof(int64_t), "offset_ptr");
  rng_state_ptr[0] = *seed_ptr;
  rng_state_ptr[1] = static_cast<int64_t>(static_cast<uint64_t>(*offset_ptr) + offset_intragraph);
}

namespace {

/* As TE counts them: for each thread on its own. */
thread_local uint64_t next_offset = 0;

void write_state(int64_t *state, const int64_t *seed, uint64_t offset, cudaStream_t) {
  state[0] = seed[0];
  state[1] = static_cast<int64_t>(offset);
}

}  // namespace

/* Both "tensors" are addresses. The offset is that of the call, also where the call is recorded. */
void nvte_populate_rng_state_async(NVTETensor rng_state_dst, NVTETensor seed, size_t q_max_seqlen,
                                   size_t kv_max_seqlen, NVTE_Fused_Attn_Backend backend, cudaStream_t stream) {
  auto *const state = static_cast<int64_t *>(rng_state_dst);
  const auto *const from = static_cast<const int64_t *>(seed);
  expect_memory(state, 2 * sizeof(int64_t), "rng_state_dst");
  expect_memory(from, sizeof(int64_t), "seed");
  const uint64_t increment = backend == NVTE_F16_arbitrary_seqlen ? 16 : (q_max_seqlen * kv_max_seqlen + 127) / 128;
  const uint64_t offset = next_offset;
  next_offset += increment;
  if (recorded_by_value(write_state, state, from, offset, stream)) return;
  write_state(state, from, offset, stream);
}
