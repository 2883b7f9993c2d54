/* One attention problem: its tensors, and the calls through nvte_fused_attn_*_v2. */
#ifndef CHAGRES_ATTENTION_CASE_H
#define CHAGRES_ATTENTION_CASE_H

#include "attention_buffers.h"

namespace attention {

struct Triple {
  std::unique_ptr<Piece> q, k, v;
};

class Problem {
 public:
  explicit Problem(const Case &wanted)
      : c(wanted),
        q_side(c.q_lengths, c.gap, !c.padded()),
        kv_side(c.kv_lengths, c.gap, !c.padded()),
        cu_q({c.q_lengths.size() + 1}, kNVTEInt32),
        cu_kv({c.q_lengths.size() + 1}, kNVTEInt32),
        starts_q({c.q_lengths.size() + 1}, kNVTEInt32),
        starts_kv({c.q_lengths.size() + 1}, kNVTEInt32),
        rng({2}, kNVTEInt64),
        sink({1, static_cast<size_t>(c.heads), 1, 1}, kNVTEFloat32),
        dsink({1, static_cast<size_t>(c.heads), 1, 1}, kNVTEFloat32),
        bias(bias_extents(), c.dtype),
        dbias(bias_extents(), c.dtype),
        workspace({1}, kNVTEByte) {
    for (size_t b = 0; b <= c.q_lengths.size(); ++b) {
      cu_q.set(b, q_side.cu[b]);
      cu_kv.set(b, kv_side.cu[b]);
      starts_q.set(b, q_side.starts[b]);
      starts_kv.set(b, kv_side.starts[b]);
    }
    rng.as<int64_t>()[0] = c.seed;
    rng.as<int64_t>()[1] = c.offset;
    if (c.softmax == NVTE_LEARNABLE_SOFTMAX)
      sink.normal();
    else
      sink.fill(0);
    if (c.biased()) bias.normal();
    dbias.fill(kUntouched);
    const std::string letters = split(layout_name(c.layout))[0];
    o_letters = letters == "t3hd" || letters == "th3d" ? "thd"
                : letters[0] == 's'                    ? "sbhd"
                : letters == "bhsd"                    ? "bhsd"
                : letters[0] == 'b'                    ? "bshd"
                                                       : "thd";
    in = make(c.layout);
    out = make(c.gradient_layout == NVTE_QKV_Layout_NOT_SET ? c.layout : c.gradient_layout);
    o = single(o_letters, q_side, c.heads, c.dim_v);
    d_o = single(o_letters, q_side, c.heads, c.dim_v);
    /* What no valid token holds must never be read: NaN there would show. */
    for (Piece *piece : {in.q.get(), in.k.get(), in.v.get(), d_o.get()}) poison(*piece);
    std::normal_distribution<double> normal;
    for (Piece *piece : {in.q.get(), in.k.get(), in.v.get(), d_o.get()})
      piece->each([&](size_t b, int i, int h, int col) { piece->set(b, i, h, col, normal(check::random())); });
    for (Piece *piece : {out.q.get(), out.k.get(), out.v.get(), o.get()}) piece->buffer().fill(kUntouched);
    nvte_tensor_pack_create(&pack);
    pack.size = 0;
  }
  Problem(const Problem &) = delete;
  ~Problem() { nvte_tensor_pack_destroy(&pack); }

  static constexpr double kUntouched = 7;

  bool thd_q() const { return o_letters == "thd"; }

  template <class Params>
  void set_common(Params params, void (*set)(Params, int, const void *, size_t), const int *ids) {
    const NVTETensor handles[] = {in.q->handle(), in.k->handle(), in.v->handle(), cu_q, cu_kv, starts_q, starts_kv};
    int n = 0;
    for (const NVTETensor handle : handles) set(params, ids[n++], &handle, sizeof(handle));
    const int32_t mask = c.mask, softmax = c.softmax, layout = c.layout, bias_type = c.bias;
    set(params, ids[n++], &mask, sizeof(mask));
    set(params, ids[n++], &c.left, sizeof(c.left));
    set(params, ids[n++], &c.right, sizeof(c.right));
    const uint8_t corner = c.bottom_right_diagonal;
    set(params, ids[n++], &corner, sizeof(corner));
    set(params, ids[n++], &softmax, sizeof(softmax));
    set(params, ids[n++], &bias_type, sizeof(bias_type));
    set(params, ids[n++], &c.dropout, sizeof(c.dropout));
    set(params, ids[n++], &c.scale, sizeof(c.scale));
    set(params, ids[n++], &layout, sizeof(layout));
    const int32_t format = format_of(o_letters);
    set(params, ids[n++], &format, sizeof(format));
    const size_t longest_q = static_cast<size_t>(q_side.longest), longest_kv = static_cast<size_t>(kv_side.longest);
    set(params, ids[n++], &longest_q, sizeof(longest_q));
    set(params, ids[n++], &longest_kv, sizeof(longest_kv));
  }

