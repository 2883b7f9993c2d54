/* The objects, numbers and answers round fused attention: attributes, layouts, sizes, backend query, conversions. */
#include "attention_double.h"

using attention::Case;
using attention::Problem;
using check::Array;

namespace {

template <class T>
T config_value(NVTEFusedAttnConfig config, int id) {
  T value{};
  size_t written = 0;
  nvte_get_fused_attn_config_attribute(config, static_cast<NVTEFusedAttnConfigAttribute>(id), &value, sizeof(value),
                                       &written);
  EXPECT_EQUAL(written, sizeof(T));
  return value;
}

template <class T>
void set_config(NVTEFusedAttnConfig config, int id, T value) {
  nvte_set_fused_attn_config_attribute(config, static_cast<NVTEFusedAttnConfigAttribute>(id), &value, sizeof(value));
}

/* A packed BF16 training configuration that the reference computes. */
NVTEFusedAttnConfig good_config() {
  NVTEFusedAttnConfig config = nvte_create_fused_attn_config();
  for (const auto &[id, value] : {std::pair<int, int32_t>{kNVTEFusedAttnConfigQKVLayout, NVTE_T3HD},
                                  {kNVTEFusedAttnConfigDQKVLayout, NVTE_T3HD},
                                  {kNVTEFusedAttnConfigOFormat, NVTE_THD},
                                  {kNVTEFusedAttnConfigDOFormat, NVTE_THD},
                                  {kNVTEFusedAttnConfigAttnMaskType, NVTE_PADDING_MASK}})
    set_config(config, id, value);
  for (const auto &[id, value] : {std::pair<int, size_t>{kNVTEFusedAttnConfigBatchSize, 4},
                                  {kNVTEFusedAttnConfigNumAttnHeads, 8},
                                  {kNVTEFusedAttnConfigNumGQAGroups, 8},
                                  {kNVTEFusedAttnConfigHeadDimQK, 64},
                                  {kNVTEFusedAttnConfigHeadDimV, 64},
                                  {kNVTEFusedAttnConfigMaxSeqlenQ, 512},
                                  {kNVTEFusedAttnConfigMaxSeqlenKV, 512},
                                  {kNVTEFusedAttnConfigNumTokensQ, 1000},
                                  {kNVTEFusedAttnConfigNumTokensKV, 1000}})
    set_config(config, id, value);
  return config;
}

template <class T>
std::string reason_with(int id, T value) {
  NVTEFusedAttnConfig config = good_config();
  set_config(config, id, value);
  const char *message = nullptr;
  const NVTE_Fused_Attn_Backend backend = nvte_get_fused_attn_backend_v2(config, &message);
  const std::string reason = message;
  EXPECT_EQUAL(static_cast<int>(backend), reason.empty() ? 1 : -1);
  nvte_destroy_fused_attn_config(config);
  return reason;
}

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(attribute_sizes) {
  const std::vector<int> config = {1, 1, 1, 1, 4, 4, 8, 8, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4,
                                   4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
  const std::vector<int> fwd = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 1, 1,
                                1, 4, 4, 8, 8, 1, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8};
  const std::vector<int> bwd = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 1, 1,
                                4, 4, 8, 8, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8};
  EXPECT_EQUAL(config.size(), size_t{kNVTEFusedAttnConfigNumAttributes});
  EXPECT_EQUAL(fwd.size(), size_t{kNVTEFusedAttnFwdParamsNumAttributes});
  EXPECT_EQUAL(bwd.size(), size_t{kNVTEFusedAttnBwdParamsNumAttributes});
  const auto check_all = [](const std::vector<int> &sizes, void *object, auto set, auto get, auto cast,
                            const char *kind) {
    for (size_t id = 0; id < sizes.size(); ++id) {
      const uint64_t one = 1;
      uint64_t back = 0;
      size_t written = 0;
      const auto size = static_cast<size_t>(sizes[id]);
      EXPECT_THROWS(set(object, cast(id), &one, size - 1), "Buffer is too small", kind);
      set(object, cast(id), &one, size);
      get(object, cast(id), nullptr, 0, &written);
      EXPECT_EQUAL(written, size);
      EXPECT_THROWS(get(object, cast(id), &back, size - 1, &written), "Buffer is too small", kind);
      get(object, cast(id), &back, sizeof(back), &written);
      EXPECT_EQUAL(back, uint64_t{1});
    }
    const uint64_t one = 1;
    EXPECT_THROWS(set(object, cast(sizes.size()), &one, 8), kind, "expected 0 to");
    EXPECT_THROWS(set(object, cast(size_t{0}), nullptr, 8), kind, "NULL");
  };
  NVTEFusedAttnConfig c = nvte_create_fused_attn_config();
  check_all(
      config, c, nvte_set_fused_attn_config_attribute, nvte_get_fused_attn_config_attribute,
      [](size_t id) { return static_cast<NVTEFusedAttnConfigAttribute>(id); }, "NVTEFusedAttnConfigAttribute");
  nvte_destroy_fused_attn_config(c);
  NVTEFusedAttnFwdParams f = nvte_create_fused_attn_fwd_params();
  check_all(
      fwd, f, nvte_set_fused_attn_fwd_params_attribute, nvte_get_fused_attn_fwd_params_attribute,
      [](size_t id) { return static_cast<NVTEFusedAttnFwdParamsAttribute>(id); }, "NVTEFusedAttnFwdParamsAttribute");
  nvte_destroy_fused_attn_fwd_params(f);
  NVTEFusedAttnBwdParams b = nvte_create_fused_attn_bwd_params();
  check_all(
      bwd, b, nvte_set_fused_attn_bwd_params_attribute, nvte_get_fused_attn_bwd_params_attribute,
      [](size_t id) { return static_cast<NVTEFusedAttnBwdParamsAttribute>(id); }, "NVTEFusedAttnBwdParamsAttribute");
  nvte_destroy_fused_attn_bwd_params(b);
  EXPECT_THROWS(nvte_destroy_fused_attn_bwd_params(b), "Invalid NVTEFusedAttnBwdParams");
  EXPECT_THROWS(nvte_destroy_fused_attn_config(nullptr), "Invalid NVTEFusedAttnConfig", "NULL");
}

