/* What fused attention refuses, and with which text. */
#include "attention_double.h"

using attention::Case;
using attention::Problem;

namespace {

using Set = std::function<void(Problem &, NVTEFusedAttnFwdParams)>;

template <class T>
void put(NVTEFusedAttnFwdParams params, int id, T value) {
  Problem::set_fwd(params, id, &value, sizeof(value));
}

/* The forward query call with something changed. */
std::string query_text(const Case &c, const Set &change) {
  Problem problem(c);
  NVTEFusedAttnFwdParams params = problem.forward_params();
  change(problem, params);
  const std::string thrown = check::thrown_text([&] { nvte_fused_attn_fwd_v2(params); });
  nvte_destroy_fused_attn_fwd_params(params);
  return thrown;
}

/* The second forward call, on a problem whose buffers `spoil` changed after a good forward pass. */
std::string run_text(const Case &c, const std::function<void(Problem &)> &spoil) {
  Problem problem(c);
  problem.forward();
  spoil(problem);
  NVTEFusedAttnFwdParams params = problem.forward_params();
  put(params, kNVTEFusedAttnFwdParamsWorkspace, problem.workspace.handle());
  const std::string thrown = check::thrown_text([&] { nvte_fused_attn_fwd_v2(params); });
  nvte_destroy_fused_attn_fwd_params(params);
  return thrown;
}

std::string backward_text(const Case &c, const std::function<void(Problem &, NVTEFusedAttnBwdParams)> &change) {
  Problem problem(c);
  problem.forward();
  NVTEFusedAttnBwdParams params = problem.backward_params();
  const NVTETensor workspace = problem.workspace;
  Problem::set_bwd(params, kNVTEFusedAttnBwdParamsWorkspace, &workspace, sizeof(workspace));
  change(problem, params);
  const std::string thrown = check::thrown_text([&] { nvte_fused_attn_bwd_v2(params); });
  nvte_destroy_fused_attn_bwd_params(params);
  return thrown;
}

#define EXPECT_TEXT(text, ...)                                                                \
  do {                                                                                        \
    const std::string got = (text);                                                           \
    for (const std::string part : std::initializer_list<std::string>{__VA_ARGS__})            \
      if (got.find(part) == std::string::npos)                                                \
        check::report(__FILE__, __LINE__, "expected a text with \"", part, "\", got: ", got); \
  } while (false)

Case gapped() {
  Case c;
  c.layout = NVTE_THD_THD_THD;
  c.q_lengths = {3, 2};
  c.kv_lengths = {4, 1};
  c.gap = 1;
  return c;
}

}  // namespace

TEST(handles_must_live) {
  const std::pair<int, const char *> handles[] = {
      {kNVTEFusedAttnFwdParamsQ, "Q"},
      {kNVTEFusedAttnFwdParamsK, "K"},
      {kNVTEFusedAttnFwdParamsV, "V"},
      {kNVTEFusedAttnFwdParamsBias, "Bias"},
      {kNVTEFusedAttnFwdParamsSoftmaxOffset, "SoftmaxOffset"},
      {kNVTEFusedAttnFwdParamsS, "S"},
      {kNVTEFusedAttnFwdParamsO, "O"},
      {kNVTEFusedAttnFwdParamsCuSeqlensQ, "CuSeqlensQ"},
      {kNVTEFusedAttnFwdParamsCuSeqlensKV, "CuSeqlensKV"},
      {kNVTEFusedAttnFwdParamsCuSeqlensQPadded, "CuSeqlensQPadded"},
      {kNVTEFusedAttnFwdParamsCuSeqlensKVPadded, "CuSeqlensKVPadded"},
      {kNVTEFusedAttnFwdParamsPageTableK, "PageTableK"},
      {kNVTEFusedAttnFwdParamsPageTableV, "PageTableV"},
      {kNVTEFusedAttnFwdParamsRngState, "RngState"},
      {kNVTEFusedAttnFwdParamsWorkspace, "Workspace"},
  };
  for (const auto &[id, name] : handles)
    EXPECT_TEXT(query_text(gapped(), [id = id](Problem &, auto params) { put(params, id, NVTETensor{}); }),
                "nvte_fused_attn_fwd_v2", "Invalid tensor", name);
  EXPECT_TEXT(query_text(gapped(),
                         [](Problem &, auto params) {
                           put(params, kNVTEFusedAttnFwdParamsAuxCtxTensors, static_cast<NVTETensorPack *>(nullptr));
                         }),
              "AuxCtxTensors is not set");
  NVTEFusedAttnFwdParams empty = nvte_create_fused_attn_fwd_params();
  EXPECT_THROWS(nvte_fused_attn_fwd_v2(empty), "Invalid tensor");
  nvte_destroy_fused_attn_fwd_params(empty);
  EXPECT_THROWS(nvte_fused_attn_fwd_v2(empty), "Invalid NVTEFusedAttnFwdParams");
  EXPECT_THROWS(nvte_fused_attn_bwd_v2(nullptr), "Invalid NVTEFusedAttnBwdParams", "NULL");
}

