/* Sequence lengths of fused attention. TE's kernels trust cu_seqlens; a process on the CPU must not read astray. */
#include "te/fused_attn_problem.h"

namespace chagres::reference {

namespace {

const int32_t *read_cumulative(NVTETensor handle, const char *argument, int64_t batch, const Caller &caller) {
  const NVTEBasicTensor &data = living_tensor(handle, argument, caller).data();
  if (data.data_ptr == nullptr)
    fail(caller, text("Tensor \"", argument, "\" has no data: expected Int32 of shape (", batch + 1, ")"));
  if (data.dtype != kNVTEInt32 || data.shape.ndim != 1 || data.shape.data[0] != static_cast<size_t>(batch) + 1)
    fail(caller, text("Tensor \"", argument, "\" must be Int32 of shape (", batch + 1, "), got ",
                      dtype_name(data.dtype), " ", shape_text(data.shape)));
  expect_memory(data.data_ptr, (static_cast<size_t>(batch) + 1) * sizeof(int32_t), argument, "rowwise data", caller);
  const auto *values = static_cast<const int32_t *>(data.data_ptr);
  if (values[0] != 0) fail(caller, text("Tensor \"", argument, "\" must start at 0, got ", values[0]));
  for (int64_t b = 0; b < batch; ++b) {
    if (values[b + 1] < values[b])
      fail(caller, text("Tensor \"", argument, "\" must not decrease, got ", values[b], " then ", values[b + 1],
                        " at index ", b + 1));
  }
  return values;
}

struct Side {
  const char *cu_argument, *padded_argument, *maximum_attribute, *argument;
  NVTETensor cu, padded;
  int64_t maximum, tokens;
};

int64_t checked_length(const Side &side, const int32_t *valid, int64_t sequence, const Caller &caller) {
  const int64_t length = int64_t{valid[sequence + 1]} - valid[sequence];
  if (length > side.maximum)
    fail(caller, text("Attribute ", side.maximum_attribute, " must cover the longest sequence: sequence ", sequence,
                      " of \"", side.cu_argument, "\" has ", length, " tokens, got ", side.maximum));
  return length;
}

/* The starts of a THD side; each sequence must fit before the next one starts, and all of them into the tensor. */
const int32_t *read_starts(const Side &side, const int32_t *valid, int64_t batch, const Caller &caller) {
  const int32_t *starts = read_cumulative(side.padded, side.padded_argument, batch, caller);
  for (int64_t b = 0; b < batch; ++b) {
    if (valid[b + 1] - valid[b] > starts[b + 1] - starts[b])
      fail(caller,
           text("Tensor \"", side.padded_argument, "\" leaves ", starts[b + 1] - starts[b], " tokens for sequence ", b,
                ", which has ", valid[b + 1] - valid[b], " by \"", side.cu_argument, "\""));
  }
  if (starts[batch] > side.tokens)
    fail(caller, text("Tensor \"", side.padded_argument, "\" ends at ", starts[batch], ", past the ", side.tokens,
                      " tokens of \"", side.argument, "\""));
  return starts;
}

struct SideLengths {
  std::vector<int64_t> lengths;
  const int32_t *starts = nullptr;
};

SideLengths read_side(const Side &side, bool thd, bool padding, int64_t batch, const Caller &caller) {
  SideLengths result;
  result.lengths.assign(static_cast<size_t>(batch), side.maximum);
  if (!padding) return result;
  const int32_t *valid = read_cumulative(side.cu, side.cu_argument, batch, caller);
  for (int64_t b = 0; b < batch; ++b) result.lengths[static_cast<size_t>(b)] = checked_length(side, valid, b, caller);
  if (thd) result.starts = read_starts(side, valid, batch, caller);
  return result;
}

}  // namespace

void read_lengths(const FusedAttnInputs &inputs, AttentionProblem &problem, const Caller &caller) {
  const FusedAttnConfig &config = inputs.config;
  const int32_t layout = config.qkv_layout;
  const auto batch = static_cast<int64_t>(config.batch_size);
  const bool padding = is_padding_mask(config.attn_mask_type);
  const bool thd_q = q_layout(layout, caller).format == NVTE_THD;
  const bool thd_kv = kv_layout(layout, caller).format == NVTE_THD;
  /* Where Q, K and V share one buffer TE places all of them by Q's starts. */
  const bool by_q = q_layout(layout, caller).packed == 3;
  const Side q = {"CuSeqlensQ",
                  "CuSeqlensQPadded",
                  "MaxSeqlenQ",
                  "Q",
                  inputs.cu_seqlens_q,
                  inputs.cu_seqlens_q_padded,
                  static_cast<int64_t>(config.max_seqlen_q),
                  inputs.q_extent.tokens};
  const Side kv = {"CuSeqlensKV",
                   by_q ? "CuSeqlensQPadded" : "CuSeqlensKVPadded",
                   "MaxSeqlenKV",
                   "K",
                   inputs.cu_seqlens_kv,
                   by_q ? inputs.cu_seqlens_q_padded : inputs.cu_seqlens_kv_padded,
                   static_cast<int64_t>(config.max_seqlen_kv),
                   inputs.kv_extent.tokens};
  const SideLengths q_side = read_side(q, thd_q, padding, batch, caller);
  const SideLengths kv_side = read_side(kv, thd_kv, padding, batch, caller);
  if (by_q && thd_kv) read_cumulative(inputs.cu_seqlens_kv_padded, "CuSeqlensKVPadded", batch, caller);

  problem.lengths.resize(static_cast<size_t>(batch));
  for (size_t b = 0; b < problem.lengths.size(); ++b) {
    const int64_t q_length = q_side.lengths[b], kv_length = kv_side.lengths[b];
    problem.lengths[b] = {q_length, kv_length, thd_q ? q_length : q.maximum, thd_kv ? kv_length : kv.maximum};
  }
  problem.q.first_token = problem.o.first_token = problem.stats.first_token = q_side.starts;
  problem.d_o.first_token = problem.dq.first_token = q_side.starts;
  problem.k.first_token = problem.v.first_token = kv_side.starts;
  problem.dk.first_token = problem.dv.first_token = kv_side.starts;
}

}  // namespace chagres::reference