TEST(defaults_are_those_of_transformer_engine) {
  NVTEFusedAttnConfig config = nvte_create_fused_attn_config();
  EXPECT_EQUAL(int{config_value<uint8_t>(config, kNVTEFusedAttnConfigIsTraining)}, 1);
  EXPECT_EQUAL(int{config_value<uint8_t>(config, kNVTEFusedAttnConfigBottomRightDiagonal)}, 1);
  EXPECT_EQUAL(config_value<int64_t>(config, kNVTEFusedAttnConfigWindowSizeLeft), -1);
  EXPECT_EQUAL(config_value<int64_t>(config, kNVTEFusedAttnConfigWindowSizeRight), -1);
  EXPECT_EQUAL(config_value<float>(config, kNVTEFusedAttnConfigAttnScale), 1.0f);
  EXPECT_EQUAL(config_value<float>(config, kNVTEFusedAttnConfigDropout), 0.0f);
  for (const int id : {kNVTEFusedAttnConfigQKVDtype, kNVTEFusedAttnConfigODtype, kNVTEFusedAttnConfigDODtype,
                       kNVTEFusedAttnConfigDQKVDtype})
    EXPECT_EQUAL(config_value<int32_t>(config, id), int{kNVTEBFloat16});
  for (const int id : {kNVTEFusedAttnConfigQKVLayout, kNVTEFusedAttnConfigDQKVLayout})
    EXPECT_EQUAL(config_value<int32_t>(config, id), int{NVTE_QKV_Layout_NOT_SET});
  for (const int id : {kNVTEFusedAttnConfigOFormat, kNVTEFusedAttnConfigDOFormat, kNVTEFusedAttnConfigQKVScaleInvFormat,
                       kNVTEFusedAttnConfigDOScaleInvFormat})
    EXPECT_EQUAL(config_value<int32_t>(config, id), int{NVTE_QKV_Format_NOT_SET});
  nvte_destroy_fused_attn_config(config);
}