TEST(attributes_that_are_not_computed) {
  const auto with = [](int id, auto value) {
    return query_text(gapped(), [=](Problem &, auto params) { put(params, id, value); });
  };
  const std::string refused = "Fused attention is not supported for this configuration";
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsBiasType, int32_t{NVTE_PRE_SCALE_BIAS}), "nvte_fused_attn_fwd_v2", refused,
              "BiasType", "before the scale");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsBiasType, int32_t{NVTE_POST_SCALE_BIAS}), refused, "no bias over THD");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsBiasType, int32_t{NVTE_ALIBI}), refused, "BiasType 3", "no later key");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsBiasType, int32_t{4}), refused, "BiasType", "0 to 3, got 4");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsAttnMaskType, int32_t{NVTE_CAUSAL_MASK}), refused, "THD", "AttnMaskType",
              "padding");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsAttnMaskType, int32_t{6}), refused, "AttnMaskType", "0 to 5, got 6");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsSoftmaxType, int32_t{3}), refused, "SoftmaxType", "got 3");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsWindowSizeLeft, int64_t{-2}), refused, "WindowSizeLeft", "-2");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsDropout, 1.0f), refused, "Dropout", "below 1, got 1");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsDropout, std::nanf("")), refused, "Dropout");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsMaxSeqlenQ, size_t{0}), refused, "MaxSeqlenQ", "got 0");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsOFormat, int32_t{NVTE_BSHD}), refused, "OFormat");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsOFormat, int32_t{NVTE_QKV_Format_NOT_SET}), refused, "OFormat", "got 8");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsQKVLayout, int32_t{NVTE_QKV_Layout_NOT_SET}), "nvte_fused_attn_fwd_v2",
              "qkv_layout 26", "QKVLayout");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsQKVLayout, int32_t{-1}), "qkv_layout -1");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsQKVLayout, int32_t{NVTE_Paged_KV_THD_BSHD_BSHD}), "\"K\"", "[b, s, h, d]");
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsQKVLayout, int32_t{NVTE_BSHD_BSHD_BSHD}),
              "\"Q\" must have shape [b, s, h, d]", "got (");
  for (const NVTE_Softmax_Type softmax : {NVTE_OFF_BY_ONE_SOFTMAX, NVTE_LEARNABLE_SOFTMAX}) {
    Case offset = gapped();
    offset.softmax = softmax;
    EXPECT_TEXT(backward_text(offset, [](Problem &, auto) {}), "nvte_fused_attn_bwd_v2", "SoftmaxType", "cuDNN 9.26");
    offset.q_lengths = {1, 1};
    offset.gap = 0;
    EXPECT_TEXT(query_text(offset, [](Problem &, auto) {}), refused, "SoftmaxType", "MaxSeqlenQ of 1");
  }
  EXPECT_TEXT(with(kNVTEFusedAttnFwdParamsReturnMaxLogit, uint8_t{1}), refused, "ReturnMaxLogit", "cuDNN 9.21");
  Case corner = gapped();
  corner.mask = NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK;
  const auto dropped = [](Problem &, auto params) { put(params, kNVTEFusedAttnFwdParamsDropout, 0.5f); };
  EXPECT_TEXT(query_text(corner, dropped), refused, "Dropout 0.5", "bottom-right causal AttnMaskType");
  EXPECT_TEXT(backward_text(corner,
                            [](Problem &, auto params) {
                              const float half = 0.5f;
                              Problem::set_bwd(params, kNVTEFusedAttnBwdParamsDropout, &half, sizeof(half));
                            }),
              "nvte_fused_attn_bwd_v2", "Dropout 0.5", "bottom-right");
}

