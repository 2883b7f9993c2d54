/* The checks of matrix products, shared by both libraries that export them; as checks.h. */
#ifndef CHAGRES_OPS_MATRIX_PRODUCT_CHECKS_H
#define CHAGRES_OPS_MATRIX_PRODUCT_CHECKS_H

#include "checks.h"

namespace chagres::ops {

enum Float8 { kFloat8E4M3 = 7, kFloat8E5M2 = 8 }; /* of NVTEDType */

inline bool is_float8(int dtype) { return dtype == kFloat8E4M3 || dtype == kFloat8E5M2; }
inline int64_t size_of_operand(int dtype) { return is_float8(dtype) ? 1 : size_of(dtype); }
inline bool is_float8(const OpsMatrixProduct &product) { return is_float8(product.a_dtype); }
inline bool is_block_scaled(const OpsMatrixProduct &product) { return product.a_scaling != kOneScale; }

inline bool reads_bias(const OpsMatrixProduct &product) {
  return product.epilogue == OPS_EPILOGUE_BIAS || product.epilogue == OPS_EPILOGUE_BIAS_GELU;
}
inline bool has_bias(const OpsMatrixProduct &product) {
  return reads_bias(product) || product.epilogue == OPS_EPILOGUE_BIAS_GRADIENT;
}
inline bool has_pre_gelu(const OpsMatrixProduct &product) {
  return product.epilogue == OPS_EPILOGUE_GELU || product.epilogue == OPS_EPILOGUE_BIAS_GELU ||
         product.epilogue == OPS_EPILOGUE_GELU_GRADIENT;
}
inline int bias_dtype(const OpsMatrixProduct &product) {
  return is_float8(product) && product.d_dtype == kFloat32 ? kBFloat16 : product.d_dtype;
}
inline bool is_empty(const OpsMatrixProduct &product) { return product.m == 0 || product.n == 0; }

/* FP32 numbers that scale a matrix of `rows` rows of K numbers. */
inline int64_t scale_count(int scaling, int64_t rows, int64_t k) {
  const auto fours = [](int64_t count) { return divide_up(count, 4) * 4; };
  if (scaling == kOneScale) return 1;
  const int64_t blocks = divide_up(k, kScaleBlock);
  return scaling == kRowBlocks ? blocks * fours(rows) : divide_up(rows, kScaleBlock) * fours(blocks);
}

inline std::string number(int64_t value) { return format("%lld", static_cast<long long>(value)); }

inline void check_product_types(Arguments &arguments, const OpsMatrixProduct &p) {
  const bool known = is_float8(p.a_dtype) || (p.a_dtype >= kFloat32 && p.a_dtype <= kBFloat16);
  if (!known)
    arguments.refuse("a_dtype", number(p.a_dtype),
                     "4 (float32), 5 (float16), 6 (bfloat16), 7 (float8 E4M3) or 8 (float8 E5M2)");
  if (is_float8(p)) {
    if (!is_float8(p.b_dtype)) arguments.refuse("b_dtype", number(p.b_dtype), "7 or 8 (float8), as a has");
    if (p.a_dtype == kFloat8E5M2 && p.b_dtype == kFloat8E5M2)
      arguments.refuse("b_dtype", "8 (float8 E5M2)", "7 (float8 E4M3), for a is E5M2");
    arguments.float_dtype("d_dtype", p.d_dtype);
    return;
  }
  if (p.b_dtype != p.a_dtype) arguments.refuse("b_dtype", number(p.b_dtype), number(p.a_dtype) + ", the type of a");
  if (p.d_dtype != kFloat32 && p.d_dtype != p.a_dtype)
    arguments.refuse("d_dtype", number(p.d_dtype), "4 (float32) or the type of a, " + number(p.a_dtype));
}

inline void check_product_float8(Arguments &arguments, const OpsMatrixProduct &p) {
  const auto scaling = [&](const char *name, int value) {
    if (value != kOneScale && value != kRowBlocks && value != kSquareBlocks)
      arguments.refuse(name, number(value), "0 (one scale), 2 (by 1 x 128) or 3 (by 128 x 128)");
  };
  scaling("a_scaling", p.a_scaling);
  scaling("b_scaling", p.b_scaling);
  arguments.between("trans_a", p.trans_a, 0, 0).between("trans_b", p.trans_b, 1, 1);
  arguments.between("accumulator", p.accumulator, OPS_ACCUMULATOR_FAST, OPS_ACCUMULATOR_SPLIT);
  arguments.between("epilogue", p.epilogue, OPS_EPILOGUE_NONE, OPS_EPILOGUE_BIAS);
  if (arguments.wrong()) return;
  if (is_block_scaled(p) != (p.b_scaling != kOneScale))
    arguments.refuse("b_scaling", number(p.b_scaling), is_block_scaled(p) ? "2 or 3, for a is scaled by blocks"
                                                                          : "0, for a has one scale");
  if (p.a_scaling == kSquareBlocks && p.b_scaling == kSquareBlocks)
    arguments.refuse("b_scaling", "3 (by 128 x 128)", "2 (by 1 x 128), for a is scaled by 128 x 128");
  if (is_block_scaled(p)) arguments.between("accumulator", p.accumulator, OPS_ACCUMULATOR_SPLIT, OPS_ACCUMULATOR_SPLIT);
  const auto multiple = [&](const char *name, int64_t value, int64_t step) {
    if (value % step != 0) arguments.refuse(name, number(value), "a multiple of " + number(step));
  };
  multiple("k", p.k, 16);
  multiple("n", p.n, is_block_scaled(p) ? 8 : 16 / size_of(p.d_dtype));
  if (p.a_scaling == kRowBlocks) multiple("m", p.m, 8);
}

inline void check_product_epilogue(Arguments &arguments, const OpsMatrixProduct &p) {
  arguments.between("epilogue", p.epilogue, OPS_EPILOGUE_NONE, OPS_EPILOGUE_BIAS_GRADIENT)
      .between("trans_a", p.trans_a, 0, 1)
      .between("trans_b", p.trans_b, 0, 1)
      .between("a_scaling", p.a_scaling, kOneScale, kOneScale)
      .between("b_scaling", p.b_scaling, kOneScale, kOneScale);
  if (has_pre_gelu(p) && (p.a_dtype == kFloat32 || p.d_dtype != p.a_dtype))
    arguments.refuse("d_dtype", number(p.d_dtype),
                     p.a_dtype == kFloat32 ? "16-bit operands and results, for GELU" : "the type of a, for GELU");
  if (p.epilogue == OPS_EPILOGUE_BIAS_GRADIENT && p.trans_a != 1)
    arguments.refuse("trans_a", "0", "1, for a bias gradient");
}

inline void check_product_memory(Arguments &arguments, const OpsMatrixProduct &p) {
  const int64_t a_size = size_of_operand(p.a_dtype), b_size = size_of_operand(p.b_dtype), d_size = size_of(p.d_dtype);
  const int64_t least = is_float8(p) ? 16 : 1;
  arguments.countable("m * k", {p.m, p.k, a_size})
      .countable("n * k", {p.n, p.k, b_size})
      .countable("m * n", {p.m, p.n, d_size})
      .pointer("a", p.a, std::max(a_size, least), bytes_of({p.m, p.k, a_size}))
      .pointer("b", p.b, std::max(b_size, least), bytes_of({p.n, p.k, b_size}))
      .pointer("d", p.d, std::max(d_size, least), bytes_of({p.m, p.n, d_size}));
  const int64_t bias_size = size_of(bias_dtype(p));
  if (has_bias(p))
    arguments.pointer("bias", p.bias, std::max(bias_size, least), bytes_of({reads_bias(p) ? p.n : p.m, bias_size}));
  if (has_pre_gelu(p)) arguments.pointer("pre_gelu", p.pre_gelu, d_size, bytes_of({p.m, p.n, d_size}));
  if (is_float8(p)) {
    arguments.pointer("a_scale_inverse", p.a_scale_inverse, 4, bytes_of({scale_count(p.a_scaling, p.m, p.k), 4}))
        .pointer("b_scale_inverse", p.b_scale_inverse, 4, bytes_of({scale_count(p.b_scaling, p.n, p.k), 4}));
  }
  arguments.between("workspace_bytes", p.workspace_bytes, 0);
  if (p.workspace_bytes > 0) arguments.pointer("workspace", p.workspace, 1, p.workspace_bytes);
}

inline int check_matrix_product(const OpsMatrixProduct *given) {
  Arguments arguments("ops_matrix_product");
  if (given == nullptr) return arguments.refuse("product", "null", "a host struct").status();
  const OpsMatrixProduct &p = *given;
  check_product_types(arguments, p);
  arguments.between("m", p.m, 0, INT32_MAX)
      .between("n", p.n, 0, INT32_MAX)
      .between("k", p.k, p.m > 0 && p.n > 0 ? 1 : 0, INT32_MAX)
      .between("multiprocessors", p.multiprocessors, 0, INT32_MAX)
      .between("plan", p.plan, OPS_PLAN_FIRST, OPS_PLAN_MEASURED);
  if (arguments.wrong()) return arguments.status();
  /* cuBLASLt 13.0 divides by zero then, which ends the process. */
  if (p.multiprocessors == 1) return arguments.refuse("multiprocessors", "1", "0 for all, or at least 2").status();
  if (is_float8(p)) {
    check_product_float8(arguments, p);
  } else {
    check_product_epilogue(arguments, p);
  }
  if (p.accumulate != 0 && p.epilogue != OPS_EPILOGUE_NONE)
    arguments.refuse("accumulate", format("%g", p.accumulate), "0 where there is an epilogue");
  if (!arguments.wrong() && !is_empty(p)) check_product_memory(arguments, p);
  return arguments.status();
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_MATRIX_PRODUCT_CHECKS_H */
