/* The operations of ops.h. */
#include "cases.h"
#include "elementwise.h"

namespace extremes {

namespace {

constexpr int kF32 = kNVTEFloat32, kBf16 = kNVTEBFloat16;
constexpr int64_t kRows = 4, kColumns = 16, kCount = kRows * kColumns;
constexpr int64_t kGatedSide = 16; /* no row or column less fits */
constexpr int64_t kMany = 200000; /* so many that several threads work */

void *many(Fixture &f) { return f.device(kMany * 2, 0x3c); }
void *matrix(Fixture &f) { return f.device(kCount * 2, 0x3c); }
float *floats(Fixture &f, size_t count) { return static_cast<float *>(f.device(count * 4, 0x3c)); }
/* BF16 for one or both halves of a gated activation's input. */
void *gated(Fixture &f, int halves) { return f.device(static_cast<size_t>(kGatedSide * kGatedSide * 2 * halves), 0x3c); }
int32_t *index(Fixture &f) { return f.device_values<int32_t>({0, 3, 1, 2}); }

/* All those that tests/ops/elementwise.h has a row of. */
std::vector<Case> rows_of_elementwise() {
  std::vector<Case> cases;
  for (const chagres::tests::Elementwise &operation : chagres::tests::elementwise_operations()) {
    const char *const name = operation.function;
    if (operation.inputs.size() == 1)
      cases.push_back(CASE_OF(name, symbol<chagres::tests::Unary>(name), many(f), many(f), kMany, kBf16, nullptr));
    else if (operation.inputs.size() == 2)
      cases.push_back(
          CASE_OF(name, symbol<chagres::tests::Binary>(name), many(f), many(f), many(f), kMany, kBf16, nullptr));
    else
      cases.push_back(CASE_OF(name, symbol<chagres::tests::Ternary>(name), many(f), many(f), many(f), many(f), kMany, kBf16,
                              nullptr));
    const char *const amax = operation.amax;
    if (amax != nullptr && operation.inputs.size() == 1)
      cases.push_back(
          CASE_OF(amax, symbol<chagres::tests::UnaryAmax>(amax), many(f), many(f), floats(f, 1), kMany, kBf16, nullptr));
    else if (amax != nullptr)
      cases.push_back(CASE_OF(amax, symbol<chagres::tests::BinaryAmax>(amax), many(f), many(f), many(f), floats(f, 1), kMany,
                              kBf16, nullptr));
  }
  return cases;
}

/* A table on the device. */
const OpsAdamRange *adam_ranges(Fixture &f) {
  const auto range = [&](int64_t first_block) {
    return OpsAdamRange{floats(f, kCount), matrix(f), matrix(f), matrix(f), floats(f, kCount), floats(f, 1), kCount, first_block,
                        0.01f};
  };
  return f.device_values<OpsAdamRange>({range(0), range(1)});
}

const OpsStepRange *step_ranges(Fixture &f) {
  const auto range = [&](int64_t first_block) {
    return OpsStepRange{floats(f, kCount), matrix(f), floats(f, kCount), floats(f, kCount), floats(f, kCount), floats(f, kCount),
                        floats(f, kCount), floats(f, 1), floats(f, 1), kCount, first_block, 0.01f};
  };
  return f.device_values<OpsStepRange>({range(0), range(1)});
}

const OpsAdafactorRange *adafactor_ranges(Fixture &f) {
  const auto range = [&] {
    return OpsAdafactorRange{floats(f, kCount), matrix(f), floats(f, kCount), floats(f, kCount), index(f), nullptr, floats(f, kCount),
                             floats(f, kCount), floats(f, kCount), floats(f, kCount), floats(f, kCount), floats(f, kCount), floats(f, 3),
                             floats(f, 1), 0, kRows * kColumns, kColumns, kRows, kColumns, 0.01f};
  };
  return f.device_values<OpsAdafactorRange>({range(), range()});
}

std::vector<Case> conversions() {
  return {
      CASE(ops_cast, f.device(kCount * 4), kF32, matrix(f), kBf16, kCount, nullptr),
      CASE(ops_accumulate, matrix(f), floats(f, kCount), 0.5f, kCount, kBf16, nullptr),
      CASE(ops_dropout_add, matrix(f), matrix(f), matrix(f), static_cast<uint8_t *>(f.device(kCount / 8)),
           f.device_values<int64_t>({1, 2}), 0.5f, kCount, kBf16, nullptr),
      CASE(ops_dropout_backward, matrix(f), static_cast<uint8_t *>(f.device(kCount / 8)), matrix(f), 0.5f, kCount, kBf16,
           nullptr),
      CASE(ops_clip_scale, floats(f, 1), 1.0f, floats(f, 1), nullptr),
      CASE(ops_adam, floats(f, kCount), matrix(f), matrix(f), matrix(f), floats(f, kCount), floats(f, 1),
           f.device_values<int32_t>({1}), floats(f, 1), f.device_values<int32_t>({0}), 0.9f, 0.99f, 1e-8f, 0.01f, 1, 1,
           kCount, kF32, kBf16, kBf16, OPS_MASTER_FLOAT32, nullptr),
      CASE(ops_adam_ranges, adam_ranges(f), 2, 2, f.device_values<int32_t>({1}), floats(f, 1), f.device_values<int32_t>({0}),
           0.9f, 0.99f, 1e-8f, 1, 1, kBf16, kBf16, kBf16, OPS_MASTER_FLOAT32, nullptr),
      CASE(ops_optimizer_step, step_ranges(f), 2, 2, f.device_values<int32_t>({2}), floats(f, 1), f.device_values<int32_t>({0}),
           OPS_METHOD_LION, 0.9f, 0.99f, 1e-8f, 1, 1, kF32, kBf16, kF32, OPS_MASTER_FLOAT32, nullptr),
      CASE(ops_average_share, floats(f, 1), f.device_values<int32_t>({2}), f.device_values<int32_t>({0}), floats(f, 2), floats(f, 1),
           1.0f, 2.0f, 1, nullptr),
      CASE(ops_adafactor, adafactor_ranges(f), 2, f.device_values<int32_t>({2}), floats(f, 1), f.device_values<int32_t>({0}),
           OPS_ADAFACTOR_STEP, 0.8f, 1e-30f, 1e-3f, 1.0f, 0.9f, OPS_RATE_CAPPED, 1, kBf16, OPS_MASTER_FLOAT32, nullptr),
      CASE(ops_loss_scale_clip, floats(f, 1), floats(f, 1), 1.0f, floats(f, 1), f.device_values<int32_t>({0}), nullptr),
      CASE(ops_loss_scale_update, f.device_values<int32_t>({0}), floats(f, 1), f.device_values<int32_t>({3, 4}),
           f.device_values<int32_t>({5}), 2.0f, 0.5f, 2000, nullptr),
      CASE(ops_loss_scale_restore, f.device_values<int32_t>({1}), floats(f, kCount), floats(f, kCount), kCount, nullptr),
      CASE(ops_quantization_statistics, matrix(f), static_cast<uint8_t *>(f.device(kCount)), floats(f, 1), floats(f, 6),
           kRows, kColumns, kRows, 0, kBf16, 7, nullptr),
      CASE(ops_gated_gradient, gated(f, 1), gated(f, 2), gated(f, 2), gated(f, 2), floats(f, 1), floats(f, 1), floats(f, 1),
           kGatedSide, kGatedSide, OPS_GEGLU, 7.0f, 1.702f, 1.0f, kBf16, 8, nullptr),
      CASE(ops_dequantize_blocks, static_cast<uint8_t *>(f.device(kCount)), floats(f, kCount), matrix(f), kRows, kColumns,
           kRows, 2, kBf16, 7, nullptr),
  };
}

std::vector<Case> rows() {
  return {
      CASE(ops_embedding_forward, matrix(f), index(f), matrix(f), 0, kRows, kRows, kColumns, kBf16, nullptr),
      CASE(ops_embedding_backward, matrix(f), index(f), floats(f, kCount), 0.5f, 0, kRows, kRows, kColumns, kBf16, nullptr),
      CASE(ops_gather_rows, matrix(f), index(f), matrix(f), kRows, kColumns, kRows, kBf16, nullptr),
      CASE(ops_scatter_rows, matrix(f), index(f), matrix(f), kRows, kColumns, kRows, kBf16, nullptr),
      CASE(ops_bias_add, matrix(f), matrix(f), matrix(f), matrix(f), kRows, kColumns, kBf16, nullptr),
      CASE(ops_row_sum, matrix(f), floats(f, kColumns), 0.5f, kRows, kColumns, kBf16, nullptr),
  };
}

const OpsResidualNorm *norm(Fixture &f) {
  auto *n = f.out<OpsResidualNorm>();
  *n = {};
  n->x = matrix(f);
  n->bias = matrix(f);
  n->residual = matrix(f);
  n->gamma = f.device(2 * kColumns);
  n->beta = f.device(2 * kColumns);
  n->h = matrix(f);
  n->y = matrix(f);
  n->mean = floats(f, kRows);
  n->inverse = floats(f, kRows);
  n->y8 = f.device(kCount);
  n->y8_transposed = f.device(16 * kColumns);
  n->scale = floats(f, 1);
  n->amax = floats(f, 1);
  n->scale_inverse = floats(f, 1);
  n->dy = matrix(f);
  n->dresidual = matrix(f);
  n->dh = matrix(f);
  n->dgamma = floats(f, kColumns);
  n->dbeta = floats(f, kColumns);
  n->rows = kRows;
  n->columns = kColumns;
  n->filled_rows = 16;
  n->epsilon = 1e-5f;
  n->accumulate = 0.5f;
  n->kind = OPS_LAYER_NORM;
  n->center = 1;
  n->dtype = kBf16;
  return n;
}

const OpsMatrixProduct *product(Fixture &f, int dtype, int epilogue) {
  constexpr int64_t kSize = 16, kBytes = kSize * kSize * 4;
  auto *p = f.out<OpsMatrixProduct>();
  *p = {};
  p->a = f.device(kBytes, 0x38);
  p->b = f.device(kBytes, 0x38);
  p->d = f.device(kBytes);
  p->bias = f.device(kSize * 4);
  p->pre_gelu = f.device(kBytes);
  p->a_scale_inverse = floats(f, 16);
  p->b_scale_inverse = floats(f, 16);
  p->workspace = f.device(1024);
  p->workspace_bytes = 1024;
  p->m = p->n = p->k = kSize;
  p->trans_a = epilogue == OPS_EPILOGUE_BIAS_GRADIENT;
  p->trans_b = dtype == kNVTEFloat8E4M3;
  p->a_dtype = p->b_dtype = dtype;
  p->d_dtype = kBf16;
  p->epilogue = epilogue;
  p->multiprocessors = 4;
  p->plan = OPS_PLAN_MEASURED;
  return p;
}

std::vector<Case> products() {
  return {
      CASE(ops_matrix_product, product(f, kBf16, OPS_EPILOGUE_BIAS_GELU), nullptr),
      CASE(ops_matrix_product, product(f, kBf16, OPS_EPILOGUE_BIAS_GRADIENT), nullptr),
      CASE(ops_matrix_product, product(f, kNVTEFloat8E4M3, OPS_EPILOGUE_BIAS), nullptr),
  };
}

/* Two sequences, in all 6 tokens, of two heads of 8 columns. */
const OpsRotary *rotary(Fixture &f, int layout) {
  auto *r = f.out<OpsRotary>();
  r->cu_seqlens = layout == OPS_THD ? f.device_values<int32_t>({0, 2, 6}) : nullptr;
  r->start_positions = f.device_values<int32_t>({1, 3});
  r->angles = floats(f, 8 * 6);
  r->tokens = 6;
  r->extent = layout == OPS_BSHD ? 3 : 2;
  r->positions = 8;
  r->heads = r->kv_heads = 2;
  r->head_dim = 8;
  r->rotated_dim = 6;
  r->layout = layout;
  r->direction = layout == OPS_THD ? 1 : -1;
  r->dtype = kBf16;
  return r;
}

std::vector<Case> layers() {
  return {
      CASE(ops_attention_merge, matrix(f), floats(f, kRows), floats(f, kRows * kColumns), floats(f, kRows), kRows,
           kColumns, 0, kBf16, nullptr),
      CASE(ops_residual_norm_forward, norm(f), nullptr),
      CASE(ops_residual_norm_backward, norm(f), nullptr),
      CASE(ops_rotary_packed, f.device(6 * 3 * 2 * 8 * 2), rotary(f, OPS_THD), nullptr),
      CASE(ops_rotary_packed, f.device(6 * 3 * 2 * 8 * 2), rotary(f, OPS_SBHD), nullptr),
      CASE(ops_rotary_split, f.device(6 * 3 * 2 * 8 * 2), f.device(6 * 2 * 8 * 2), f.device(6 * 2 * 8 * 2),
           f.device(6 * 2 * 8 * 2), rotary(f, OPS_THD), nullptr),
      CASE(ops_rotary_join, f.device(6 * 2 * 8 * 2), f.device(6 * 2 * 8 * 2), f.device(6 * 2 * 8 * 2),
           f.device(6 * 3 * 2 * 8 * 2), rotary(f, OPS_BSHD), nullptr),
  };
}

std::vector<Case> losses() {
  return {
      CASE(ops_cross_entropy_forward, matrix(f), index(f), f.device_values<int32_t>({9}), 0.1f, floats(f, kRows),
           floats(f, kRows), floats(f, 1), f.device_values<int32_t>({0}), kRows, kColumns - 3, kColumns, kBf16, nullptr),
      CASE(ops_cross_entropy_backward, matrix(f), index(f), floats(f, kRows), f.device_values<int32_t>({4}), 1.0f,
           floats(f, 1), floats(f, kRows), 0.1f, matrix(f), kRows, kColumns - 3, kColumns, 0, kColumns - 3, kBf16,
           nullptr),
      CASE(ops_vocabulary_cross_entropy_maximum, matrix(f), floats(f, kRows), kRows, kColumns - 3, kColumns, kBf16,
           nullptr),
      CASE(ops_vocabulary_cross_entropy_sums, matrix(f), index(f), floats(f, kRows), 0.1f, floats(f, 3 * kRows), kRows,
           kColumns - 3, kColumns, 0, kBf16, nullptr),
      CASE(ops_vocabulary_cross_entropy_loss, floats(f, kRows), floats(f, 3 * kRows), index(f),
           f.device_values<int32_t>({9}), 0.1f, floats(f, kRows), floats(f, kRows), floats(f, 1),
           f.device_values<int32_t>({0}), kRows, kColumns - 3, nullptr),
  };
}

std::vector<Case> drop_path() {
  return {
      CASE(ops_drop_path_factors, f.device_values<int64_t>({1, 2}), 0.5f, floats(f, 2), 2, nullptr),
      CASE(ops_scale_sequences_add, matrix(f), matrix(f), matrix(f), floats(f, 2),
           f.device_values<int32_t>({0, 2, static_cast<int32_t>(kRows)}), OPS_THD, 0, kRows, kRows, 2, kColumns, kBf16,
           nullptr),
      CASE(ops_token_dropout_factors, index(f), f.device_values<int32_t>({0, 1, 3}), f.device_values<int32_t>({0, 2, 4}),
           floats(f, kRows), 0.88f, 3, OPS_THD, kRows, 2, nullptr),
      CASE(ops_sequence_pool_forward, matrix(f), f.device_values<int32_t>({0, 1, 3}), f.device_values<int32_t>({0, 2, 4}),
           matrix(f), static_cast<int32_t *>(f.device(2 * kColumns * sizeof(int32_t))), OPS_POOL_MAX, OPS_THD, kRows, 2,
           kColumns, kBf16, nullptr),
      CASE(ops_sequence_pool_backward, matrix(f), f.device_values<int32_t>({0, 1, 3}), f.device_values<int32_t>({0, 2, 4}),
           static_cast<int32_t *>(f.device(2 * kColumns * sizeof(int32_t))), matrix(f), OPS_POOL_MAX, OPS_THD, kRows, 2,
           kColumns, kBf16, nullptr),
  };
}

/* Ends a range that it begins itself: with none open, a refusal would be right. */
int range_pop() {
  const int status = ops_range_push("range");
  return status == OPS_SUCCESS ? ops_range_pop() : status;
}

/* With no recording under way, a refusal would be right. */
int activity_end(int64_t *count, int64_t *dropped) {
  int64_t now = 0;
  ops_activity_begin("", &now);
  const int status = ops_activity_end(count, dropped);
  int64_t unread = 0;
  if (status != OPS_SUCCESS) ops_activity_end(&unread, &unread);
  return status;
}

int activity_begin(const char *cupti, int64_t *now) {
  const int status = ops_activity_begin(cupti, now);
  int64_t unread = 0;
  if (status == OPS_SUCCESS) ops_activity_end(&unread, &unread);
  return status;
}

std::vector<Case> library() {
  return {
      CASE(ops_open, "cudart", "nvrtc", "include", "cache"),
      CASE(ops_last_error),
      CASE(ops_compile_all, 9, 0, f.out<int>()),
      CASE(ops_range_push, "range"),
      CASE_OF("ops_range_pop", &range_pop),
      CASE_OF("ops_activity_begin", &activity_begin, "", f.out<int64_t>()),
      CASE_OF("ops_activity_end", &activity_end, f.out<int64_t>(), f.out<int64_t>()),
      CASE(ops_activity_read, f.out<OpsActivity>(), 0),
  };
}

/* Two packed sequences of 2 and 4 tokens, two heads of 16 columns. */
const OpsAttention *attention(Fixture &f) {
  constexpr int64_t kTokens = 6, kHeads = 2, kDim = 16, kWidth = kHeads * kDim;
  auto *a = f.out<OpsAttention>();
  const auto tokens = [&] { return f.device(kTokens * kWidth * 2); };
  a->q = tokens();
  a->k = tokens();
  a->v = tokens();
  a->o = tokens();
  a->d_o = tokens();
  a->dq = tokens();
  a->dk = tokens();
  a->dv = tokens();
  a->log_sum_exp = floats(f, kTokens * kHeads);
  a->delta = floats(f, kTokens * kHeads);
  a->cu_seqlens_q = f.device_values<int32_t>({0, 2, 6});
  a->cu_seqlens_kv = f.device_values<int32_t>({0, 2, 6});
  a->rng_state = f.device_values<int64_t>({1, 2});
  for (OpsStrides *each : {&a->query, &a->key, &a->value, &a->output, &a->d_query, &a->d_key, &a->d_value})
    *each = {0, kWidth, kDim};
  a->statistics = {0, kHeads, 1};
  a->sequences = 2;
  a->length = a->kv_length = 4;
  a->heads = a->kv_heads = kHeads;
  a->head_dim = a->value_dim = kDim;
  a->window_left = -1;
  a->window_right = 0;
  a->scale = 0.25f;
  a->dropout = 0.1f;
  a->dtype = kBf16;
  a->packed = a->kv_packed = 1;
  a->cu_seqlens_q_padded = f.device_values<int32_t>({0, 2, 6});
  a->cu_seqlens_kv_padded = f.device_values<int32_t>({0, 2, 6});
  OpsScores &scores = a->scores;
  scores.alibi_slopes = floats(f, kHeads);
  scores.alibi_sequences = 1;
  scores.bias_shape = scores.mask_shape = {1, kHeads, 4, 4};
  scores.bias = f.device(kHeads * 4 * 4 * 2);
  scores.d_bias = f.device(kHeads * 4 * 4 * 2);
  scores.mask = static_cast<uint8_t *>(f.device(kHeads * 4 * 4));
  scores.sinks = floats(f, kHeads);
  scores.d_sinks = floats(f, kHeads);
  scores.softcap = 3;
  scores.softmax_type = OPS_SOFTMAX_LEARNABLE;
  a->place.sequences = f.device_values<int32_t>({3, 4});
  a->place.first_queries = f.device_values<int32_t>({5, 0});
  a->place.first_keys = f.device_values<int32_t>({2, 0});
  a->place.heads = 5;
  a->place.first_head = 1;
  return a;
}

void strides(Fields &fields, OpsStrides &value) {
  fields.field(value.sequence);
  fields.field(value.token);
  fields.field(value.head);
}

void scores(Fields &fields, OpsScores &value) {
  fields.field(value.alibi_slopes);
  fields.field(value.bias);
  fields.field(value.d_bias);
  fields.field(value.mask);
  fields.field(value.sinks);
  fields.field(value.d_sinks);
  for (OpsScoreShape *shape : {&value.bias_shape, &value.mask_shape})
    for (int64_t *each : {&shape->sequences, &shape->heads, &shape->queries, &shape->keys}) fields.field(*each);
  fields.field(value.alibi_sequences);
  fields.field(value.softcap);
  fields.field(value.alibi_alignment);
  fields.field(value.softmax_type);
  static_assert(sizeof(OpsScores) == 6 * 8 + 2 * 4 * 8 + 8 + 3 * 4 + 4, "a field without extremes");
}

}  // namespace

/* Of the first range, where it lies. */
bool vary(const OpsAdamRange *&value, int index) {
  if (index == 0) {
    value = nullptr;
    return true;
  }
  auto &r = *const_cast<OpsAdamRange *>(value);
  Fields fields(index - 1);
  fields.field(r.gradient);
  for (void **each : {&r.weight, &r.mean, &r.square, &r.master}) fields.field(*each);
  fields.field(r.rate);
  for (int64_t *each : {&r.count, &r.first_block}) fields.field(*each);
  fields.field(r.weight_decay);
  static_assert(sizeof(OpsAdamRange) == 6 * 8 + 2 * 8 + 4 + 4, "a field without extremes");
  return fields.done();
}

bool vary(const OpsAttention *&value, int index) {
  static OpsAttention a;
  a = *value;
  Fields fields(index - 1);
  fields.field(a.q);
  fields.field(a.k);
  fields.field(a.v);
  fields.field(a.o);
  fields.field(a.log_sum_exp);
  fields.field(a.d_o);
  fields.field(a.dq);
  fields.field(a.dk);
  fields.field(a.dv);
  fields.field(a.delta);
  fields.field(a.cu_seqlens_q);
  fields.field(a.cu_seqlens_kv);
  fields.field(a.rng_state);
  for (OpsStrides *each :
       {&a.query, &a.key, &a.value, &a.output, &a.d_query, &a.d_key, &a.d_value, &a.statistics})
    strides(fields, *each);
  for (int64_t *each : {&a.sequences, &a.length, &a.kv_length, &a.heads, &a.kv_heads, &a.head_dim, &a.value_dim,
                        &a.window_left, &a.window_right})
    fields.field(*each);
  fields.field(a.scale);
  fields.field(a.dropout);
  fields.field(a.alignment);
  fields.field(a.dtype);
  fields.field(a.packed);
  fields.field(a.kv_packed);
  fields.field(a.cu_seqlens_q_padded);
  fields.field(a.cu_seqlens_kv_padded);
  scores(fields, a.scores);
  for (const int32_t **each : {&a.place.sequences, &a.place.first_queries, &a.place.first_keys}) fields.field(*each);
  for (int64_t *each : {&a.place.heads, &a.place.first_head}) fields.field(*each);
  static_assert(sizeof(OpsAttention) == 15 * 8 + 8 * sizeof(OpsStrides) + 9 * 8 + 6 * 4 + sizeof(OpsScores) + 5 * 8,
                "a field without extremes");
  value = index == 0 ? nullptr : &a;
  return index == 0 || fields.done();
}

bool vary(const OpsResidualNorm *&value, int index) {
  static OpsResidualNorm n;
  n = *value;
  Fields fields(index - 1);
  for (const void **each : {&n.x, &n.bias, &n.residual, &n.gamma, &n.beta, &n.dy, &n.dresidual}) fields.field(*each);
  for (void **each : {&n.h, &n.y, &n.y8, &n.y8_transposed, &n.dh}) fields.field(*each);
  for (float **each : {&n.mean, &n.inverse, &n.amax, &n.scale_inverse, &n.dgamma, &n.dbeta}) fields.field(*each);
  fields.field(n.scale);
  for (int64_t *each : {&n.rows, &n.columns, &n.filled_rows}) fields.field(*each);
  fields.field(n.epsilon);
  fields.field(n.accumulate);
  for (int32_t *each : {&n.kind, &n.center, &n.dtype, &n.multiprocessors}) fields.field(*each);
  static_assert(sizeof(OpsResidualNorm) == 19 * 8 + 3 * 8 + 2 * 4 + 4 * 4, "a field without extremes");
  value = index == 0 ? nullptr : &n;
  return index == 0 || fields.done();
}

bool vary(const OpsMatrixProduct *&value, int index) {
  static OpsMatrixProduct p;
  p = *value;
  Fields fields(index - 1);
  for (const void **each : {&p.a, &p.b}) fields.field(*each);
  for (void **each : {&p.d, &p.bias, &p.pre_gelu, &p.workspace}) fields.field(*each);
  for (const float **each : {&p.a_scale_inverse, &p.b_scale_inverse}) fields.field(*each);
  for (int64_t *each : {&p.workspace_bytes, &p.m, &p.n, &p.k}) fields.field(*each);
  fields.field(p.accumulate);
  for (int32_t *each : {&p.trans_a, &p.trans_b, &p.a_dtype, &p.b_dtype, &p.d_dtype, &p.a_scaling, &p.b_scaling,
                        &p.epilogue, &p.accumulator, &p.multiprocessors, &p.plan})
    fields.field(*each);
  static_assert(sizeof(OpsMatrixProduct) == 8 * 8 + 4 * 8 + 4 + 11 * 4, "a field without extremes");
  value = index == 0 ? nullptr : &p;
  return index == 0 || fields.done();
}

bool vary(const OpsRotary *&value, int index) {
  static OpsRotary r;
  r = *value;
  Fields fields(index - 1);
  fields.field(r.cu_seqlens);
  fields.field(r.start_positions);
  fields.field(r.angles);
  for (int64_t *each : {&r.tokens, &r.extent, &r.positions, &r.heads, &r.kv_heads, &r.head_dim, &r.rotated_dim})
    fields.field(*each);
  for (int32_t *each : {&r.layout, &r.pairing, &r.direction, &r.dtype}) fields.field(*each);
  static_assert(sizeof(OpsRotary) == 3 * 8 + 7 * 8 + 4 * 4, "a field without extremes");
  value = index == 0 ? nullptr : &r;
  return index == 0 || fields.done();
}

std::vector<Case> ops_cases() {
  std::vector<Case> all = {
      CASE(ops_attention_forward, attention(f), nullptr),
      CASE(ops_attention_backward, attention(f), nullptr),
  };
  for (const auto &some : {rows_of_elementwise(), conversions(), rows(), products(), layers(), losses(), drop_path(), library()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace extremes