TEST(packed_layouts_need_equal_heads_and_dimensions) {
  Case c = gapped();
  c.heads = 4;
  const auto relabel = [](int layout) {
    return [layout](Problem &, auto params) { put(params, kNVTEFusedAttnFwdParamsQKVLayout, int32_t{layout}); };
  };
  EXPECT_TEXT(query_text(c, relabel(NVTE_T3HD)), "QKVLayout 10", "equal head counts, got 4 and 2");
  c.heads = 3;
  EXPECT_TEXT(query_text(c, [](Problem &, auto) {}), "NumAttnHeads must be a multiple", "3 and 2");
  c = gapped();
  c.dim_v = 12;
  EXPECT_TEXT(query_text(c, relabel(NVTE_THD_TH2D)), "QKVLayout 13", "equal head dimensions, got 8 and 12");
  c = gapped();
  EXPECT_TEXT(query_text(c, relabel(NVTE_THD_T2HD)), "\"V\" must start 16 elements after \"K\"");
  c.kv_lengths = {4, 2};
  EXPECT_TEXT(query_text(c, relabel(NVTE_T3HD)), "\"Q\" and \"K\" share one buffer",
              "equal sequence lengths or tokens");
}

TEST(tensors_that_do_not_fit) {
  const auto with_tensor = [](int id, std::vector<size_t> shape, NVTEDType dtype) {
    return query_text(gapped(), [=](Problem &, auto params) {
      static std::vector<std::unique_ptr<check::Array>> kept;
      kept.push_back(std::make_unique<check::Array>(shape, dtype));
      put(params, id, kept.back()->handle());
    });
  };
  EXPECT_TEXT(with_tensor(kNVTEFusedAttnFwdParamsK, {7, 2, 9}, kNVTEFloat32), "\"K\" must have shape [t, h, d]", "d 8",
              "got (7, 2, 9)");
  EXPECT_TEXT(with_tensor(kNVTEFusedAttnFwdParamsV, {6, 2, 8}, kNVTEFloat32), "\"V\"", "t 7", "got (6, 2, 8)");
  EXPECT_TEXT(with_tensor(kNVTEFusedAttnFwdParamsO, {7, 2, 9}, kNVTEFloat32), "\"O\"", "d 8", "got (7, 2, 9)");
  EXPECT_TEXT(with_tensor(kNVTEFusedAttnFwdParamsO, {7, 2, 8}, kNVTEBFloat16), "\"O\"", "dtype of \"Q\", Float32",
              "got BFloat16");
  EXPECT_TEXT(with_tensor(kNVTEFusedAttnFwdParamsV, {7, 2, 8}, kNVTEFloat16), "\"V\"", "got Float16");
  EXPECT_TEXT(with_tensor(kNVTEFusedAttnFwdParamsQ, {7, 2, 8}, kNVTEInt32), "QKVDtype", "got Int32");
  EXPECT_TEXT(with_tensor(kNVTEFusedAttnFwdParamsQ, {7, 2, 8}, kNVTEFloat8E4M3), "QKVLayout: FP8 attention of THD",
              "cuDNN 9.23");
  EXPECT_TEXT(with_tensor(kNVTEFusedAttnFwdParamsQ, {7, 2, 8}, kNVTEFloat8E5M2), "QKVDtype", "got Float8E5M2");
  EXPECT_TEXT(with_tensor(kNVTEFusedAttnFwdParamsQ, {7, 16}, kNVTEFloat32), "\"Q\" must have shape [t, h, d]",
              "got (7, 16)");
  EXPECT_TEXT(with_tensor(kNVTEFusedAttnFwdParamsQ, {0, 2, 8}, kNVTEFloat32), "NumTokensQ must not be 0");
  EXPECT_TEXT(with_tensor(kNVTEFusedAttnFwdParamsCuSeqlensQ, {1}, kNVTEInt32), "CuSeqlensQ", "(batch + 1)");
  Case dense = gapped();
  dense.layout = NVTE_BSHD_SBHD_SBHD;
  EXPECT_TEXT(query_text(dense, [](Problem &, auto p) { put(p, kNVTEFusedAttnFwdParamsMaxSeqlenKV, size_t{9}); }),
              "MaxSeqlenKV must equal the sequence length of \"K\", 5, got 9");
}