  static void set_fwd(NVTEFusedAttnFwdParams params, int id, const void *value, size_t size) {
    nvte_set_fused_attn_fwd_params_attribute(params, static_cast<NVTEFusedAttnFwdParamsAttribute>(id), value, size);
  }
  static void set_bwd(NVTEFusedAttnBwdParams params, int id, const void *value, size_t size) {
    nvte_set_fused_attn_bwd_params_attribute(params, static_cast<NVTEFusedAttnBwdParamsAttribute>(id), value, size);
  }

  NVTEFusedAttnFwdParams forward_params() {
    static const int ids[] = {kNVTEFusedAttnFwdParamsQ,
                              kNVTEFusedAttnFwdParamsK,
                              kNVTEFusedAttnFwdParamsV,
                              kNVTEFusedAttnFwdParamsCuSeqlensQ,
                              kNVTEFusedAttnFwdParamsCuSeqlensKV,
                              kNVTEFusedAttnFwdParamsCuSeqlensQPadded,
                              kNVTEFusedAttnFwdParamsCuSeqlensKVPadded,
                              kNVTEFusedAttnFwdParamsAttnMaskType,
                              kNVTEFusedAttnFwdParamsWindowSizeLeft,
                              kNVTEFusedAttnFwdParamsWindowSizeRight,
                              kNVTEFusedAttnFwdParamsBottomRightDiagonal,
                              kNVTEFusedAttnFwdParamsSoftmaxType,
                              kNVTEFusedAttnFwdParamsBiasType,
                              kNVTEFusedAttnFwdParamsDropout,
                              kNVTEFusedAttnFwdParamsAttnScale,
                              kNVTEFusedAttnFwdParamsQKVLayout,
                              kNVTEFusedAttnFwdParamsOFormat,
                              kNVTEFusedAttnFwdParamsMaxSeqlenQ,
                              kNVTEFusedAttnFwdParamsMaxSeqlenKV};
    NVTEFusedAttnFwdParams params = nvte_create_fused_attn_fwd_params();
    set_common<NVTEFusedAttnFwdParams>(params, &set_fwd, ids);
    const NVTETensor absent[] = {unset.handle()};
    for (const int id :
         {kNVTEFusedAttnFwdParamsS, kNVTEFusedAttnFwdParamsPageTableK, kNVTEFusedAttnFwdParamsPageTableV})
      set_fwd(params, id, absent, sizeof(absent[0]));
    const NVTETensor bias_handle = c.biased() ? bias.handle() : unset.handle();
    set_fwd(params, kNVTEFusedAttnFwdParamsBias, &bias_handle, sizeof(bias_handle));
    const NVTETensor sink_handle = c.softmax == NVTE_VANILLA_SOFTMAX ? unset.handle() : sink.handle();
    const NVTETensor rng_handle = rng, o_handle = o->handle(), query = query_workspace;
    NVTETensorPack *const aux = &pack;
    const uint8_t training = c.training;
    set_fwd(params, kNVTEFusedAttnFwdParamsSoftmaxOffset, &sink_handle, sizeof(sink_handle));
    set_fwd(params, kNVTEFusedAttnFwdParamsO, &o_handle, sizeof(o_handle));
    set_fwd(params, kNVTEFusedAttnFwdParamsAuxCtxTensors, &aux, sizeof(aux));
    set_fwd(params, kNVTEFusedAttnFwdParamsRngState, &rng_handle, sizeof(rng_handle));
    set_fwd(params, kNVTEFusedAttnFwdParamsIsTraining, &training, sizeof(training));
    set_fwd(params, kNVTEFusedAttnFwdParamsWorkspace, &query, sizeof(query));
    return params;
  }