/* Formats from the letters of the layout's name. */
TEST(what_a_layout_says) {
  for (int number = 0; number < NVTE_QKV_Layout_NOT_SET; ++number) {
    const auto layout = static_cast<NVTE_QKV_Layout>(number);
    if (attention::layout_name(number)[0] == '\0') {
      EXPECT_EQUAL(static_cast<int>(nvte_get_qkv_layout_group(layout)), int{NVTE_Paged_KV_HD_HD_HD});
      continue;
    }
    const std::vector<std::string> parts = attention::split(attention::layout_name(number));
    const auto format = [](std::string letters) {
      std::string kept;
      for (const char letter : letters)
        if (letter < '0' || letter > '9') kept += letter;
      return static_cast<int>(attention::format_of(kept));
    };
    EXPECT_EQUAL(static_cast<int>(nvte_get_q_format(layout)), format(parts.front()));
    EXPECT_EQUAL(static_cast<int>(nvte_get_kv_format(layout)), format(parts.back()));
    const std::string &last = parts.back();
    const bool inner = last.size() > 2 && last[last.size() - 2] >= '0' && last[last.size() - 2] <= '9';
    const int group = number == NVTE_BHSD_BHSD_BHSD ? NVTE_SD_SD_SD
                      : parts.size() == 3           ? NVTE_HD_HD_HD
                      : parts.size() == 2           ? (inner ? NVTE_HD_H2D : NVTE_HD_2HD)
                                                    : (inner ? NVTE_H3D : NVTE_3HD);
    EXPECT_EQUAL(static_cast<int>(nvte_get_qkv_layout_group(layout)), group);
  }
  EXPECT_EQUAL(static_cast<int>(nvte_get_qkv_format(NVTE_SBHD_BSHD_BSHD)), int{NVTE_SBHD_2BSHD});
  EXPECT_EQUAL(static_cast<int>(nvte_get_qkv_format(NVTE_BSHD_SBHD_SBHD)), int{NVTE_BSHD_2SBHD});
  EXPECT_EQUAL(static_cast<int>(nvte_get_qkv_format(NVTE_Paged_KV_THD_BSHD_BSHD)), int{NVTE_THD_2BSHD});
  EXPECT_EQUAL(static_cast<int>(nvte_get_qkv_format(NVTE_THD_SBHD_SBHD)), int{NVTE_THD_2SBHD});
  EXPECT_EQUAL(static_cast<int>(nvte_get_qkv_format(NVTE_T3HD)), int{NVTE_THD});
  for (const int bad : {26, 27, 31}) {
    const auto layout = static_cast<NVTE_QKV_Layout>(bad);
    const std::string number = std::to_string(bad);
    EXPECT_THROWS(nvte_get_qkv_layout_group(layout), "nvte_get_qkv_layout_group", "Unsupported qkv_layout " + number);
    EXPECT_THROWS(nvte_get_qkv_format(layout), "nvte_get_qkv_format", number);
    EXPECT_THROWS(nvte_get_q_format(layout), "nvte_get_q_format", number);
    EXPECT_THROWS(nvte_get_kv_format(layout), "nvte_get_kv_format", number);
  }
}