TEST(cu_seqlens_are_checked_before_anything_is_read) {
  const auto spoiled = [](int which, size_t at, int value, const Case &c = gapped()) {
    return run_text(c, [=](Problem &p) {
      check::Array *const arrays[] = {&p.cu_q, &p.cu_kv, &p.starts_q, &p.starts_kv};
      arrays[which]->set(at, value);
    });
  };
  const std::pair<int, const char *> names[] = {
      {0, "\"CuSeqlensQ\""}, {1, "\"CuSeqlensKV\""}, {2, "\"CuSeqlensQPadded\""}, {3, "\"CuSeqlensKVPadded\""}};
  for (const auto &[which, name] : names) {
    EXPECT_TEXT(spoiled(which, 0, 1), name, "must start at 0, got 1");
    EXPECT_TEXT(spoiled(which, 0, -5), name, "must start at 0, got -5");
    EXPECT_TEXT(spoiled(which, 2, 0), name, "must not decrease", "at index 2");
    EXPECT_TEXT(spoiled(which, 1, std::numeric_limits<int>::min()), name, "must not decrease", "at index 1");
  }
  EXPECT_TEXT(spoiled(0, 2, 30), "MaxSeqlenQ must cover the longest sequence", "sequence 1", "27 tokens, got 4");
  EXPECT_TEXT(spoiled(0, 2, 7), "\"CuSeqlensQPadded\" leaves 3 tokens for sequence 1, which has 4");
  EXPECT_TEXT(spoiled(2, 2, 8), "\"CuSeqlensQPadded\" ends at 8, past the 7 tokens of \"Q\"");
  EXPECT_TEXT(spoiled(3, 2, 1 << 30), "\"CuSeqlensKVPadded\" ends at 1073741824, past the 7 tokens of \"K\"");
  Case dense = gapped();
  dense.layout = NVTE_BSHD_BSHD_BSHD;
  EXPECT_TEXT(spoiled(1, 2, 30, dense), "MaxSeqlenKV must cover the longest sequence", "26 tokens, got 5");
  const auto reshaped = [](std::vector<size_t> shape, NVTEDType dtype) {
    return run_text(gapped(), [=](Problem &p) { p.cu_kv.record(kNVTERowwiseData, p.cu_kv.data(), dtype, shape); });
  };
  EXPECT_TEXT(reshaped({4}, kNVTEInt32), "\"CuSeqlensKV\" must be Int32 of shape (3), got Int32 (4)");
  EXPECT_TEXT(reshaped({3}, kNVTEInt64), "\"CuSeqlensKV\" must be Int32 of shape (3), got Int64 (3)");
  EXPECT_TEXT(run_text(gapped(), [](Problem &p) { p.starts_kv.record(kNVTERowwiseData, nullptr, kNVTEFloat32, {0}); }),
              "\"CuSeqlensKVPadded\" has no data");
}