  NVTEFusedAttnBwdParams backward_params() {
    static const int ids[] = {kNVTEFusedAttnBwdParamsQ,
                              kNVTEFusedAttnBwdParamsK,
                              kNVTEFusedAttnBwdParamsV,
                              kNVTEFusedAttnBwdParamsCuSeqlensQ,
                              kNVTEFusedAttnBwdParamsCuSeqlensKV,
                              kNVTEFusedAttnBwdParamsCuSeqlensQPadded,
                              kNVTEFusedAttnBwdParamsCuSeqlensKVPadded,
                              kNVTEFusedAttnBwdParamsAttnMaskType,
                              kNVTEFusedAttnBwdParamsWindowSizeLeft,
                              kNVTEFusedAttnBwdParamsWindowSizeRight,
                              kNVTEFusedAttnBwdParamsBottomRightDiagonal,
                              kNVTEFusedAttnBwdParamsSoftmaxType,
                              kNVTEFusedAttnBwdParamsBiasType,
                              kNVTEFusedAttnBwdParamsDropout,
                              kNVTEFusedAttnBwdParamsAttnScale,
                              kNVTEFusedAttnBwdParamsQKVLayout,
                              kNVTEFusedAttnBwdParamsOFormat,
                              kNVTEFusedAttnBwdParamsMaxSeqlenQ,
                              kNVTEFusedAttnBwdParamsMaxSeqlenKV};
    NVTEFusedAttnBwdParams params = nvte_create_fused_attn_bwd_params();
    set_common<NVTEFusedAttnBwdParams>(params, &set_bwd, ids);
    const NVTETensor absent = unset, d_sink = c.softmax == NVTE_VANILLA_SOFTMAX ? unset.handle() : dsink.handle();
    for (const int id : {kNVTEFusedAttnBwdParamsS, kNVTEFusedAttnBwdParamsDP}) set_bwd(params, id, &absent, sizeof(absent));
    const NVTETensor d_bias = c.biased() ? dbias.handle() : unset.handle();
    set_bwd(params, kNVTEFusedAttnBwdParamsDBias, &d_bias, sizeof(d_bias));
    set_bwd(params, kNVTEFusedAttnBwdParamsDSoftmaxOffset, &d_sink, sizeof(d_sink));
    const NVTETensor handles[] = {o->handle(),     d_o->handle(),   out.q->handle(),
                                  out.k->handle(), out.v->handle(), query_workspace.handle()};
    const int handle_ids[] = {kNVTEFusedAttnBwdParamsO,  kNVTEFusedAttnBwdParamsDO, kNVTEFusedAttnBwdParamsDQ,
                              kNVTEFusedAttnBwdParamsDK, kNVTEFusedAttnBwdParamsDV, kNVTEFusedAttnBwdParamsWorkspace};
    for (int i = 0; i < 6; ++i) set_bwd(params, handle_ids[i], &handles[i], sizeof(handles[i]));
    const int32_t format = format_of(o_letters);
    const int32_t layout = c.gradient_layout == NVTE_QKV_Layout_NOT_SET ? c.layout : c.gradient_layout;
    set_bwd(params, kNVTEFusedAttnBwdParamsDOFormat, &format, sizeof(format));
    set_bwd(params, kNVTEFusedAttnBwdParamsDQKVLayout, &layout, sizeof(layout));
    const NVTETensorPack *const aux = &pack;
    set_bwd(params, kNVTEFusedAttnBwdParamsAuxCtxTensors, &aux, sizeof(aux));
    return params;
  }

  /* The two calls; the pack is left as backward wants it. */
  void forward() {
    NVTEFusedAttnFwdParams params = forward_params();
    nvte_fused_attn_fwd_v2(params);
    const NVTETensor filled = workspace;
    set_fwd(params, kNVTEFusedAttnFwdParamsWorkspace, &filled, sizeof(filled));
    aux.clear();
    for (size_t i = 0; i < pack.size; ++i) {
      const NVTEShape shape = nvte_tensor_shape(pack.tensors[i]);
      const NVTEDType dtype = nvte_tensor_type(pack.tensors[i]);
      aux.push_back(std::make_unique<Array>(std::vector<size_t>(shape.data, shape.data + shape.ndim), dtype));
      if (dtype == kNVTEFloat32) aux.back()->fill(kUntouched);
      const NVTEBasicTensor record{aux.back()->data(), dtype, shape};
      nvte_set_tensor_param_v2(pack.tensors[i], kNVTERowwiseData, &record, sizeof(record));
    }
    nvte_fused_attn_fwd_v2(params);
    nvte_destroy_fused_attn_fwd_params(params);
  }

  void backward() {
    NVTEFusedAttnBwdParams params = backward_params();
    nvte_fused_attn_bwd_v2(params);
    const NVTETensor filled = workspace;
    set_bwd(params, kNVTEFusedAttnBwdParamsWorkspace, &filled, sizeof(filled));
    nvte_fused_attn_bwd_v2(params);
    nvte_destroy_fused_attn_bwd_params(params);
  }

