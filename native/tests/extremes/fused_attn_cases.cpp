/* Fused attention, through the guard: dense tokens, two sequences, a causal mask. */
#include "cases.h"

namespace extremes {

namespace {

constexpr size_t kBatch = 2, kLength = 8, kHeads = 2, kColumns = 16;

NVTETensor tokens(Fixture &f) { return f.f32({kBatch, kLength, kHeads, kColumns}); }
NVTETensor starts(Fixture &f) { return f.int32s({0, 8, 16}); }

/* What forward and backward share. */
struct Attention {
  explicit Attention(Fixture &f)
      : q(tokens(f)), k(tokens(f)), v(tokens(f)), o(tokens(f)), d_o(tokens(f)), absent(f.unset()), pack(f.pack()) {}

  int forward(Fixture &f, NVTETensor workspace) const {
    return te_fused_attn_fwd(q, k, v, absent, absent, absent, o, pack, starts(f), starts(f), starts(f), starts(f), absent,
                             absent, f.int64s({1, 2}), kLength, kLength, true, false, false, 0.5f, 0.1f,
                             NVTE_BSHD_BSHD_BSHD, NVTE_BSHD, NVTE_QKV_Format_NOT_SET, NVTE_NO_BIAS, NVTE_CAUSAL_MASK,
                             NVTE_VANILLA_SOFTMAX, -1, 0, false, workspace, nullptr);
  }

  /* The workspace, with the auxiliary pack made and filled on the way. */
  NVTETensor prepare(Fixture &f) {
    NVTETensor workspace = f.workspace([&](NVTETensor query) { return forward(f, query); });
    f.fill(pack);
    return workspace;
  }

  NVTETensor q, k, v, o, d_o, absent;
  NVTETensorPack *pack;
};

struct Gradients {
  explicit Gradients(Fixture &f) : attention(f), dq(tokens(f)), dk(tokens(f)), dv(tokens(f)) {
    attention.forward(f, attention.prepare(f));
  }

  int backward(Fixture &f, NVTETensor workspace) const {
    const NVTETensor absent = attention.absent;
    return te_fused_attn_bwd(attention.q, attention.k, attention.v, attention.o, attention.d_o, absent, absent,
                             attention.pack, dq, dk, dv, absent, absent, starts(f), starts(f), starts(f), starts(f),
                             kLength, kLength, 0.5f, 0.1f, NVTE_BSHD_BSHD_BSHD, NVTE_BSHD, NVTE_BSHD,
                             NVTE_BSHD_BSHD_BSHD, NVTE_QKV_Format_NOT_SET, NVTE_QKV_Format_NOT_SET, NVTE_NO_BIAS,
                             NVTE_CAUSAL_MASK, NVTE_VANILLA_SOFTMAX, -1, 0, false, true, false, workspace, nullptr);
  }