TEST(packed_layouts_place_keys_by_the_starts_of_queries) {
  Case c;
  c.layout = NVTE_T3HD;
  c.q_lengths = c.kv_lengths = {3, 2};
  EXPECT_TEXT(run_text(c, [](Problem &p) { p.cu_kv.set(2, 6); }), "\"CuSeqlensQPadded\" leaves 2 tokens for sequence 1",
              "which has 3 by \"CuSeqlensKV\"");
}

TEST(the_second_call_needs_what_the_first_one_asked_for) {
  EXPECT_TEXT(run_text(gapped(), [](Problem &p) { p.pack.size = 0; }), "AuxCtxTensors must have 2 tensors",
              "unset workspace", "got 0");
  EXPECT_TEXT(run_text(gapped(), [](Problem &p) { p.pack.size = 1; }), "AuxCtxTensors must have 2 tensors", "got 1");
  const auto stats_record = [](std::vector<size_t> shape, bool with_data) {
    return run_text(gapped(), [=](Problem &p) {
      const NVTEBasicTensor record{with_data ? p.aux[0]->data() : nullptr, kNVTEFloat32,
                                   nvte_make_shape(shape.data(), shape.size())};
      nvte_set_tensor_param_v2(p.pack.tensors[0], kNVTERowwiseData, &record, sizeof(record));
    });
  };
  EXPECT_TEXT(stats_record({7, 2, 1}, false), "AuxCtxTensors[0] (Stats)", "has no data");
  EXPECT_TEXT(stats_record({6, 2, 1}, true), "AuxCtxTensors[0] (Stats)", "must have shape (7, 2, 1), got (6, 2, 1)");
  EXPECT_TEXT(run_text(gapped(),
                       [](Problem &p) {
                         const NVTEBasicTensor record{nullptr, kNVTEFloat32, nvte_tensor_shape(p.in.q->handle())};
                         nvte_set_tensor_param_v2(p.in.q->handle(), kNVTERowwiseData, &record, sizeof(record));
                       }),
              "\"Q\" has no data");
  Case dropped = gapped();
  dropped.dropout = 0.5f;
  EXPECT_TEXT(run_text(dropped, [](Problem &p) { p.rng.record(kNVTERowwiseData, p.rng.data(), kNVTEInt64, {1}); }),
              "\"RngState\" must have 2 elements, got 1");
  EXPECT_TEXT(run_text(dropped, [](Problem &p) { p.rng.record(kNVTERowwiseData, nullptr, kNVTEInt64, {0}); }),
              "\"RngState\" has no data");
}

TEST(a_bias_has_the_shape_of_scores) {
  Case c;
  c.layout = NVTE_BSHD_BSHD_BSHD;
  c.q_lengths = c.kv_lengths = {5, 5};
  c.mask = NVTE_NO_MASK;
  c.bias = NVTE_POST_SCALE_BIAS;
  const auto shaped = [&](std::initializer_list<size_t> extents) {
    const std::vector<size_t> shape = extents;
    return run_text(c, [&](Problem &p) { p.bias.record(kNVTERowwiseData, nullptr, kNVTEFloat32, shape); });
  };
  EXPECT_TEXT(shaped({2, 5, 5}), "\"Bias\" must have shape [1 or b, 1 or h, s, s of keys], got (2, 5, 5)");
  EXPECT_TEXT(shaped({3, 2, 5, 5}), "BiasBatchSize must be 1 or 2, got 3");
  EXPECT_TEXT(shaped({1, 3, 5, 5}), "BiasNumHeads must be 1 or 2, got 3");
  EXPECT_TEXT(shaped({1, 2, 1, 5}), "BiasSeqlenQ must be 5, got 1");
  EXPECT_TEXT(shaped({1, 2, 5, 6}), "BiasSeqlenKV must be 5, got 6");
  EXPECT_TEXT(run_text(c, [](Problem &p) { p.bias.record(kNVTERowwiseData, nullptr, kNVTEFloat32, {1, 2, 5, 5}); }),
              "\"Bias\" has no data");
  EXPECT_TEXT(run_text(c, [](Problem &p) { p.bias.record(kNVTERowwiseData, p.bias.data(), kNVTEBFloat16, {1, 2, 5, 5}); }),
              "\"Bias\"", "Float32");
  EXPECT_TEXT(backward_text(c, [](Problem &p, auto) { p.dbias.record(kNVTERowwiseData, nullptr, kNVTEFloat32, {1, 2, 5, 5}); }),
              "\"DBias\" has no data");
  EXPECT_TEXT(backward_text(c, [](Problem &p, auto) { p.pack.size = 2; }), "AuxCtxTensors must have 3", "got 2");
}

