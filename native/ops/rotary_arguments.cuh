/*
 * What the rotation's kernels are given, as rotary.cpp fills it in. Host and GPU compiler both read this file, which is
 * why it includes nothing: the integer names come first.
 */
#pragma once

/* Heads side by side: head i of token t begins at data + t * step + i * head_dim, in elements. */
struct RotaryHeads {
  void *data;
  int64_t step;
};

struct RotaryArguments {
  RotaryHeads from_query, from_key, from_value;
  RotaryHeads to_query, to_key, to_value;
  const int32_t *cu_seqlens, *start_positions;
  const float *angles;
  int64_t tokens, extent, positions;
  int heads, kv_heads, head_dim, rotated_dim;
  int layout;
  int block_tokens; /* that a block owns */
  float direction;
  bool interleaved;
};