  Attention attention;
  NVTETensor dq, dk, dv;
};

template <class Params, class Id, class Value>
void set(int (*setter)(Params, Id, const void *, size_t), Params params, Id id, const Value &value) {
  setter(params, id, &value, sizeof(value));
}

NVTEFusedAttnFwdParams forward_params(Fixture &f) {
  Attention attention(f);
  NVTETensor workspace = attention.prepare(f);
  NVTEFusedAttnFwdParams params = f.fused_attn_fwd_params();
  const auto give = [&](NVTEFusedAttnFwdParamsAttribute id, const auto &value) {
    set(te_set_fused_attn_fwd_params_attribute, params, id, value);
  };
  give(kNVTEFusedAttnFwdParamsQ, attention.q);
  give(kNVTEFusedAttnFwdParamsK, attention.k);
  give(kNVTEFusedAttnFwdParamsV, attention.v);
  give(kNVTEFusedAttnFwdParamsO, attention.o);
  for (const auto id : {kNVTEFusedAttnFwdParamsBias, kNVTEFusedAttnFwdParamsS, kNVTEFusedAttnFwdParamsSoftmaxOffset,
                        kNVTEFusedAttnFwdParamsPageTableK, kNVTEFusedAttnFwdParamsPageTableV})
    give(id, attention.absent);
  for (const auto id : {kNVTEFusedAttnFwdParamsCuSeqlensQ, kNVTEFusedAttnFwdParamsCuSeqlensKV,
                        kNVTEFusedAttnFwdParamsCuSeqlensQPadded, kNVTEFusedAttnFwdParamsCuSeqlensKVPadded})
    give(id, starts(f));
  give(kNVTEFusedAttnFwdParamsRngState, f.int64s({1, 2}));
  give(kNVTEFusedAttnFwdParamsAuxCtxTensors, attention.pack);
  give(kNVTEFusedAttnFwdParamsWorkspace, workspace);
  give(kNVTEFusedAttnFwdParamsMaxSeqlenQ, kLength);
  give(kNVTEFusedAttnFwdParamsMaxSeqlenKV, kLength);
  give(kNVTEFusedAttnFwdParamsIsTraining, uint8_t{1});
  give(kNVTEFusedAttnFwdParamsAttnScale, 0.5f);
  give(kNVTEFusedAttnFwdParamsDropout, 0.1f);
  give(kNVTEFusedAttnFwdParamsQKVLayout, NVTE_BSHD_BSHD_BSHD);
  give(kNVTEFusedAttnFwdParamsOFormat, NVTE_BSHD);
  give(kNVTEFusedAttnFwdParamsAttnMaskType, NVTE_CAUSAL_MASK);
  give(kNVTEFusedAttnFwdParamsWindowSizeLeft, int64_t{-1});
  give(kNVTEFusedAttnFwdParamsWindowSizeRight, int64_t{0});
  return params;
}

NVTEFusedAttnBwdParams backward_params(Fixture &f) {
  const Gradients gradients(f);
  const Attention &attention = gradients.attention;
  NVTEFusedAttnBwdParams params = f.fused_attn_bwd_params();
  const auto give = [&](NVTEFusedAttnBwdParamsAttribute id, const auto &value) {
    set(te_set_fused_attn_bwd_params_attribute, params, id, value);
  };
  give(kNVTEFusedAttnBwdParamsQ, attention.q);
  give(kNVTEFusedAttnBwdParamsK, attention.k);
  give(kNVTEFusedAttnBwdParamsV, attention.v);
  give(kNVTEFusedAttnBwdParamsO, attention.o);
  give(kNVTEFusedAttnBwdParamsDO, attention.d_o);
  give(kNVTEFusedAttnBwdParamsDQ, gradients.dq);
  give(kNVTEFusedAttnBwdParamsDK, gradients.dk);
  give(kNVTEFusedAttnBwdParamsDV, gradients.dv);
  for (const auto id : {kNVTEFusedAttnBwdParamsS, kNVTEFusedAttnBwdParamsDP, kNVTEFusedAttnBwdParamsDBias,
                        kNVTEFusedAttnBwdParamsDSoftmaxOffset})
    give(id, attention.absent);
  for (const auto id : {kNVTEFusedAttnBwdParamsCuSeqlensQ, kNVTEFusedAttnBwdParamsCuSeqlensKV,
                        kNVTEFusedAttnBwdParamsCuSeqlensQPadded, kNVTEFusedAttnBwdParamsCuSeqlensKVPadded})
    give(id, starts(f));
  give(kNVTEFusedAttnBwdParamsAuxCtxTensors, attention.pack);
  give(kNVTEFusedAttnBwdParamsWorkspace, f.workspace([&](NVTETensor query) { return gradients.backward(f, query); }));
  give(kNVTEFusedAttnBwdParamsMaxSeqlenQ, kLength);
  give(kNVTEFusedAttnBwdParamsMaxSeqlenKV, kLength);
  give(kNVTEFusedAttnBwdParamsAttnScale, 0.5f);
  give(kNVTEFusedAttnBwdParamsDropout, 0.1f);
  for (const auto id : {kNVTEFusedAttnBwdParamsQKVLayout, kNVTEFusedAttnBwdParamsDQKVLayout}) give(id, NVTE_BSHD_BSHD_BSHD);
  for (const auto id : {kNVTEFusedAttnBwdParamsOFormat, kNVTEFusedAttnBwdParamsDOFormat}) give(id, NVTE_BSHD);
  give(kNVTEFusedAttnBwdParamsAttnMaskType, NVTE_CAUSAL_MASK);
  give(kNVTEFusedAttnBwdParamsWindowSizeLeft, int64_t{-1});
  give(kNVTEFusedAttnBwdParamsWindowSizeRight, int64_t{0});
  return params;
}

NVTEFusedAttnConfig config(Fixture &f) {
  NVTEFusedAttnConfig config = f.fused_attn_config();
  const auto give = [&](NVTEFusedAttnConfigAttribute id, const auto &value) {
    set(te_set_fused_attn_config_attribute, config, id, value);
  };
  for (const auto id : {kNVTEFusedAttnConfigQKVDtype, kNVTEFusedAttnConfigODtype, kNVTEFusedAttnConfigDODtype,
                        kNVTEFusedAttnConfigDQKVDtype})
    give(id, kNVTEBFloat16);
  for (const auto id : {kNVTEFusedAttnConfigQKVLayout, kNVTEFusedAttnConfigDQKVLayout}) give(id, NVTE_BSHD_BSHD_BSHD);
  for (const auto id : {kNVTEFusedAttnConfigOFormat, kNVTEFusedAttnConfigDOFormat}) give(id, NVTE_BSHD);
  for (const auto id : {kNVTEFusedAttnConfigNumAttnHeads, kNVTEFusedAttnConfigNumGQAGroups}) give(id, kHeads);
  for (const auto id : {kNVTEFusedAttnConfigHeadDimQK, kNVTEFusedAttnConfigHeadDimV}) give(id, kColumns);
  for (const auto id : {kNVTEFusedAttnConfigMaxSeqlenQ, kNVTEFusedAttnConfigMaxSeqlenKV}) give(id, kLength);
  give(kNVTEFusedAttnConfigAttnMaskType, NVTE_CAUSAL_MASK);
  return config;
}

/* Argument lists that are made in an order, so that the pack is filled before the call. */
template <class Types>
auto forward_arguments(Fixture &f, Types *types) {
  Attention a(f);
  NVTETensor workspace = a.prepare(f);
  return convert(types, a.q, a.k, a.v, a.absent, a.absent, a.absent, a.o, a.pack, starts(f), starts(f), starts(f), starts(f),
                 a.absent, a.absent, f.int64s({1, 2}), kLength, kLength, true, false, false, 0.5f, 0.1f,
                 NVTE_BSHD_BSHD_BSHD, NVTE_BSHD, NVTE_QKV_Format_NOT_SET, NVTE_NO_BIAS, NVTE_CAUSAL_MASK,
                 NVTE_VANILLA_SOFTMAX, -1, 0, false, workspace, f.stream());
}

template <class Types>
auto backward_arguments(Fixture &f, Types *types) {
  const Gradients g(f);
  const Attention &a = g.attention;
  NVTETensor workspace = f.workspace([&](NVTETensor query) { return g.backward(f, query); });
  return convert(types, a.q, a.k, a.v, a.o, a.d_o, a.absent, a.absent, a.pack, g.dq, g.dk, g.dv, a.absent, a.absent,
                 starts(f), starts(f), starts(f), starts(f), kLength, kLength, 0.5f, 0.1f, NVTE_BSHD_BSHD_BSHD, NVTE_BSHD,
                 NVTE_BSHD, NVTE_BSHD_BSHD_BSHD, NVTE_QKV_Format_NOT_SET, NVTE_QKV_Format_NOT_SET, NVTE_NO_BIAS,
                 NVTE_CAUSAL_MASK, NVTE_VANILLA_SOFTMAX, -1, 0, false, true, false, workspace, f.stream());
}

}  // namespace

std::vector<Case> fused_attn_cases() {
  return {
      CASE(te_get_qkv_layout_group, NVTE_BSHD_BSHD_BSHD, f.out<NVTE_QKV_Layout_Group>()),
      CASE(te_get_qkv_format, NVTE_BSHD_BSHD_BSHD, f.out<NVTE_QKV_Format>()),
      CASE(te_get_q_format, NVTE_BSHD_BSHD_BSHD, f.out<NVTE_QKV_Format>()),
      CASE(te_get_kv_format, NVTE_BSHD_BSHD_BSHD, f.out<NVTE_QKV_Format>()),
      CASE(te_get_fused_attn_backend_v2, config(f), f.out<const char *>(), f.out<NVTE_Fused_Attn_Backend>()),
      CASE(te_get_fused_attn_backend, true, kNVTEBFloat16, kNVTEBFloat16, NVTE_BSHD_BSHD_BSHD, NVTE_NO_BIAS,
           NVTE_CAUSAL_MASK, NVTE_VANILLA_SOFTMAX, 0.1f, 2, 2, 8, 8, 16, 16, -1, 0, false, false, true,
           f.out<NVTE_Fused_Attn_Backend>()),
      CASE(te_fused_attn_fwd_v2, forward_params(f)),
      CASE(te_fused_attn_bwd_v2, backward_params(f)),
      case_of("te_fused_attn_fwd", &te_fused_attn_fwd,
              [](Fixture &f, auto *types) { return forward_arguments(f, types); }),
      case_of("te_fused_attn_bwd", &te_fused_attn_bwd,
              [](Fixture &f, auto *types) { return backward_arguments(f, types); }),
  };
}

}  // namespace extremes