TEST(backward_names_its_own_arguments) {
  const auto with = [](int id, auto value) {
    return backward_text(gapped(),
                         [=](Problem &, auto params) { Problem::set_bwd(params, id, &value, sizeof(value)); });
  };
  const std::pair<int, const char *> handles[] = {{kNVTEFusedAttnBwdParamsO, "\"O\""},
                                                  {kNVTEFusedAttnBwdParamsDO, "\"DO\""},
                                                  {kNVTEFusedAttnBwdParamsDQ, "\"DQ\""},
                                                  {kNVTEFusedAttnBwdParamsDK, "\"DK\""},
                                                  {kNVTEFusedAttnBwdParamsDV, "\"DV\""},
                                                  {kNVTEFusedAttnBwdParamsS, "\"S\""},
                                                  {kNVTEFusedAttnBwdParamsDP, "\"DP\""},
                                                  {kNVTEFusedAttnBwdParamsDBias, "\"DBias\""},
                                                  {kNVTEFusedAttnBwdParamsDSoftmaxOffset, "\"DSoftmaxOffset\""},
                                                  {kNVTEFusedAttnBwdParamsWorkspace, "\"Workspace\""}};
  for (const auto &[id, name] : handles)
    EXPECT_TEXT(with(id, NVTETensor{}), "nvte_fused_attn_bwd_v2", "Invalid tensor", name);
  EXPECT_TEXT(with(kNVTEFusedAttnBwdParamsDOFormat, int32_t{NVTE_QKV_Format_NOT_SET}), "DOFormat", "got 8");
  EXPECT_TEXT(with(kNVTEFusedAttnBwdParamsDOFormat, int32_t{NVTE_SBHD}), "DOFormat must be NVTE_THD exactly");
  EXPECT_TEXT(with(kNVTEFusedAttnBwdParamsDQKVLayout, int32_t{NVTE_QKV_Layout_NOT_SET}), "DQKVLayout", "got 26");
  EXPECT_TEXT(with(kNVTEFusedAttnBwdParamsDQKVLayout, int32_t{NVTE_THD_BSHD_BSHD}), "DQKVLayout must be a THD layout");
  EXPECT_TEXT(with(kNVTEFusedAttnBwdParamsDQKVLayout, int32_t{NVTE_THD_TH2D}),
              "\"DV\" must start 8 elements after \"DK\"");
  EXPECT_TEXT(with(kNVTEFusedAttnBwdParamsAuxCtxTensors, static_cast<NVTETensorPack *>(nullptr)),
              "AuxCtxTensors is not set");
  EXPECT_TEXT(backward_text(gapped(), [](Problem &p, auto) { p.pack.size = 3; }), "AuxCtxTensors must have 2", "got 3");
  EXPECT_TEXT(backward_text(gapped(),
                            [](Problem &p, auto) {
                              const NVTEBasicTensor record{nullptr, kNVTEFloat32, nvte_tensor_shape(p.out.k->handle())};
                              nvte_set_tensor_param_v2(p.out.k->handle(), kNVTERowwiseData, &record, sizeof(record));
                            }),
              "\"DK\" has no data");
  EXPECT_TEXT(backward_text(gapped(), [](Problem &p, auto) { p.cu_q.set(2, 3 + 99); }), "MaxSeqlenQ must cover");
}