TEST(the_query_describes_a_bias_before_a_sink) {
  Case c;
  c.layout = NVTE_BSHD_BSHD_BSHD;
  c.mask = NVTE_NO_MASK;
  c.q_lengths = c.kv_lengths = {5, 5};
  c.bias = NVTE_POST_SCALE_BIAS;
  c.dtype = kNVTEBFloat16;
  c.softmax = NVTE_LEARNABLE_SOFTMAX;
  Problem problem(c);
  problem.forward();
  EXPECT_EQUAL(problem.pack.size, size_t{4});
  EXPECT_EQUAL(chagres::reference::shape_text(nvte_tensor_shape(problem.pack.tensors[2])), std::string("(1, 2, 5, 5)"));
  EXPECT_EQUAL(int{nvte_tensor_type(problem.pack.tensors[2])}, int{kNVTEBFloat16});
  EXPECT_EQUAL(nvte_tensor_data(problem.pack.tensors[2]), static_cast<void *>(problem.bias.data()));
  EXPECT_EQUAL(nvte_tensor_data(problem.pack.tensors[3]), static_cast<void *>(problem.sink.data()));
}

TEST(the_query_fills_sizes_and_nothing_else) {
  for (const bool thd : {true, false}) {
    Case c;
    c.layout = thd ? NVTE_THD_THD_THD : NVTE_BSHD_BSHD_BSHD;
    c.q_lengths = c.kv_lengths = {3, 4};
    c.gap = 1;
    c.softmax = NVTE_OFF_BY_ONE_SOFTMAX;
    Problem problem(c);
    NVTEFusedAttnFwdParams params = problem.forward_params();
    nvte_fused_attn_fwd_v2(params);
    EXPECT_EQUAL(problem.pack.size, size_t{3});
    const std::string stats = thd ? "(9, 2, 1)" : "(2, 2, 5, 1)";
    const std::vector<std::string> shapes = {stats, "(2)", "(1, 2, 1, 1)"};
    const std::vector<NVTEDType> dtypes = {kNVTEFloat32, kNVTEInt64, kNVTEFloat32};
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQUAL(chagres::reference::shape_text(nvte_tensor_shape(problem.pack.tensors[i])), shapes[i]);
      EXPECT_EQUAL(int{nvte_tensor_type(problem.pack.tensors[i])}, int{dtypes[i]});
      EXPECT_EQUAL(nvte_tensor_data(problem.pack.tensors[i]), static_cast<void *>(nullptr));
    }
    EXPECT_EQUAL(chagres::reference::shape_text(nvte_tensor_shape(problem.query_workspace)), std::string("(1)"));
    EXPECT_EQUAL(int{nvte_tensor_type(problem.query_workspace)}, int{kNVTEByte});
    for (const double value : problem.o->buffer().values()) EXPECT_EQUAL(value, Problem::kUntouched);
    nvte_destroy_fused_attn_fwd_params(params);
    problem.pack.size = 0;
    problem.forward();
    EXPECT_EQUAL(nvte_tensor_data(problem.pack.tensors[1]), static_cast<void *>(problem.rng.data()));
  }
}

TEST(backend_query) {
  EXPECT_EQUAL(reason_with(kNVTEFusedAttnConfigIsTraining, uint8_t{1}), std::string());
  EXPECT_EQUAL(reason_with(kNVTEFusedAttnConfigQKVDtype, int32_t{kNVTEFloat32}), std::string());
  EXPECT(has(reason_with(kNVTEFusedAttnConfigAttnMaskType, int32_t{NVTE_NO_MASK}), "AttnMaskType with padding"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigNumTokensQ, size_t{0}), "NumTokensQ must not be 0"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigNumTokensKV, size_t{0}), "NumTokensKV must not be 0"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigBiasType, int32_t{NVTE_PRE_SCALE_BIAS}), "before the scale"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigBiasType, int32_t{NVTE_ALIBI}), "BiasType 3"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigBiasType, int32_t{NVTE_POST_SCALE_BIAS}), "no bias over THD"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigBiasType, int32_t{5}), "0 to 3, got 5"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigQKVDtype, int32_t{kNVTEFloat8E4M3}), "FP8 attention of THD needs cuDNN 9.23"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigQKVDtype, int32_t{kNVTEInt64}), "QKVDtype must be"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigSoftmaxType, int32_t{NVTE_LEARNABLE_SOFTMAX}), "cuDNN 9.26"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigSoftmaxType, int32_t{NVTE_OFF_BY_ONE_SOFTMAX}), "cuDNN 9.26"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigReturnMaxLogit, uint8_t{1}), "cuDNN 9.21"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigNumGQAGroups, size_t{4}), "equal head counts, got 8 and 4"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigHeadDimV, size_t{32}), "equal head dimensions, got 64 and 32"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigHeadDimQK, size_t{0}), "HeadDimQK must be from 1"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigBatchSize, size_t{1} << 40), "BatchSize must be from 1"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigDOFormat, int32_t{NVTE_QKV_Format_NOT_SET}), "DOFormat"));
  EXPECT(has(reason_with(kNVTEFusedAttnConfigQKVLayout, int32_t{NVTE_Paged_KV_THD_BSHD_BSHD}), "QKVLayout 23"));
  NVTEFusedAttnConfig config = nvte_create_fused_attn_config();
  EXPECT_THROWS(nvte_get_fused_attn_backend_v2(config, nullptr), "nvte_get_fused_attn_backend_v2", "qkv_layout 26");
  nvte_destroy_fused_attn_config(config);
}