  /* Where the bias of a score lies in its tensor. */
  size_t bias_at(size_t b, int h, int i, int j) const {
    const size_t plane = (c.bias_by_sequence ? b * (c.bias_by_head ? static_cast<size_t>(c.heads) : 1) : 0) +
                         (c.bias_by_head ? static_cast<size_t>(h) : 0);
    return (plane * static_cast<size_t>(q_side.longest) + static_cast<size_t>(i)) * static_cast<size_t>(kv_side.longest) +
           static_cast<size_t>(j);
  }

  double stat(size_t index, size_t b, int i, int h) const {
    const int64_t at = thd_q() ? (q_side.starts[b] + i) * int64_t{c.heads} + h
                               : (static_cast<int64_t>(b) * c.heads + h) * q_side.longest + i;
    return aux[index]->get(static_cast<size_t>(at));
  }

  double keep(size_t b, int h, int i, int j) const {
    if (c.dropout == 0 || !c.training) return 1;
    const auto seed = static_cast<uint64_t>(c.seed), offset = static_cast<uint64_t>(c.offset);
    const uint64_t row = static_cast<uint64_t>(i) | (b * static_cast<uint64_t>(c.heads) + static_cast<uint64_t>(h))
                                                        << 32;
    const auto words =
        chagres::reference::philox(seed ^ (offset >> 32 << 32), row, static_cast<uint64_t>(j / 4) | offset << 32);
    return words.word[j % 4] * 0x1p-32 >= double{c.dropout} ? 1 / (1 - double{c.dropout}) : 0;
  }

  Case c;
  Side q_side, kv_side;
  std::string o_letters;
  Triple in, out;
  std::unique_ptr<Piece> o, d_o;
  Array cu_q, cu_kv, starts_q, starts_kv, rng, sink, dsink, bias, dbias, workspace;
  Unset unset, query_workspace;
  NVTETensorPack pack;
  std::vector<std::unique_ptr<Array>> aux;

 private:
  std::vector<size_t> bias_extents() const {
    if (!c.biased()) return {1, 1, 1, 1};
    return {c.bias_by_sequence ? c.q_lengths.size() : 1, c.bias_by_head ? static_cast<size_t>(c.heads) : 1,
            static_cast<size_t>(q_side.longest), static_cast<size_t>(kv_side.longest)};
  }
  Extents extents(const Side &side, int heads, int dim) const {
    return {static_cast<int64_t>(side.lengths.size()), side.longest, side.starts.back(), heads, dim};
  }
  std::shared_ptr<Array> buffer(const std::string &letters, const Extents &size) const {
    int64_t count = 1;
    for (const char letter : letters)
      count *= letter == 'b'   ? size.b
               : letter == 's' ? size.s
               : letter == 't' ? size.t
               : letter == 'h' ? size.h
               : letter == 'd' ? size.d
                               : letter - '0';
    return std::make_shared<Array>(std::vector<size_t>{static_cast<size_t>(count)}, c.dtype);
  }
  std::unique_ptr<Piece> single(const std::string &letters, const Side &side, int heads, int dim) const {
    const Extents size = extents(side, heads, dim);
    return std::make_unique<Piece>(buffer(letters, size), letters, size, 0, side);
  }
  Triple make(int layout) const {
    const std::vector<std::string> parts = split(layout_name(layout));
    if (parts.size() == 3)
      return {single(parts[0], q_side, c.heads, c.dim_qk), single(parts[1], kv_side, c.kv_heads, c.dim_qk),
              single(parts[2], kv_side, c.kv_heads, c.dim_v)};
    const Extents size = extents(kv_side, c.kv_heads, c.dim_qk);
    const std::string &letters = parts.back();
    const auto shared = buffer(letters, size);
    const int first = parts.size() == 1 ? 1 : 0;
    auto k = std::make_unique<Piece>(shared, letters, size, first, kv_side);
    auto v = std::make_unique<Piece>(shared, letters, size, first + 1, kv_side);
    auto q = first == 1 ? std::make_unique<Piece>(shared, letters, size, 0, q_side)
                        : single(parts[0], q_side, c.heads, c.dim_qk);
    return {std::move(q), std::move(k), std::move(v)};
  }
  static void poison(Piece &piece) { piece.buffer().fill(std::numeric_limits<double>::quiet_NaN()); }
};

}  // namespace attention

#endif /* CHAGRES_ATTENTION_CASE_H */
