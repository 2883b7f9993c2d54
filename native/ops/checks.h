/*
 * The checks of the operations of ops.h, shared by both libraries that export it; those of attention and of element-wise
 * operations have files of their own. Each returns OPS_SUCCESS or OPS_INVALID_ARGUMENT with the text set. Pointers to
 * nothing (a size of zero) are not looked at.
 */
#ifndef CHAGRES_OPS_CHECKS_H
#define CHAGRES_OPS_CHECKS_H

#include <utility>

#include "arguments.h"

namespace chagres::ops {

inline int check_dropout_add(const void *x, const void *residual, const void *y, const void *mask,
                             const void *rng_state, float probability, int64_t count, int dtype) {
  Arguments arguments("ops_dropout_add");
  arguments.float_dtype("dtype", dtype).between("count", count, 0).probability("probability", probability);
  if (arguments.wrong() || count == 0) return arguments.status();
  const int64_t size = size_of(dtype);
  return arguments.countable("count", {count, size})
      .pointer("x", x, size, bytes_of({count, size}))
      .pointer("residual", residual, size, bytes_of({count, size}))
      .pointer("y", y, size, bytes_of({count, size}))
      .pointer("mask", mask, 1, divide_up(count, 8))
      .pointer("rng_state", rng_state, 8, 16)
      .status();
}

inline int check_dropout_backward(const void *dy, const void *mask, const void *dx, float probability, int64_t count,
                                  int dtype) {
  Arguments arguments("ops_dropout_backward");
  arguments.float_dtype("dtype", dtype).between("count", count, 0).probability("probability", probability);
  if (arguments.wrong() || count == 0) return arguments.status();
  const int64_t size = size_of(dtype);
  return arguments.countable("count", {count, size})
      .pointer("dy", dy, size, bytes_of({count, size}))
      .pointer("mask", mask, 1, divide_up(count, 8))
      .pointer("dx", dx, size, bytes_of({count, size}))
      .status();
}

inline int check_drop_path_factors(const void *rng_state, float probability, const void *factors, int64_t sequences) {
  Arguments arguments("ops_drop_path_factors");
  arguments.between("sequences", sequences, 0).probability("probability", probability);
  if (arguments.wrong() || sequences == 0) return arguments.status();
  return arguments.countable("sequences", {sequences, 4})
      .pointer("rng_state", rng_state, 8, 16)
      .pointer("factors", factors, 4, bytes_of({sequences, 4}))
      .status();
}

/* How tokens belong to sequences. */
inline void token_layout(Arguments &arguments, const void *cu_seqlens, int layout, int64_t tokens, int64_t extent,
                         const char *name = "tokens") {
  arguments.between("layout", layout, OPS_THD, OPS_SBHD)
      .between(name, tokens, 0, INT32_MAX)
      .between("extent", extent, 1);
  if (layout == OPS_THD) {
    arguments.pointer("cu_seqlens", cu_seqlens, 4, bytes_of({std::min(extent, INT64_MAX - 1) + 1, 4}));
    return;
  }
  if (cu_seqlens != nullptr) arguments.refuse("cu_seqlens", "given", "null for a layout other than OPS_THD (0)");
  if (extent > 0 && tokens % extent != 0)
    arguments.refuse(name, format("%lld", static_cast<long long>(tokens)),
                     format("a multiple of extent %lld", static_cast<long long>(extent)));
}

inline int check_scale_sequences_add(const void *x, const void *residual, const void *y, const void *factors,
                                     const void *cu_seqlens, int layout, int64_t first, int64_t tokens, int64_t whole,
                                     int64_t extent, int64_t columns, int dtype) {
  Arguments arguments("ops_scale_sequences_add");
  arguments.float_dtype("dtype", dtype).between("tokens", tokens, 0, INT32_MAX);
  token_layout(arguments, cu_seqlens, layout, whole, extent, "whole");
  if (!arguments.wrong()) arguments.between("first", first, 0, whole - tokens);
  arguments.between("columns", columns, 0).countable("tokens * columns", {tokens, columns, size_of(dtype)});
  if (arguments.wrong() || tokens == 0 || columns == 0) return arguments.status();
  const int64_t size = size_of(dtype), matrix = bytes_of({tokens, columns, size});
  const int64_t sequences = layout == OPS_BSHD ? whole / extent : extent;
  arguments.pointer("x", x, size, matrix)
      .pointer("y", y, size, matrix)
      .pointer("factors", factors, 4, bytes_of({sequences, 4}));
  if (residual != nullptr) arguments.pointer("residual", residual, size, matrix);
  return arguments.status();
}

/* The numbers of tokens and sequences, and how they belong together. */
inline void token_places(Arguments &arguments, const void *cu_seqlens_padded, int layout, int64_t tokens, int64_t sequences) {
  arguments.between("layout", layout, OPS_THD, OPS_SBHD)
      .between("tokens", tokens, 0, INT32_MAX)
      .between("sequences", sequences, 1, INT32_MAX);
  if (layout != OPS_THD && sequences > 0 && tokens % sequences != 0)
    arguments.refuse("tokens", format("%lld", static_cast<long long>(tokens)),
                     format("a multiple of sequences %lld", static_cast<long long>(sequences)));
  if (layout != OPS_THD && cu_seqlens_padded != nullptr)
    arguments.refuse("cu_seqlens_padded", "given", "null for a layout other than OPS_THD (0)");
}

inline void place_pointers(Arguments &arguments, const void *cu_seqlens, const void *cu_seqlens_padded, int64_t sequences) {
  arguments.pointer("cu_seqlens", cu_seqlens, 4, bytes_of({sequences + 1, 4}));
  if (cu_seqlens_padded != nullptr) arguments.pointer("cu_seqlens_padded", cu_seqlens_padded, 4, bytes_of({sequences + 1, 4}));
}

inline int check_token_dropout_factors(const void *ids, const void *cu_seqlens, const void *cu_seqlens_padded,
                                       const void *factors, float kept, int layout, int64_t tokens, int64_t sequences) {
  Arguments arguments("ops_token_dropout_factors");
  token_places(arguments, cu_seqlens_padded, layout, tokens, sequences);
  if (!(kept >= 0) || std::isinf(kept)) arguments.refuse("kept", format("%g", kept), "a finite number of at least 0");
  if (arguments.wrong() || tokens == 0) return arguments.status();
  arguments.pointer("ids", ids, 4, bytes_of({tokens, 4}));
  place_pointers(arguments, cu_seqlens, cu_seqlens_padded, sequences);
  return arguments.pointer("factors", factors, 4, bytes_of({tokens, 4})).status();
}

/* of_tokens: x or dx; of_sequences: y or dy. The columns of sequences are few enough to be counted by int64 in bytes. */
inline int check_sequence_pool(const char *function, const char *tokens_name, const void *of_tokens,
                               const char *sequences_name, const void *of_sequences, const void *argument,
                               const void *cu_seqlens, const void *cu_seqlens_padded, int pool, int layout, int64_t tokens,
                               int64_t sequences, int64_t columns, int dtype) {
  Arguments arguments(function);
  arguments.between("pool", pool, OPS_POOL_MEAN, OPS_POOL_MAX).float_dtype("dtype", dtype);
  token_places(arguments, cu_seqlens_padded, layout, tokens, sequences);
  arguments.between("columns", columns, 0)
      .countable("tokens * columns", {tokens, columns, 4})
      .countable("sequences * columns", {sequences, columns, 4});
  if (pool != OPS_POOL_MAX && argument != nullptr)
    arguments.refuse("argument", "given", "null for a pool other than OPS_POOL_MAX (2)");
  if (arguments.wrong() || columns == 0) return arguments.status();
  const int64_t size = size_of(dtype);
  if (tokens != 0) arguments.pointer(tokens_name, of_tokens, size, bytes_of({tokens, columns, size}));
  place_pointers(arguments, cu_seqlens, cu_seqlens_padded, sequences);
  arguments.pointer(sequences_name, of_sequences, size, bytes_of({sequences, columns, size}));
  if (pool == OPS_POOL_MAX) arguments.pointer("argument", argument, 4, bytes_of({sequences, columns, 4}));
  return arguments.status();
}

/* Checks common to an embedding's forward and backward; true if the pointers must be checked, too. */
inline bool embedding_sizes(Arguments &arguments, int64_t first, int64_t tokens, int64_t vocabulary, int64_t hidden,
                            int dtype) {
  arguments.float_dtype("dtype", dtype)
      .between("tokens", tokens, 0)
      .between("first", first, 0)
      .between("vocabulary", vocabulary, 0)
      .between("hidden", hidden, 0);
  return !arguments.wrong();
}

inline int check_embedding_forward(const void *table, const void *ids, const void *y, int64_t first,
                                   int64_t tokens, int64_t vocabulary, int64_t hidden, int dtype) {
  Arguments arguments("ops_embedding_forward");
  const bool sized = embedding_sizes(arguments, first, tokens, vocabulary, hidden, dtype);
  if (!sized || tokens == 0 || hidden == 0) return arguments.status();
  const int64_t size = size_of(dtype);
  arguments.countable("tokens * hidden", {tokens, hidden, size})
      .countable("vocabulary * hidden", {vocabulary, hidden, size})
      .pointer("ids", ids, 4, bytes_of({tokens, 4}))
      .pointer("y", y, size, bytes_of({tokens, hidden, size}));
  if (vocabulary > 0) arguments.pointer("table", table, size, bytes_of({vocabulary, hidden, size}));
  return arguments.status();
}

inline int check_embedding_backward(const void *dy, const void *ids, const void *gradient, int64_t first,
                                    int64_t tokens, int64_t vocabulary, int64_t hidden, int dtype) {
  Arguments arguments("ops_embedding_backward");
  const bool sized = embedding_sizes(arguments, first, tokens, vocabulary, hidden, dtype);
  if (!sized || vocabulary == 0 || hidden == 0) return arguments.status();
  arguments.countable("tokens * hidden", {tokens, hidden, size_of(dtype)})
      .countable("vocabulary * hidden", {vocabulary, hidden, 4})
      .pointer("gradient", gradient, 4, bytes_of({vocabulary, hidden, 4}));
  if (tokens == 0) return arguments.status();
  return arguments.pointer("dy", dy, size_of(dtype), bytes_of({tokens, hidden, size_of(dtype)}))
      .pointer("ids", ids, 4, bytes_of({tokens, 4}))
      .status();
}

inline int check_row_sum(const void *x, const void *sum, int64_t rows, int64_t columns, int dtype) {
  Arguments arguments("ops_row_sum");
  arguments.float_dtype("dtype", dtype).between("rows", rows, 0).between("columns", columns, 0);
  if (arguments.wrong() || columns == 0) return arguments.status();
  const int64_t size = size_of(dtype);
  arguments.countable("rows * columns", {rows, columns, size}).pointer("sum", sum, 4, bytes_of({columns, 4}));
  return (rows == 0 ? arguments : arguments.pointer("x", x, size, bytes_of({rows, columns, size}))).status();
}

/* Rows that a block of threads keeps in registers, in 16-byte packs. */
inline bool norm_shape(Arguments &arguments, int64_t rows, int64_t columns, int dtype) {
  arguments.float_dtype("dtype", dtype).between("rows", rows, 0);
  if (arguments.wrong()) return false;
  const int64_t pack = 16 / size_of(dtype);
  arguments.between("columns", columns, pack, 1024 * pack);
  if (!arguments.wrong() && columns % pack != 0)
    arguments.refuse("columns", format("%lld", static_cast<long long>(columns)),
                     format("a multiple of %d", static_cast<int>(pack)));
  return !arguments.wrong() && !arguments.countable("rows * columns", {rows, columns, size_of(dtype)}).wrong();
}

/* Checks common to forward and backward; true if the pointers must be checked, too. */
inline bool norm_kind(Arguments &arguments, const OpsResidualNorm *norm) {
  if (norm == nullptr) {
    arguments.refuse("norm", "null", "a host address");
    return false;
  }
  if (!norm_shape(arguments, norm->rows, norm->columns, norm->dtype)) return false;
  return !arguments.between("kind", norm->kind, OPS_LAYER_NORM, OPS_RMS_NORM)
              .between("center", norm->center, 0, 1)
              .between("multiprocessors", norm->multiprocessors, 0, INT32_MAX)
              .wrong();
}

inline int64_t filled_rows(int64_t rows) { return divide_up(rows, 16) * 16; }

inline void norm_in_fp8(Arguments &arguments, const OpsResidualNorm &n) {
  const bool wanted = n.y8 != nullptr || n.y8_transposed != nullptr;
  if (n.amax != nullptr) arguments.pointer("amax", n.amax, 4, 4);
  if (n.scale_inverse != nullptr) arguments.pointer("scale_inverse", n.scale_inverse, 4, 4);
  if (!wanted) {
    if (n.scale != nullptr) arguments.refuse("scale", "given", "null, for neither y8 nor y8_transposed is given");
    if (n.scale_inverse != nullptr)
      arguments.refuse("scale_inverse", "given", "null, for neither y8 nor y8_transposed is given");
    if (n.y == nullptr) arguments.refuse("y", "null", "y, y8 or y8_transposed");
    return;
  }
  arguments.pointer("scale", n.scale, 4, 4);
  if (n.columns % 16 != 0)
    arguments.refuse("columns", format("%lld", static_cast<long long>(n.columns)), "a multiple of 16 for FP8");
  if (n.y8 != nullptr) arguments.pointer("y8", n.y8, 16, bytes_of({n.rows, n.columns}));
  if (n.y8_transposed == nullptr) return;
  const int64_t filled = filled_rows(n.rows);
  arguments.between("filled_rows", n.filled_rows, filled, filled)
      .pointer("y8_transposed", n.y8_transposed, 16, bytes_of({filled, n.columns}));
}

inline int check_residual_norm_forward(const OpsResidualNorm *norm) {
  Arguments arguments("ops_residual_norm_forward");
  if (!norm_kind(arguments, norm)) return arguments.status();
  const OpsResidualNorm &n = *norm;
  if (!(n.epsilon > 0)) arguments.refuse("epsilon", format("%g", n.epsilon), "a number above 0");
  if (arguments.wrong() || n.rows == 0) return arguments.status();
  const int64_t row = bytes_of({n.columns, size_of(n.dtype)}), matrix = bytes_of({n.rows, row});
  arguments.pointer("x", n.x, 16, matrix).pointer("gamma", n.gamma, 16, row).pointer("inverse", n.inverse, 4, 4 * n.rows);
  if (n.residual != nullptr) arguments.pointer("residual", n.residual, 16, matrix).pointer("h", n.h, 16, matrix);
  if (n.bias != nullptr) {
    arguments.pointer("bias", n.bias, 16, row);
    if (n.residual == nullptr) arguments.refuse("bias", "given", "null without a residual");
  }
  if (n.kind == OPS_LAYER_NORM)
    arguments.pointer("beta", n.beta, 16, row).pointer("mean", n.mean, 4, 4 * n.rows);
  if (n.y != nullptr) arguments.pointer("y", n.y, 16, matrix);
  norm_in_fp8(arguments, n);
  return arguments.status();
}

inline int check_residual_norm_backward(const OpsResidualNorm *norm) {
  Arguments arguments("ops_residual_norm_backward");
  if (!norm_kind(arguments, norm)) return arguments.status();
  const OpsResidualNorm &n = *norm;
  const bool centered = n.kind == OPS_LAYER_NORM;
  arguments.pointer("dgamma", n.dgamma, 4, bytes_of({n.columns, 4}));
  if (centered) arguments.pointer("dbeta", n.dbeta, 4, bytes_of({n.columns, 4}));
  if (arguments.wrong() || n.rows == 0) return arguments.status();
  const int64_t row = bytes_of({n.columns, size_of(n.dtype)}), matrix = bytes_of({n.rows, row});
  arguments.pointer("dy", n.dy, 16, matrix)
      .pointer("h", n.h, 16, matrix)
      .pointer("inverse", n.inverse, 4, bytes_of({n.rows, 4}))
      .pointer("gamma", n.gamma, 16, row)
      .pointer("dh", n.dh, 16, matrix);
  if (centered) arguments.pointer("mean", n.mean, 4, bytes_of({n.rows, 4}));
  if (n.dresidual != nullptr) arguments.pointer("dresidual", n.dresidual, 16, matrix);
  return arguments.status();
}

inline int check_bias_add(const void *x, const void *bias, const void *residual, const void *y, int64_t rows,
                          int64_t columns, int dtype) {
  Arguments arguments("ops_bias_add");
  arguments.float_dtype("dtype", dtype).between("rows", rows, 0).between("columns", columns, 0);
  if (arguments.wrong() || rows == 0 || columns == 0) return arguments.status();
  const int64_t size = size_of(dtype), matrix = bytes_of({rows, columns, size});
  arguments.countable("rows * columns", {rows, columns, size})
      .pointer("x", x, size, matrix)
      .pointer("bias", bias, size, bytes_of({columns, size}))
      .pointer("y", y, size, matrix);
  if (residual != nullptr) arguments.pointer("residual", residual, size, matrix);
  return arguments.status();
}

/* Gather (`indexed_name` x_rows) and scatter (y_rows). */
inline int check_rows(const char *function, const void *x, const void *index, const void *y, int64_t rows,
                      int64_t columns, const char *indexed_name, int64_t indexed, int dtype) {
  Arguments arguments(function);
  arguments.dtype("dtype", dtype)
      .between("rows", rows, 0)
      .between("columns", columns, 0)
      .between(indexed_name, indexed, 0);
  if (arguments.wrong() || rows == 0 || columns == 0) return arguments.status();
  const int64_t size = size_of(dtype);
  arguments.countable("rows * columns", {rows, columns, size})
      .countable(indexed_name, {indexed, columns, size})
      .pointer("index", index, 4, bytes_of({rows, 4}));
  const bool gather = indexed_name[0] == 'x';
  const int64_t listed = bytes_of({rows, columns, size}), all = bytes_of({indexed, columns, size});
  if (!gather || indexed > 0) arguments.pointer("x", x, size, gather ? all : listed);
  if (gather || indexed > 0) arguments.pointer("y", y, size, gather ? listed : all);
  return arguments.status();
}

/* The tensors of a rotation: qkv, and for split and join the three that it is made of. */
struct RotaryTensors {
  const void *qkv;
  bool apart; /* with q, k and v */
  const void *q, *k, *v;
};

inline bool rotates_nothing(const OpsRotary &rotary) {
  return rotary.tokens == 0 || rotary.heads + rotary.kv_heads == 0;
}

inline void check_rotary_sizes(Arguments &arguments, const OpsRotary &rotary) {
  constexpr int64_t kMostHeads = 65535;
  arguments.float_dtype("dtype", rotary.dtype);
  token_layout(arguments, rotary.cu_seqlens, rotary.layout, rotary.tokens, rotary.extent);
  arguments.between("positions", rotary.positions, 0)
      .between("heads", rotary.heads, 0, kMostHeads)
      .between("kv_heads", rotary.kv_heads, 0, kMostHeads)
      .between("head_dim", rotary.head_dim, 2, 8192)
      .between("rotated_dim", rotary.rotated_dim, 0, std::max<int64_t>(rotary.head_dim, 0))
      .between("pairing", rotary.pairing, OPS_HALVES, OPS_INTERLEAVED);
  if (rotary.direction != 1 && rotary.direction != -1)
    arguments.refuse("direction", format("%d", rotary.direction), "1 or -1");
  for (const auto &[name, dim] : {std::pair{"head_dim", rotary.head_dim}, std::pair{"rotated_dim", rotary.rotated_dim}})
    if (dim % 2 != 0) arguments.refuse(name, format("%lld", static_cast<long long>(dim)), "an even number");
  if (arguments.wrong()) return;
  const int64_t heads = rotary.heads + 2 * rotary.kv_heads;
  arguments.countable("tokens * heads * head_dim", {rotary.tokens, heads, rotary.head_dim, size_of(rotary.dtype)})
      .countable("positions * rotated_dim", {rotary.positions, rotary.rotated_dim, 4});
}

inline int check_rotary(const char *function, const OpsRotary *given, const RotaryTensors &tensors) {
  Arguments arguments(function);
  if (given == nullptr) return arguments.refuse("rotary", "null", "a host struct").status();
  const OpsRotary &rotary = *given;
  check_rotary_sizes(arguments, rotary);
  if (arguments.wrong() || rotates_nothing(rotary)) return arguments.status();
  const int64_t size = size_of(rotary.dtype), head = rotary.tokens * rotary.head_dim * size;
  arguments.pointer("qkv", tensors.qkv, size, bytes_of({head, rotary.heads + 2 * rotary.kv_heads}));
  if (tensors.apart && rotary.heads > 0) arguments.pointer("q", tensors.q, size, bytes_of({head, rotary.heads}));
  if (tensors.apart && rotary.kv_heads > 0)
    arguments.pointer("k", tensors.k, size, bytes_of({head, rotary.kv_heads}))
        .pointer("v", tensors.v, size, bytes_of({head, rotary.kv_heads}));
  if (rotary.start_positions != nullptr) {
    const int64_t sequences = rotary.layout == OPS_BSHD ? rotary.tokens / rotary.extent : rotary.extent;
    arguments.pointer("start_positions", rotary.start_positions, 4, bytes_of({sequences, 4}));
  }
  if (rotary.positions > 0 && rotary.rotated_dim > 0)
    arguments.pointer("angles", rotary.angles, 4, bytes_of({rotary.positions, rotary.rotated_dim, 4}));
  return arguments.status();
}

inline int check_clip_scale(const void *norm, float max_norm, const void *scale) {
  Arguments arguments("ops_clip_scale");
  arguments.pointer("norm", norm, 4, 4).pointer("scale", scale, 4, 4);
  if (!(max_norm > 0)) arguments.refuse("max_norm", format("%g", max_norm), "a number above 0");
  return arguments.status();
}

inline int check_loss_scale_clip(const void *norm, const void *loss_scale, float max_norm, const void *factor,
                                 const void *skip) {
  Arguments arguments("ops_loss_scale_clip");
  arguments.pointer("norm", norm, 4, 4)
      .pointer("loss_scale", loss_scale, 4, 4)
      .pointer("factor", factor, 4, 4)
      .pointer("skip", skip, 4, 4);
  if (!(max_norm > 0)) arguments.refuse("max_norm", format("%g", max_norm), "a number above 0");
  return arguments.status();
}

inline int check_loss_scale_update(const void *skip, const void *loss_scale, const void *counts, const void *step,
                                   float growth_factor, float backoff_factor, int32_t growth_interval) {
  Arguments arguments("ops_loss_scale_update");
  arguments.pointer("skip", skip, 4, 4)
      .pointer("loss_scale", loss_scale, 4, 4)
      .pointer("counts", counts, 4, 8)
      .pointer("step", step, 4, 4);
  if (!(growth_factor > 1) || std::isinf(growth_factor))
    arguments.refuse("growth_factor", format("%g", growth_factor), "a finite number above 1");
  if (!(backoff_factor > 0 && backoff_factor < 1))
    arguments.refuse("backoff_factor", format("%g", backoff_factor), "a number above 0 and below 1");
  return arguments.between("growth_interval", growth_interval, 1).status();
}

inline int check_loss_scale_restore(const void *skip, const void *saved, const void *values, int64_t count) {
  Arguments arguments("ops_loss_scale_restore");
  arguments.between("count", count, 0).countable("count", {count, 4});
  if (arguments.wrong() || count == 0) return arguments.status();
  return arguments.pointer("skip", skip, 4, 4)
      .pointer("saved", saved, 4, count * 4)
      .pointer("values", values, 4, count * 4)
      .status();
}

/* Scales of FP8 numbers: how many elements share one, as TE numbers that. */
constexpr int kOneScale = 0, kRowBlocks = 2, kSquareBlocks = 3;
constexpr int64_t kScaleBlock = 128;

/* Blocks of 128 columns, and how far apart their scales lie. */
inline void scale_stride(Arguments &arguments, int64_t rows, int64_t columns, int64_t stride, int scaling) {
  const int64_t across = divide_up(columns, kScaleBlock), down = divide_up(rows, kScaleBlock);
  arguments.between("stride", stride, scaling == kRowBlocks ? rows : across)
      .countable("stride", {stride, std::max(across, down), 4});
}

/* The bytes of the scales of blocks, of a matrix that is not empty. */
inline int64_t bytes_of_scales(int64_t rows, int64_t columns, int64_t stride, int scaling) {
  const int64_t blocks = divide_up(columns, kScaleBlock);
  const int64_t scales = scaling == kRowBlocks ? (blocks - 1) * stride + rows
                                               : (divide_up(rows, kScaleBlock) - 1) * stride + blocks;
  return bytes_of({scales, 4});
}

inline int check_gated_gradient(const void *dy, const void *x, const void *q, const void *q_transposed,
                                const void *scale, const void *amax, const void *scale_inverse, int64_t rows,
                                int64_t columns, int gate, float limit, float alpha, float offset, int dtype, int fp8) {
  Arguments arguments("ops_gated_gradient");
  arguments.float_dtype("dtype", dtype)
      .between("fp8", fp8, 7, 8)
      .between("gate", gate, OPS_GEGLU, OPS_CLAMPED_SWIGLU)
      .between("rows", rows, 0)
      .between("columns", columns, 0);
  for (const auto &[name, size] : {std::pair("rows", rows), std::pair("columns", columns)})
    if (size % 16 != 0) arguments.refuse(name, format("%lld", static_cast<long long>(size)), "a multiple of 16");
  arguments.countable("rows * columns", {rows, columns, 2 * size_of(dtype)});
  if (gate == OPS_CLAMPED_SWIGLU) {
    if (!(limit > 0) || std::isinf(limit)) arguments.refuse("limit", format("%g", limit), "a finite number above 0");
    for (const auto &[name, value] : {std::pair("alpha", alpha), std::pair("offset", offset)})
      if (!std::isfinite(value)) arguments.refuse(name, format("%g", value), "a finite number");
  }
  if (arguments.wrong() || rows == 0 || columns == 0) return arguments.status();
  const int64_t size = size_of(dtype), bytes = bytes_of({rows, 2, columns});
  arguments.pointer("dy", dy, 16, bytes_of({rows, columns, size}))
      .pointer("x", x, 16, bytes_of({bytes, size}))
      .pointer("q", q, 16, bytes)
      .pointer("q_transposed", q_transposed, 16, bytes)
      .pointer("scale", scale, 4, 4);
  if (amax != nullptr) arguments.pointer("amax", amax, 4, 4);
  if (scale_inverse != nullptr) arguments.pointer("scale_inverse", scale_inverse, 4, 4);
  return arguments.status();
}

inline int check_dequantize_blocks(const void *q, const void *scale_inverse, const void *y, int64_t rows, int64_t columns,
                                   int64_t stride, int scaling, int dtype, int fp8) {
  Arguments arguments("ops_dequantize_blocks");
  arguments.float_dtype("dtype", dtype)
      .between("fp8", fp8, 7, 8)
      .between("rows", rows, 0)
      .between("columns", columns, 0)
      .between("scaling", scaling, kRowBlocks, kSquareBlocks)
      .countable("rows * columns", {rows, columns, 4});
  scale_stride(arguments, rows, columns, stride, scaling);
  if (arguments.wrong() || rows == 0 || columns == 0) return arguments.status();
  return arguments.pointer("q", q, 1, bytes_of({rows, columns}))
      .pointer("scale_inverse", scale_inverse, 4, bytes_of_scales(rows, columns, stride, scaling))
      .pointer("y", y, size_of(dtype), bytes_of({rows, columns, size_of(dtype)}))
      .status();
}

inline int check_quantization_statistics(const void *x, const void *q, const void *scale_inverse,
                                         const void *statistics, int64_t rows, int64_t columns, int64_t stride,
                                         int scaling, int dtype, int fp8) {
  Arguments arguments("ops_quantization_statistics");
  arguments.float_dtype("dtype", dtype)
      .between("fp8", fp8, 7, 8)
      .between("rows", rows, 0)
      .between("columns", columns, 0)
      .countable("rows * columns", {rows, columns, 4});
  if (scaling != kOneScale && scaling != kRowBlocks && scaling != kSquareBlocks)
    arguments.refuse("scaling", format("%d", scaling), "0, 2 or 3");
  if (scaling != kOneScale) scale_stride(arguments, rows, columns, stride, scaling);
  arguments.pointer("statistics", statistics, 4, 24);
  if (arguments.wrong() || rows == 0 || columns == 0) return arguments.status();
  const int64_t scales = scaling == kOneScale ? 4 : bytes_of_scales(rows, columns, stride, scaling);
  return arguments.pointer("x", x, size_of(dtype), bytes_of({rows, columns, size_of(dtype)}))
      .pointer("q", q, 1, bytes_of({rows, columns}))
      .pointer("scale_inverse", scale_inverse, 4, scales)
      .status();
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_CHECKS_H */