/* What cuDNN refuses on Hopper: all attributes of one configuration, and a part of the reason. */
TEST(backend_query_of_what_cudnn_refuses) {
  struct Question {
    int32_t bias, mask;
    int64_t left, right;
    uint8_t bottom_right, training;
    float dropout;
    size_t max_q, max_kv;
    const char *reason;
  };
  constexpr int32_t kCorner = NVTE_CAUSAL_BOTTOM_RIGHT_MASK, kPaddedCorner = NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK;
  constexpr int32_t kNone = NVTE_NO_BIAS, kBias = NVTE_POST_SCALE_BIAS;
  const Question questions[] = {
      {kNone, kCorner, -1, -1, 0, 1, 0, 512, 512, ""},
      {kNone, kCorner, -1, -1, 0, 1, 0.1f, 512, 512, "Dropout 0.1: cuDNN has no dropout under a bottom-right causal"},
      {kNone, kPaddedCorner, 3, 0, 1, 1, 0.1f, 512, 512, "Dropout 0.1"},
      {kNone, kPaddedCorner, 3, 0, 1, 0, 0.1f, 512, 512, ""},
      {kNone, NVTE_PADDING_CAUSAL_MASK, 3, 0, 1, 1, 0.1f, 512, 512, ""},
      {kNone, NVTE_PADDING_MASK, 3, 2, 0, 1, 0.1f, 512, 512, ""},
      {kNone, NVTE_PADDING_MASK, 3, -1, 1, 1, 0.1f, 512, 512, ""},
      {kNone, NVTE_PADDING_MASK, 3, 2, 1, 1, 0.1f, 512, 512, "no dropout under a WindowSizeRight from a BottomRightDiagonal"},
      {kNone, NVTE_NO_MASK, -1, -1, 1, 1, 0.1f, 512, 256, ""},
      {kNone, kCorner, -1, -1, 0, 1, 0, 512, 256, "MaxSeqlenQ 512: cuDNN takes more queries than keys (MaxSeqlenKV 256)"},
      {kNone, kPaddedCorner, -1, -1, 0, 1, 0, 512, 256, ""},
      {kNone, NVTE_CAUSAL_MASK, -1, -1, 0, 1, 0, 512, 256, ""},
      {kNone, NVTE_CAUSAL_MASK, 9, -1, 0, 1, 0, 512, 256, "under a WindowSizeLeft with a padding AttnMaskType only"},
      {kNone, NVTE_PADDING_CAUSAL_MASK, 9, -1, 0, 1, 0, 512, 256, ""},
      {kBias, NVTE_NO_MASK, -1, -1, 1, 1, 0, 512, 256, ""},
      {kBias, NVTE_PADDING_CAUSAL_MASK, 9, 0, 0, 1, 0.1f, 512, 512, ""},
      {kBias, kCorner, -1, -1, 0, 1, 0, 512, 512, "BiasType 2: cuDNN has neither bias nor ALiBi under a bottom-right causal"},
      {kBias, NVTE_NO_MASK, 3, 3, 1, 0, 0, 512, 512, "nor ALiBi under a WindowSizeRight from a BottomRightDiagonal"},
      {NVTE_ALIBI, NVTE_CAUSAL_MASK, -1, 0, 1, 1, 0, 512, 512, ""},
      {NVTE_ALIBI, NVTE_PADDING_CAUSAL_MASK, 9, 0, 1, 1, 0.1f, 512, 512, ""},
      {NVTE_ALIBI, NVTE_NO_MASK, -1, -1, 0, 1, 0, 512, 512, "BiasType 3: cuDNN has ALiBi only where"},
      {NVTE_ALIBI, NVTE_NO_MASK, -1, 0, 0, 1, 0, 512, 512, ""},
      {NVTE_ALIBI, kPaddedCorner, -1, 0, 1, 1, 0, 512, 512, "BiasType 3: cuDNN has neither bias nor ALiBi under"}};
  for (const Question &question : questions) {
    NVTEFusedAttnConfig config = good_config();
    for (const int id : {kNVTEFusedAttnConfigQKVLayout, kNVTEFusedAttnConfigDQKVLayout})
      set_config(config, id, int32_t{NVTE_BSHD_BSHD_BSHD});
    for (const int id : {kNVTEFusedAttnConfigOFormat, kNVTEFusedAttnConfigDOFormat})
      set_config(config, id, int32_t{NVTE_BSHD});
    set_config(config, kNVTEFusedAttnConfigBiasType, question.bias);
    set_config(config, kNVTEFusedAttnConfigBiasBatchSize, size_t{1});
    set_config(config, kNVTEFusedAttnConfigBiasNumHeads, size_t{8});
    set_config(config, kNVTEFusedAttnConfigBiasSeqlenQ, question.max_q);
    set_config(config, kNVTEFusedAttnConfigBiasSeqlenKV, question.max_kv);
    set_config(config, kNVTEFusedAttnConfigAttnMaskType, question.mask);
    set_config(config, kNVTEFusedAttnConfigWindowSizeLeft, question.left);
    set_config(config, kNVTEFusedAttnConfigWindowSizeRight, question.right);
    set_config(config, kNVTEFusedAttnConfigBottomRightDiagonal, question.bottom_right);
    set_config(config, kNVTEFusedAttnConfigIsTraining, question.training);
    set_config(config, kNVTEFusedAttnConfigDropout, question.dropout);
    set_config(config, kNVTEFusedAttnConfigMaxSeqlenQ, question.max_q);
    set_config(config, kNVTEFusedAttnConfigMaxSeqlenKV, question.max_kv);
    const char *message = nullptr;
    nvte_get_fused_attn_backend_v2(config, &message);
    const std::string reason = message, wanted = question.reason;
    if (wanted.empty() ? !reason.empty() : !has(reason, wanted))
      check::report(__FILE__, __LINE__, "mask ", question.mask, ": expected \"", wanted, "\", got \"", reason, "\"");
    nvte_destroy_fused_attn_config(config);
  }
}

TEST(deprecated_backend_query) {
  const auto backend = [](NVTE_QKV_Layout layout, NVTEDType kv_dtype, NVTE_Mask_Type mask) {
    return static_cast<int>(nvte_get_fused_attn_backend(true, kNVTEBFloat16, kv_dtype, layout, NVTE_NO_BIAS, mask,
                                                        NVTE_VANILLA_SOFTMAX, 0, 8, 8, 128, 128, 64, 64, -1, -1, false,
                                                        false, false));
  };
  EXPECT_EQUAL(backend(NVTE_BSHD_BSHD_BSHD, kNVTEBFloat16, NVTE_CAUSAL_MASK), int{NVTE_F16_arbitrary_seqlen});
  /* It carries no token counts. */
  EXPECT_EQUAL(backend(NVTE_T3HD, kNVTEBFloat16, NVTE_PADDING_MASK), int{NVTE_No_Backend});
  EXPECT_THROWS(backend(NVTE_T3HD, kNVTEFloat16, NVTE_PADDING_MASK), "same dtype", "BFloat16 and Float16");
}

/* The long-argument forms compute what the objects compute. */
TEST(deprecated_forms) {
  Case c;
  c.layout = NVTE_THD_THD_THD;
  c.mask = NVTE_PADDING_CAUSAL_MASK;
  c.q_lengths = c.kv_lengths = {9, 60};
  c.heads = 4;
  c.dropout = 0.25f;
  Problem p(c);
  p.forward();
  p.backward();
  const std::vector<double> o = p.o->buffer().values(), dq = p.out.q->buffer().values(),
                            dk = p.out.k->buffer().values(), dv = p.out.v->buffer().values();
  for (attention::Piece *piece : {p.o.get(), p.out.q.get(), p.out.k.get(), p.out.v.get()})
    piece->buffer().fill(Problem::kUntouched);
  nvte_fused_attn_fwd(p.in.q->handle(), p.in.k->handle(), p.in.v->handle(), p.unset, p.unset, p.unset, p.o->handle(),
                      &p.pack, p.cu_q, p.cu_kv, p.starts_q, p.starts_kv, p.unset, p.unset, p.rng, 60, 60, true, false,
                      false, c.scale, c.dropout, c.layout, NVTE_THD, NVTE_QKV_Format_NOT_SET, NVTE_NO_BIAS, c.mask,
                      NVTE_VANILLA_SOFTMAX, -1, -1, true, p.workspace, nullptr);
  EXPECT(p.o->buffer().values() == o);
  nvte_fused_attn_bwd(p.in.q->handle(), p.in.k->handle(), p.in.v->handle(), p.o->handle(), p.d_o->handle(), p.unset,
                      p.unset, &p.pack, p.out.q->handle(), p.out.k->handle(), p.out.v->handle(), p.unset, p.unset,
                      p.cu_q, p.cu_kv, p.starts_q, p.starts_kv, 60, 60, c.scale, c.dropout, c.layout, NVTE_THD,
                      NVTE_THD, c.layout, NVTE_QKV_Format_NOT_SET, NVTE_QKV_Format_NOT_SET, NVTE_NO_BIAS, c.mask,
                      NVTE_VANILLA_SOFTMAX, -1, -1, true, true, false, p.workspace, nullptr);
  EXPECT(p.out.q->buffer().values() == dq);
  EXPECT(p.out.k->buffer().values() == dk);
  EXPECT(p.out.v->buffer().values() == dv);
}

TEST(thd_to_bshd_and_back) {
  Array thd({6, 2, 3}, kNVTEBFloat16), bshd({3, 4, 2, 3}, kNVTEBFloat16), back({6, 2, 3}, kNVTEBFloat16),
      cu({4}, kNVTEInt32);
  thd.normal();
  bshd.fill(7);
  back.fill(7);
  const int starts[] = {0, 4, 4, 5};
  for (size_t i = 0; i < 4; ++i) cu.set(i, starts[i]);
  nvte_convert_thd_to_bshd(thd, cu, bshd, 3, 4, nullptr);
  for (size_t b = 0; b < 3; ++b)
    for (size_t s = 0; s < 4; ++s)
      for (size_t e = 0; e < 6; ++e) {
        const bool valid = static_cast<int>(s) < starts[b + 1] - starts[b];
        const double expected = valid ? thd.get((static_cast<size_t>(starts[b]) + s) * 6 + e) : 7;
        EXPECT_EQUAL(bshd.get((b * 4 + s) * 6 + e), expected);
      }
  nvte_convert_bshd_to_thd(bshd, cu, back, 6, nullptr);
  for (size_t i = 0; i < back.count(); ++i) EXPECT_EQUAL(back.get(i), i < 30 ? thd.get(i) : 7);

  EXPECT_THROWS(nvte_convert_thd_to_bshd(thd, cu, bshd, 2, 4, nullptr), "b and max_seq_len", "3 and 4, got 2 and 4");
  EXPECT_THROWS(nvte_convert_bshd_to_thd(bshd, cu, back, 5, nullptr), "t must be", "6, got 5");
  for (const auto &[at, value] : {std::pair<size_t, int>{0, 1}, {1, 5}, {2, 3}, {3, 7}, {1, -1}}) {
    const double kept = cu.get(at);
    cu.set(at, value);
    EXPECT_THROWS(nvte_convert_thd_to_bshd(thd, cu, bshd, 3, 4, nullptr), "cu_seqlens", "got");
    cu.set(at, kept);
  }
  Array other({6, 2, 4}, kNVTEBFloat16), flat({12, 3}, kNVTEBFloat16);
  EXPECT_THROWS(nvte_convert_thd_to_bshd(other, cu, bshd, 3, 4, nullptr), "equal dtype, heads and head dimension",
                "(6, 2, 4)");
  EXPECT_THROWS(nvte_convert_thd_to_bshd(flat, cu, bshd, 3, 4, nullptr), "\"tensor\" must have shape [t, h, d]");
}

TEST(seed_and_offset) {
  int64_t state[2] = {}, seed = 11, offset = 32;
  const check::Known known_state(state), known_seed(seed), known_offset(offset);
  nvte_extract_seed_and_offset(state, 0, nullptr, 5, nullptr, 6, 7, nullptr);
  EXPECT_EQUAL(state[0], 5);
  EXPECT_EQUAL(state[1], 6);
  nvte_extract_seed_and_offset(state, 1, &seed, 5, &offset, 6, 7, nullptr);
  EXPECT_EQUAL(state[0], 11);
  EXPECT_EQUAL(state[1], 39);
  seed = -2; /* what lies there now counts, and offsets are signed */
  offset = -5;
  nvte_extract_seed_and_offset(state, 1, &seed, 5, &offset, 6, 0xffffffffu, nullptr);
  EXPECT_EQUAL(state[0], -2);
  EXPECT_EQUAL(state[1], 0xffffffffLL - 5);
  EXPECT_THROWS(nvte_extract_seed_and_offset(nullptr, 0, nullptr, 5, nullptr, 6, 7, nullptr), "rng_state_ptr");
  EXPECT_THROWS(nvte_extract_seed_and_offset(state, 1, nullptr, 5, &offset, 6, 7, nullptr), "seed_ptr");
  EXPECT_THROWS(nvte_extract_seed_and_offset(state, 1, &seed, 5, nullptr, 6, 7, nullptr), "offset_ptr");
}

TEST(offsets_of_a_thread) {
  int64_t state[2] = {}, seed = -7;
  const check::Known known_state(state), known_seed(seed);
  const auto populate = [&](NVTE_Fused_Attn_Backend backend) {
    nvte_populate_rng_state_async(state, &seed, 100, 129, backend, nullptr);
    return state[1];
  };
  const int64_t first = populate(NVTE_F16_arbitrary_seqlen);
  EXPECT_EQUAL(state[0], -7);
  EXPECT_EQUAL(populate(NVTE_FP8), first + 16);
  seed = 5;
  EXPECT_EQUAL(populate(NVTE_F16_arbitrary_seqlen), first + 16 + (100 * 129 + 127) / 128);
  EXPECT_EQUAL(state[0], 5);
  EXPECT_THROWS(nvte_populate_rng_state_async(nullptr, &seed, 1, 1, NVTE_FP8, nullptr), "rng_state_dst");
  EXPECT_THROWS(nvte_populate_rng_state_async(state, nullptr, 1, 1, NVTE_FP8, nullptr), "seed");
}
