/*
 * Operations that a training step needs and Transformer Engine's C API lacks.
 *
 * Two libraries export these functions: chagres_ops (one .cu file an operation family, compiled by NVRTC at first use)
 * and chagres_reference (the same arithmetic on the CPU). Every function enqueues its work on `stream` and returns
 * OPS_SUCCESS or another OpsStatus; ops_last_error() then has the text. Pointers named below are device pointers unless
 * they say "host". A size of zero is no error: an empty output is left alone, an empty sum is zero, and pointers to
 * nothing are not looked at. Pointers are multiples of their element's size; multiples of 16 bytes are fastest. Sums
 * keep partial sums in memory of their own, 8.25 MiB a stream, allocated by the stream's first sum: call a function once
 * before capturing it in a graph, and do not run graphs captured on one stream at the same time.
 * dtype arguments take NVTEDType's values
 * (Int32 2, Float32 4, Float16 5, BFloat16 6). Arithmetic is FP32 whatever the storage.
 * Letters: T tokens, V vocabulary rows, H hidden size, R rows, C columns, h heads, d head dimension, B sequences.
 * Threading: any thread; the caller has made the stream's device current. Two threads must not enqueue sums (row_sum, the
 * backward of embeddings and norms, cross-entropy) on one stream at the same time, since they share the stream's memory.
 */
#ifndef CHAGRES_OPS_H
#define CHAGRES_OPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *OpsStream;

enum OpsStatus {
  OPS_SUCCESS = 0,
  OPS_INVALID_ARGUMENT = 1, /* null pointer, negative size, dtype the operation does not take */
  OPS_CUDA_ERROR = 2,       /* the CUDA runtime refused; text has its code and name */
  OPS_COMPILE_ERROR = 3,    /* NVRTC refused; text has its log */
  OPS_NOT_OPEN = 4          /* ops_open has not succeeded in this process */
};

/* Where a token's sequence and its position there come from. */
enum OpsTokenLayout {
  OPS_THD = 0,  /* packed: cu_seqlens[sequence] <= t < cu_seqlens[sequence + 1]; position = t - cu_seqlens[sequence] */
  OPS_BSHD = 1, /* sequence = t / sequence_length, position = t % sequence_length */
  OPS_SBHD = 2  /* sequence = t % batch, position = t / batch */
};

/* Opens the CUDA runtime and NVRTC by full path (host strings) and names the folder for compiled kernels (created when
 * absent; files are named by the hash of source, architecture and NVRTC version). include_directory: more headers for
 * NVRTC, may be null: the kernels need none. The reference ignores all four. Calling it again with the same paths does
 * nothing; with others it is OPS_INVALID_ARGUMENT. */
int ops_open(const char *cuda_runtime, const char *nvrtc, const char *include_directory, const char *cache_directory);

/* Text of this thread's last failing call, "" when there was none; owned by the thread, valid until its next call. */
const char *ops_last_error(void);

/* Compiles every kernel of every operation for compute capability major.minor without needing a GPU; the number of
 * source files, compiled now or found compiled in the cache, goes to *compiled (host). The reference compiles nothing
 * and writes 0. */
int ops_compile_all(int major, int minor, int *compiled);

/* y[i] = x[i] + residual[i]. y may be x or residual. */
int ops_add(const void *x, const void *residual, void *y, int64_t count, int dtype, OpsStream stream);

/* y[r, c] = (x[r, c] + bias[c]) + residual[r, c], rounded once; without a residual, which may be null, y[r, c] = x[r, c] +
 * bias[c]. x, residual and y [R, C] of dtype, bias [C] of dtype. y may be x or residual. */
int ops_bias_add(const void *x, const void *bias, const void *residual, void *y, int64_t rows, int64_t columns,
                 int dtype, OpsStream stream);

/* y[i] = x[i] - other[i]. y may be x or other. */
int ops_subtract(const void *x, const void *other, void *y, int64_t count, int dtype, OpsStream stream);

/* y[i] = x[i] * other[i]. y may be x or other. */
int ops_multiply(const void *x, const void *other, void *y, int64_t count, int dtype, OpsStream stream);

/* y[i] = 1 / (1 + exp(-x[i])). y may be x. */
int ops_sigmoid(const void *x, void *y, int64_t count, int dtype, OpsStream stream);

/* dx[i] = dy[i] * y[i] * (1 - y[i]), y being sigmoid's result. dx may be dy or y. */
int ops_sigmoid_backward(const void *dy, const void *y, void *dx, int64_t count, int dtype, OpsStream stream);

/* y[i] = (x[i] - target[i])^2. y may be x or target. */
int ops_squared_error(const void *x, const void *target, void *y, int64_t count, int dtype, OpsStream stream);

/* dx[i] = dy[i] * 2 (x[i] - target[i]). dx may be any input. */
int ops_squared_error_backward(const void *dy, const void *x, const void *target, void *dx, int64_t count, int dtype,
                               OpsStream stream);

/* The binary cross-entropy of sigmoid(x[i]) and target[i], a probability: y[i] = max(x[i], 0) - x[i] target[i] +
 * log(1 + exp(-|x[i]|)), without cancellation where x[i] is large. NaN of infinite x. y may be x or target. */
int ops_binary_cross_entropy(const void *x, const void *target, void *y, int64_t count, int dtype, OpsStream stream);

/* dx[i] = dy[i] (1 / (1 + exp(-x[i])) - target[i]). dx may be any input. */
int ops_binary_cross_entropy_backward(const void *dy, const void *x, const void *target, void *dx, int64_t count,
                                      int dtype, OpsStream stream);

/* y[i] = erf(x[i]). y may be x. */
int ops_erf(const void *x, void *y, int64_t count, int dtype, OpsStream stream);

/* dx[i] = dy[i] * 2 / sqrt(pi) * exp(-x[i]^2). dx may be dy or x. */
int ops_erf_backward(const void *dy, const void *x, void *dx, int64_t count, int dtype, OpsStream stream);

/* y[i] = 1 / x[i]: infinity of 0. y may be x. */
int ops_reciprocal(const void *x, void *y, int64_t count, int dtype, OpsStream stream);

/* y[i] = x[i] / 2 (1 + erf(x[i] / sqrt(2))): GELU itself, where TE's is the form by tanh. NaN of -infinity. y may be x. */
int ops_gelu_erf(const void *x, void *y, int64_t count, int dtype, OpsStream stream);

/* dx[i] = dy[i] * ((1 + erf(x[i] / sqrt(2))) / 2 + x[i] exp(-x[i]^2 / 2) / sqrt(2 pi)). NaN of infinite x. dx may be dy or x. */
int ops_gelu_erf_backward(const void *dy, const void *x, void *dx, int64_t count, int dtype, OpsStream stream);

/* The same two, which also raise amax, FP32 [1], at least 0 before, to the largest magnitude of what they write, as stored; NaN does not
 * count. */
int ops_gelu_erf_amax(const void *x, void *y, float *amax, int64_t count, int dtype, OpsStream stream);
int ops_gelu_erf_backward_amax(const void *dy, const void *x, void *dx, float *amax, int64_t count, int dtype,
                               OpsStream stream);

/* y[i] = tanh(x[i]). y may be x. */
int ops_tanh(const void *x, void *y, int64_t count, int dtype, OpsStream stream);

/* dx[i] = dy[i] * (1 - y[i]^2), y being tanh's result. dx may be dy or y. */
int ops_tanh_backward(const void *dy, const void *y, void *dx, int64_t count, int dtype, OpsStream stream);

/* y[i] = residual[i] + keep[i] * x[i] / (1 - p). mask: one bit an element, LSB first, ceil(count / 8) bytes, bit = kept
 * (bits past count are zero). rng_state: int64[2], Philox seed and offset; element i draws from Philox4x32-10 with
 * counter (offset + i / 4) and subsequence 0, word i % 4; kept when word * 2^-32 >= p. Equal bits on every provider.
 * 0 <= p < 1. */
int ops_dropout_add(const void *x, const void *residual, void *y, uint8_t *mask, const int64_t *rng_state,
                    float probability, int64_t count, int dtype, OpsStream stream);

/* dx[i] = keep[i] * dy[i] / (1 - p). dx may be dy. */
int ops_dropout_backward(const void *dy, const uint8_t *mask, void *dx, float probability, int64_t count, int dtype,
                         OpsStream stream);

/* factors[b] = 1 / (1 - p) for sequences that are kept, else 0; FP32 [B]. rng_state: int64[2], Philox seed and offset;
 * sequence b draws as element b of ops_dropout_add does: from Philox4x32-10 with counter (offset + b / 4) and
 * subsequence 0, word b % 4; kept when word * 2^-32 >= p. Equal bits on every provider. 0 <= p < 1. */
int ops_drop_path_factors(const int64_t *rng_state, float probability, float *factors, int64_t sequences,
                          OpsStream stream);

/* y[t, :] = residual[t, :] + factors[sequence of t] * x[t, :], the product rounded before the sum. residual may be
 * null: then y[t, :] is the product alone, which is backward, too, with dy for x. x, residual and y [T, C] of dtype,
 * factors FP32 [B]. A factor of 0 leaves x[t, :] out, even NaN. y may be x or residual. layout is an OpsTokenLayout;
 * cu_seqlens int32 [B + 1] for OPS_THD, else null; extent is B for OPS_THD, the sequence length for OPS_BSHD, B for
 * OPS_SBHD; for the last two it divides `whole`. Tokens past cu_seqlens[B] take factor 0. Row t is token first + t of
 * `whole` tokens, to which the layout belongs: at least first + tokens. */
int ops_scale_sequences_add(const void *x, const void *residual, void *y, const float *factors,
                            const int32_t *cu_seqlens, int layout, int64_t first, int64_t tokens, int64_t whole,
                            int64_t extent, int64_t columns, int dtype, OpsStream stream);

/* Factors of token dropout: factors[t] = 0 where ids[t] == mask, else kept / (1 - m / n), n being the tokens of t's sequence and
 * m those of them that are mask; 0 for tokens of no sequence, and so for all of a sequence of masks alone. The product of each
 * token with its factor is ops_scale_sequences_add with OPS_BSHD and extent 1. ids int32 [T], factors FP32 [T]. Sequence b of B has
 * cu_seqlens[b + 1] - cu_seqlens[b] tokens from the start of its place on, in every layout: that of OPS_THD begins at
 * cu_seqlens_padded[b], or cu_seqlens[b] where that is null, as it is for the others; theirs have T / B tokens. Both arrays are int32
 * [B + 1] and do not decrease. kept: finite, at least 0. */
int ops_token_dropout_factors(const int32_t *ids, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded,
                              float *factors, float kept, int32_t mask, int layout, int64_t tokens, int64_t sequences,
                              OpsStream stream);

/* What a sequence gives of its tokens. */
typedef enum OpsPool {
  OPS_POOL_MEAN = 0,
  OPS_POOL_FIRST = 1,
  OPS_POOL_MAX = 2
} OpsPool;

/* Pooling by sequence: y[b, c] is the mean of x[t, c] over the tokens t of sequence b, that of its first token, or the largest,
 * NaN where one is NaN; 0 of a sequence without tokens. argument, for OPS_POOL_MAX, else null, receives the token that is largest,
 * the first of them; -1 without tokens. x [T, C], y [B, C], argument int32 [B, C]. Where the tokens of a sequence are:
 * ops_token_dropout_factors. Sums are FP32. */
int ops_sequence_pool_forward(const void *x, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded, void *y,
                              int32_t *argument, int pool, int layout, int64_t tokens, int64_t sequences, int64_t columns,
                              int dtype, OpsStream stream);

/* The gradient: dx[t, c] = dy[b, c] / n of each of the n tokens of b, or dy[b, c] of the first or of the one that argument names;
 * 0 elsewhere, also of tokens of no sequence. */
int ops_sequence_pool_backward(const void *dy, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded,
                               const int32_t *argument, void *dx, int pool, int layout, int64_t tokens, int64_t sequences,
                               int64_t columns, int dtype, OpsStream stream);

/* y[t, :] = table[ids[t] - first, :]; table [V, H], rows first..first+V-1 of a vocabulary, ids int32 [T], y [T, H]. A row
 * whose id is outside these is zero. first is at least 0, and 0 where the table has the whole vocabulary. */
int ops_embedding_forward(const void *table, const int32_t *ids, void *y, int64_t first, int64_t tokens,
                          int64_t vocabulary, int64_t hidden, int dtype, OpsStream stream);

/* gradient[v, :] = beta * gradient[v, :] + sum over t with ids[t] == first + v of dy[t, :]; gradient FP32 [V, H]; beta 0
 * writes without reading. The order of the sum is fixed: equal inputs give equal bits. */
int ops_embedding_backward(const void *dy, const int32_t *ids, float *gradient, float beta, int64_t first,
                           int64_t tokens, int64_t vocabulary, int64_t hidden, int dtype, OpsStream stream);

/* sum[c] = beta * sum[c] + sum over r of x[r, c]; x [R, C] of dtype, sum FP32 [C]; beta 0 writes without reading.
 * The order of the sum is fixed. */
int ops_row_sum(const void *x, float *sum, float beta, int64_t rows, int64_t columns, int dtype, OpsStream stream);

/* What a matrix product does with its sums. */
enum OpsEpilogue {
  OPS_EPILOGUE_NONE = 0,
  OPS_EPILOGUE_BIAS = 1,          /* d = sum + bias[n] */
  OPS_EPILOGUE_GELU = 2,          /* pre_gelu = sum, d = gelu(pre_gelu), the form with tanh; 16-bit types alone, as the next two */
  OPS_EPILOGUE_BIAS_GELU = 3,     /* pre_gelu = sum + bias[n], d = gelu(pre_gelu) */
  OPS_EPILOGUE_GELU_GRADIENT = 4, /* d = sum * gelu'(pre_gelu) */
  OPS_EPILOGUE_BIAS_GRADIENT = 5  /* d = sum, bias[m] = sum over k of a[k, m]; with trans_a, no FP8 */
};

/* How the sums of FP8 products are kept. */
enum OpsAccumulator {
  OPS_ACCUMULATOR_FAST = 0, /* by the tensor cores, which keep about 14 bits */
  OPS_ACCUMULATOR_SPLIT = 1 /* in FP32 from time to time */
};

/* Which of cuBLASLt's kernels computes a product. */
enum OpsProductPlan {
  OPS_PLAN_FIRST = 0,   /* the first that its heuristic names: the one that Transformer Engine takes */
  OPS_PLAN_MEASURED = 1 /* the fastest of the first eight, timed once */
};

/*
 * d[M, N] = epilogue(op(a)[M, K] op(b)[K, N]) + accumulate * d, row-major, sums in FP32 (TF32 products where all three are
 * FP32). The struct lies in host memory. d, and what the epilogue writes, share no byte with what is read. K is at least 1
 * where M and N are. FP8: a is [M, K] and b [N, K], not both E5M2, with trans_a 0, trans_b 1 and pointers to multiples of 16
 * bytes; K and the bytes of a row of d are multiples of 16; epilogues NONE and BIAS alone. Scaled by blocks N is a multiple of
 * 8, M where a is scaled by 1 x 128, and not both are scaled by 128 x 128.
 */
typedef struct OpsMatrixProduct {
  const void *a;                /* [M, K]; with trans_a [K, M] */
  const void *b;                /* [K, N]; with trans_b [N, K] */
  void *d;                      /* [M, N]; of a's type or FP32; of FP8 operands FP32, FP16 or BF16 */
  void *bias;                   /* [N], read; for BIAS_GRADIENT [M], written; of d's type, BF16 where FP8 gives FP32 */
  void *pre_gelu;               /* [M, N] of d's type; written by GELU and BIAS_GELU, read by GELU_GRADIENT */
  const float *a_scale_inverse; /* FP8: as Transformer Engine lays them out */
  const float *b_scale_inverse;
  void *workspace;              /* device memory for the kernels' own use */
  int64_t workspace_bytes;
  int64_t m, n, k;
  float accumulate; /* 0 writes without reading; else without an epilogue */
  int32_t trans_a;  /* 0 or 1 */
  int32_t trans_b;
  int32_t a_dtype; /* that of b, too, unless both are FP8 (7 is E4M3, 8 is E5M2) */
  int32_t b_dtype;
  int32_t d_dtype;
  int32_t a_scaling; /* NVTEScalingMode: 0 one scale, 2 by 1 x 128, 3 by 128 x 128; 0 without FP8 */
  int32_t b_scaling;
  int32_t epilogue;        /* OpsEpilogue */
  int32_t accumulator;     /* OpsAccumulator; not looked at without FP8; SPLIT by blocks */
  int32_t multiprocessors; /* how many the kernel is chosen for; 0: all */
  int32_t plan;            /* OpsProductPlan */
} OpsMatrixProduct;

/* Computes the product by cuBLASLt. Kernels are chosen once for a size, types, alignment, epilogue and device; the reference
 * has one. OPS_PLAN_MEASURED times them, which waits for the stream, at the first call of its kind that neither
 * accumulates nor is captured; until then it is as OPS_PLAN_FIRST. What was measured is kept in the cache folder for
 * later processes. No kernel adds up parts of a sum that were rounded to 16 bits. */
int ops_matrix_product(const OpsMatrixProduct *product, OpsStream stream);

/* Which norm. */
enum OpsNorm {
  OPS_LAYER_NORM = 0, /* with mean and beta */
  OPS_RMS_NORM = 1    /* without */
};

/*
 * A norm over rows, with the residual sum before it and FP8 behind it. The struct lies in host memory. C: a multiple of 16
 * bytes of elements, with FP8 of 16 elements, at most 16 KiB of them; pointers to dtype and FP8 are 16-byte aligned.
 * Forward looks at x to scale_inverse, backward at what it says below.
 */
typedef struct OpsResidualNorm {
  const void *x;        /* [R, C] */
  const void *bias;     /* [C], what the product before the sum leaves to it; null: none. Needs a residual */
  const void *residual; /* [R, C]; null: none */
  const void *gamma;    /* [C]; backward reads it, too */
  const void *beta;     /* [C]; not looked at for OPS_RMS_NORM */
  void *h;              /* [R, C]: (x + bias) + residual, written where there is a residual; may be x or residual. Backward
                           reads it: without a residual it is x */
  void *y;              /* [R, C]: the norm; null where only FP8 is wanted */
  float *mean;          /* FP32 [R]; not looked at for OPS_RMS_NORM; backward reads it and the next */
  float *inverse;       /* FP32 [R] */
  void *y8;             /* FP8 E4M3 [R, C]: y * scale before y is rounded, beyond the largest the largest; null: none */
  void *y8_transposed;  /* FP8 E4M3 [C, filled_rows]: its transpose, columns from R on 0; null: none */
  const float *scale;   /* [1]; null without FP8 */
  float *amax;          /* [1], raised to the largest magnitude of y, with FP8 before y is rounded; at least 0 before.
                           NaN does not count. null: none */
  float *scale_inverse; /* [1], receives 1 / scale; null: none */
  const void *dy;        /* [R, C]; from here on backward alone */
  const void *dresidual; /* [R, C], gradient of h from elsewhere; null: none */
  void *dh;              /* [R, C]; may be dresidual, dy or h */
  float *dgamma;         /* FP32 [C] */
  float *dbeta;          /* FP32 [C]; not looked at for OPS_RMS_NORM */
  int64_t rows;
  int64_t columns;
  int64_t filled_rows; /* R rounded up to a multiple of 16; looked at where y8_transposed is given */
  float epsilon;       /* above 0; forward alone */
  float accumulate;    /* what dgamma and dbeta are multiplied by before the sums are added; 0 writes without reading */
  int32_t kind;        /* OpsNorm */
  int32_t center;      /* 0; 1: the factor is 1 + gamma */
  int32_t dtype;
  int32_t multiprocessors; /* how many of the device the kernels are to fill; 0, or more than it has: all */
} OpsResidualNorm;

/* h = (x + bias) + residual, rounded once, or x + residual, or x, and its norm in one pass: with i = 1 / sqrt(average of
 * (h - m)^2 over the row + epsilon), m the row's mean or, for OPS_RMS_NORM, 0, and g = gamma + center: y[r, c] =
 * (h[r, c] - m) * i * g[c] + beta[c]. mean and inverse receive m and i. TE has norms, but neither the sum before nor the
 * transpose behind. */
int ops_residual_norm_forward(const OpsResidualNorm *norm, OpsStream stream);

/* dh = dresidual + the gradient of the norm's input; with n = (h - mean) * inverse and g = dy * (gamma + center):
 * dh[r, c] = dresidual[r, c] + inverse[r] * (g[r, c] - average of g over the row - n[r, c] * average of g * n), where
 * OPS_RMS_NORM has no average of g. The norm's own gradient is rounded to dtype before dresidual is added, as where TE's
 * norm writes it. dgamma[c] = accumulate * dgamma[c] + sum over r of dy * n, dbeta[c] = accumulate *
 * dbeta[c] + sum over r of dy. The order of sums is fixed; on a GPU that of dgamma and dbeta
 * depends on how many multiprocessors are filled, and no other result does. */
int ops_residual_norm_backward(const OpsResidualNorm *norm, OpsStream stream);

/* The function f of a gated activation y = f(a) b. */
enum OpsGate {
  OPS_GEGLU = 0,         /* GELU by tanh */
  OPS_GLU = 1,           /* sigmoid(a) */
  OPS_QGEGLU = 2,        /* a sigmoid(1.702 a) */
  OPS_REGLU = 3,         /* max(a, 0) */
  OPS_SREGLU = 4,        /* max(a, 0)^2 */
  OPS_SWIGLU = 5,        /* a sigmoid(a) */
  OPS_CLAMPED_SWIGLU = 6 /* y = m sigmoid(alpha m) (c + offset), m = min(a, limit), c = min(max(b, -limit), limit) */
};

/* The gradient of a gated activation in FP8, and its transpose, by one kernel: with x [R, 2C] = [a, b], dy [R, C], dx = [dy f'(a) b,
 * dy f(a)] is rounded to dtype; q [R, 2C] = dx * scale, beyond the largest FP8 number that number, and q_transposed [2C, R], both of
 * fp8 (7: E4M3, 8: E5M2). R and C: multiples of 16; pointers to dtype and FP8 are 16-byte aligned and overlap nothing that is
 * written. scale: FP32 [1]. amax: [1], at least 0 before, raised to the largest |dx|, for which NaN does not count; null: none.
 * scale_inverse: [1], receives 1 / scale; null: none. limit, alpha and offset: looked at for OPS_CLAMPED_SWIGLU alone, limit above 0.
 * TE's kernel that fuses as much does not round dx before it casts it, and TE for PyTorch, which does, takes two kernels. */
int ops_gated_gradient(const void *dy, const void *x, void *q, void *q_transposed, const float *scale, float *amax,
                       float *scale_inverse, int64_t rows, int64_t columns, int gate, float limit, float alpha,
                       float offset, int dtype, int fp8, OpsStream stream);

/* y[i] = beta * y[i] + x[i]; x of dtype, y FP32; beta 0 writes without reading. */
int ops_accumulate(const void *x, float *y, float beta, int64_t count, int dtype, OpsStream stream);

/* y[i] = x[i] rounded to nearest even in y_dtype. */
int ops_cast(const void *x, int x_dtype, void *y, int y_dtype, int64_t count, OpsStream stream);

/* Masked cross-entropy over the first `classes` of `stride` columns. With e = label_smoothing, within [0, 1], the loss of
 * a token is l_t = logsumexp(z_t) - (1 - e) * z_t[label] - e * (average of z_t over the classes), for labels in
 * 0..classes-1; other labels are ignored, and l_t is 0. log_sum_exp: FP32 [T]. token_losses: FP32 [T], receives l_t; may
 * be null. counted: int32 [1] = tokens that are not ignored. loss: FP32 [1] = sum of l_t over them, divided by their
 * number, or, where divisor is not null, by divisor[0] (int32, such as the count of all micro-batches of a step); 0 when
 * that is not above 0. divisor is another address than counted. logits [T, stride]. The order of the sum is fixed. */
int ops_cross_entropy_forward(const void *logits, const int32_t *labels, const int32_t *divisor, float label_smoothing,
                              float *log_sum_exp, float *token_losses, float *loss, int32_t *counted, int64_t tokens,
                              int64_t classes, int64_t stride, int dtype, OpsStream stream);

/* dlogits[t, c] = f_t * (exp(z_t[c] - log_sum_exp[t]) - (1 - e) * [first + c == label] - e / all_classes) for tokens that are
 * not ignored and c < classes, else 0. Of all_classes classes the logits have classes first..first+classes-1: all where first
 * is 0 and all_classes is classes; there may be none. Labels outside 0..all_classes-1 are ignored. f_t = gradient * loss_scale[0] * token_gradients[t] / counted[0]; each of the three pointers may be
 * null and then is 1. loss_scale: FP32 [1]. token_gradients: FP32 [T], of the losses by token. counted: forward's, or its
 * divisor; all of dlogits is 0 when counted[0] is not above 0. dlogits may be logits. */
int ops_cross_entropy_backward(const void *logits, const int32_t *labels, const float *log_sum_exp,
                               const int32_t *counted, float gradient, const float *loss_scale,
                               const float *token_gradients, float label_smoothing, void *dlogits, int64_t tokens,
                               int64_t classes, int64_t stride, int64_t first, int64_t all_classes, int dtype,
                               OpsStream stream);

/* Cross-entropy of logits whose classes are divided among ranks, in three steps. The first `classes` of `stride` columns of
 * a rank are its classes; it may have none. The results of the first two steps are reduced over the ranks before the next
 * one. Gradients: ops_cross_entropy_backward.
 *
 * maximum[t] = max of z_t over this rank's classes, NaN left out; -infinity where it has none. maximum: FP32 [T], to be
 * reduced by its maximum. */
int ops_vocabulary_cross_entropy_maximum(const void *logits, float *maximum, int64_t tokens, int64_t classes,
                                         int64_t stride, int dtype, OpsStream stream);

/* sums[0, t] = sum of exp(z_t - m_t) over this rank's classes, where m_t is maximum[t], or 0 where that is infinite;
 * sums[1, t] = z_t[label - first] where that is a class of this rank, else 0; and, where label_smoothing is not 0,
 * sums[2, t] = 2^-32 times the sum of z_t over its classes, which overflows for no finite logits. The rank's first class is
 * number `first`. maximum: FP32 [T], of all ranks. sums: FP32 [2, T] or, with label_smoothing, [3, T], to be added up. The
 * order of a sum is fixed. */
int ops_vocabulary_cross_entropy_sums(const void *logits, const int32_t *labels, const float *maximum,
                                      float label_smoothing, float *sums, int64_t tokens, int64_t classes,
                                      int64_t stride, int64_t first, int dtype, OpsStream stream);

/* What ops_cross_entropy_forward gives, of maximum and sums of all ranks: log_sum_exp[t] = m_t + log(sums[0, t]), and with
 * e = label_smoothing the loss l_t = log_sum_exp[t] - (1 - e) * sums[1, t] - e * 2^32 * sums[2, t] / classes of
 * labels in 0..classes-1. classes: of all ranks together. divisor, token_losses, loss and counted as there. */
int ops_vocabulary_cross_entropy_loss(const float *maximum, const float *sums, const int32_t *labels,
                                      const int32_t *divisor, float label_smoothing, float *log_sum_exp,
                                      float *token_losses, float *loss, int32_t *counted, int64_t tokens,
                                      int64_t classes, OpsStream stream);

/* y[r, :] = x[index[r], :]; x [x_rows, C], y [R, C]. A row whose index is outside 0..x_rows-1 becomes zero. */
int ops_gather_rows(const void *x, const int32_t *index, void *y, int64_t rows, int64_t columns, int64_t x_rows,
                    int dtype, OpsStream stream);

/* y[index[r], :] = x[r, :]; x [R, C], y [y_rows, C]; indices outside 0..y_rows-1 are skipped, other rows of y stay.
 * Indices must be distinct. */
int ops_scatter_rows(const void *x, const int32_t *index, void *y, int64_t rows, int64_t columns, int64_t y_rows,
                     int dtype, OpsStream stream);

/* Which two of a head's r rotated elements are pair i, and whose angle it takes. */
enum OpsPairing {
  OPS_HALVES = 0,     /* i and i + r/2, angles[p, i]: TE's layout concat(f, f) */
  OPS_INTERLEAVED = 1 /* 2i and 2i + 1, angles[p, 2i]: TE's layout with each angle twice in a row */
};

/*
 * A rotation of query and key, in host memory. A token has `heads` heads of queries, `kv_heads` of keys and as many of
 * values, of head_dim elements each. With position p, pair (a, b) of the first rotated_dim elements of a head of queries
 * or keys becomes (a cos - b sin, b cos + a sin) of its angle; the other elements and the values stay. Tokens that
 * belong to no sequence, and positions outside 0..positions-1, are not rotated.
 */
typedef struct OpsRotary {
  const int32_t *cu_seqlens;      /* [B + 1] for OPS_THD, else null */
  const int32_t *start_positions; /* [B], added to the positions of a sequence; null: 0 */
  const float *angles;            /* FP32 [positions, rotated_dim]; not looked at where rotated_dim is 0 */
  int64_t tokens;
  int64_t extent; /* B for OPS_THD, the sequence length for OPS_BSHD, B for OPS_SBHD; of the last two tokens is a multiple */
  int64_t positions;
  int64_t heads;       /* of queries, at most 65535 */
  int64_t kv_heads;    /* of keys, and of values: at most 65535; 0: the buffer holds queries alone */
  int64_t head_dim;    /* even, 2 to 8192 */
  int64_t rotated_dim; /* even, 0 to head_dim; 0: nothing is rotated */
  int32_t layout;      /* OpsTokenLayout */
  int32_t pairing;     /* OpsPairing */
  int32_t direction;   /* +1 forward, -1 backward: the inverse rotation */
  int32_t dtype;
} OpsRotary;

/* Rotates in place inside qkv [T, heads + 2 kv_heads, d]: of each token all queries, then all keys, then all values.
 * TE rotates only into a second, unpacked buffer for packed tokens. */
int ops_rotary_packed(void *qkv, const OpsRotary *rotary, OpsStream stream);

/* q [T, heads, d], k and v [T, kv_heads, d] = the parts of qkv, laid out as ops_rotary_packed has it; query and key
 * rotated. None of them overlaps qkv. TE splits dense tokens alone. */
int ops_rotary_split(const void *qkv, void *q, void *k, void *v, const OpsRotary *rotary, OpsStream stream);

/* qkv = q, k and v side by side, query and key rotated: with direction -1 the gradient of ops_rotary_split. */
int ops_rotary_join(const void *q, const void *k, const void *v, void *qkv, const OpsRotary *rotary, OpsStream stream);

/* Elements from one sequence, one token and one head to the next; a head's columns lie side by side. */
typedef struct OpsStrides {
  int64_t sequence; /* not looked at when packed */
  int64_t token;
  int64_t head;
} OpsStrides;

/* The diagonal that windows are counted from: the key on which query i stands. */
enum OpsAlignment {
  OPS_TOP_LEFT = 0,     /* key i: the first query stands on the first key */
  OPS_BOTTOM_RIGHT = 1, /* key i + keys - queries: the last query stands on the last key */
  OPS_BY_PLACE = 2      /* the key that has the query's number in its whole sequence, as OpsPlace says */
};

/* What the sum of a softmax has besides the exponentials of its scores. */
enum OpsSoftmax {
  OPS_SOFTMAX_VANILLA = 0,    /* nothing */
  OPS_SOFTMAX_OFF_BY_ONE = 1, /* 1 */
  OPS_SOFTMAX_LEARNABLE = 2   /* exp(sinks[h]) */
};

/* Where a bias is added to a score, by the names of Transformer Engine's NVTE_Bias_Type. */
enum OpsBiasType {
  OPS_POST_SCALE_BIAS = 0, /* s = s + bias, behind soft cap and ALiBi */
  OPS_PRE_SCALE_BIAS = 1   /* s = scale * (q_i . k_j + bias), before them */
};

/* The shape [sequences, heads, queries, keys] of a dense tensor with an element for each score. */
typedef struct OpsScoreShape {
  int64_t sequences; /* B, or 1: all sequences share the elements */
  int64_t heads;     /* those of the queries, or 1: all heads share them */
  int64_t queries;   /* at least `length` of OpsAttention */
  int64_t keys;      /* at least `kv_length` */
} OpsScoreShape;

/*
 * What becomes of a score s = scale * q_i . k_j before the softmax, in this order; all zero: nothing.
 *   soft cap  s = softcap * tanh(s / softcap)
 *   ALiBi     s = s - slope_h * |i + d - j|, d as alibi_alignment says: 0, or the sequence's keys less its queries
 *   bias      s = s + bias[b, h, i, j], or with OPS_PRE_SCALE_BIAS first of all s = scale * (q_i . k_j + bias[b, h, i, j])
 *   mask      s = -infinity where mask[b, h, i, j] is not 0
 * i and j count from the sequence's first query and key, packed ones too.
 */
typedef struct OpsScores {
  const float *alibi_slopes; /* FP32 [alibi_sequences, heads]; null: no ALiBi */
  const void *bias;          /* of dtype; null: none */
  void *d_bias;              /* like bias; backward writes it all, zeros where no score is. Null: not wanted */
  const uint8_t *mask;       /* null: none */
  const float *sinks;        /* FP32 [heads]; looked at for OPS_SOFTMAX_LEARNABLE alone, and so the next one */
  float *d_sinks;            /* FP32 [heads]; backward writes it. Null: not wanted */
  OpsScoreShape bias_shape;  /* not looked at without bias */
  OpsScoreShape mask_shape;  /* not looked at without mask */
  int64_t alibi_sequences;   /* 1, or B: slopes of each sequence */
  float softcap;             /* 0: none */
  int32_t alibi_alignment;   /* OpsAlignment */
  int32_t softmax_type;      /* OpsSoftmax */
  int32_t bias_type;         /* OpsBiasType; not looked at without bias */
} OpsScores;

/* Where the sequences, queries, keys and heads of a call stand among the whole of which it is a part, such as that of one of
 * several ranks. The arrays are int32 [B] on the device, from 0 to INT32_MAX / 4; null: sequence b is number b, its first query and
 * first key are those of the whole sequence. All zero: the call is the whole. */
typedef struct OpsPlace {
  const int32_t *sequences;     /* number of each sequence */
  const int32_t *first_queries; /* number within its whole sequence of each sequence's first query */
  const int32_t *first_keys;    /* the same of its first key */
  int64_t heads;                /* heads of queries of the whole; 0: `heads` of the call */
  int64_t first_head;           /* number of the call's first head of queries among them */
} OpsPlace;

/*
 * Attention over B sequences, in host memory. Sequence b has cu_seqlens_q[b + 1] - cu_seqlens_q[b] queries, taken into
 * 0..length, and cu_seqlens_kv[b + 1] - cu_seqlens_kv[b] keys, taken into 0..kv_length; the two arrays may be one.
 * Query head h reads key head h / (heads / kv_heads). Row i of sequence b and head h starts, in elements after the
 * pointer, at
 *   packed: token * (start[b] + i) + head * h,   dense: sequence * b + token * i + head * h
 * of the tensor's strides, start being cu_seqlens, or cu_seqlens_padded where that is not null: then gaps between sequences
 * belong to the one before. Tensors of queries go by `packed` and cu_seqlens_q, those of keys and values by `kv_packed`
 * and cu_seqlens_kv. Each pointer is to elements of dtype unless it says otherwise.
 */
typedef struct OpsAttention {
  const void *q;                /* strides: query. Forward and backward read q, k and v */
  const void *k;                /* strides: key */
  const void *v;                /* strides: value */
  void *o;                      /* strides: output; forward writes, backward reads */
  float *log_sum_exp;           /* FP32, strides: statistics; forward writes, backward reads */
  const void *d_o;              /* strides: output. Backward alone looks at this, reading, and at the next four */
  void *dq;                     /* strides: d_query. Backward writes dq, dk, dv; they overlap nothing that it reads */
  void *dk;                     /* strides: d_key */
  void *dv;                     /* strides: d_value */
  float *delta;                 /* FP32, strides: statistics; scratch that backward may write */
  const int32_t *cu_seqlens_q;  /* [B + 1], starts at 0 and does not decrease; so the next one */
  const int32_t *cu_seqlens_kv; /* [B + 1] */
  const int32_t *cu_seqlens_q_padded;  /* [B + 1], as cu_seqlens_q, none below it; null, or not packed: no gaps */
  const int32_t *cu_seqlens_kv_padded; /* the same of keys and values */
  const int64_t *rng_state;     /* [2], Philox seed and offset; not looked at without dropout */
  OpsStrides query;
  OpsStrides key;
  OpsStrides value;
  OpsStrides output;
  OpsStrides d_query;
  OpsStrides d_key;
  OpsStrides d_value;
  OpsStrides statistics;
  int64_t sequences;    /* B */
  int64_t length;       /* of queries. packed: no sequence is longer, its gap included; dense: the padded length */
  int64_t kv_length;    /* of keys and values, likewise */
  int64_t heads;        /* of queries and outputs: a multiple of kv_heads */
  int64_t kv_heads;     /* of keys and values */
  int64_t head_dim;     /* of queries and keys: a multiple of 8, at most 256 */
  int64_t value_dim;    /* of values and outputs: likewise */
  int64_t window_left;  /* keys before the diagonal that a query sees, -1 all */
  int64_t window_right; /* keys after the diagonal that a query sees, -1 all; 0 is a causal mask */
  float scale;          /* of query times key, above 0 */
  float dropout;        /* probability of dropping a weight, at least 0 and below 1 */
  int32_t alignment;    /* OpsAlignment: where the diagonal lies */
  int32_t dtype;        /* of q, k, v, o and their gradients */
  int32_t packed;       /* 1: cu_seqlens_q are token offsets too; 0: sequences are `sequence` strides apart */
  int32_t kv_packed;    /* the same of cu_seqlens_kv */
  OpsScores scores;     /* what becomes of scores before the softmax */
  OpsPlace place;       /* what dropout, and OPS_BY_PLACE, count from */
} OpsAttention;

/* o_i = sum over j of m_ij p_ij v_j with p_ij = exp(s_ij - L_i), s_ij = scale * q_i . k_j for keys j that query i sees,
 * changed as `scores` says, and L_i = log(sum over j of exp(s_ij)), or with the softmax's other term in that sum, which
 * goes to log_sum_exp. m_ij is 0 or 1 / (1 - dropout): element (b, h, i,
 * j), h being the query's head, is kept when word j % 4 of Philox4x32-10 times 2^-32 is at least `dropout`; its key is
 * the seed, the high word xored with the offset's high word, its counter {j / 4, low word of the offset, i,
 * b * heads + h}, where b, h, i, j and heads are those of the whole, as `place` says. Equal bits on every provider. A query that sees no key,
 * and dense rows and gaps past their sequence's queries, get o = 0 and L = -infinity (the first L = log of the softmax's
 * other term); packed rows past the last start stay as they are. Takes what cuDNN's fused attention does not: FP32, dropout
 * under a bottom-right causal mask, soft caps, masks by element, bias and sinks of packed tokens. */
int ops_attention_forward(const OpsAttention *attention, OpsStream stream);

/* With delta_i = d_o_i . o_i and ds_ij = p_ij (m_ij (d_o_i . v_j) - delta_i): dv_j = sum over i of m_ij p_ij d_o_i,
 * dq_i = scale * sum over j of t_ij ds_ij k_j, dk_j = scale * sum over i of t_ij ds_ij q_i, t_ij being the derivative of the
 * soft cap, else 1; the sums of dv and dk go over all heads that read the key head, too. d_bias is ds, before the scale
 * scale * t ds, summed over what shares an element; d_sinks_h = -sum over b, i of exp(sinks_h - L_i) delta_i. A query that sees no key, a key that no query
 * sees, dense rows past their sequence's length, and gaps get 0. The order of the sums is fixed: equal inputs give equal bits. */
int ops_attention_backward(const OpsAttention *attention, OpsStream stream);

/* Attention over some keys merged with that over others, of the same queries. With m = log(exp(L) + exp(l)), L being
 * merged_log_sum_exp[r] and l log_sum_exp[r]: merged[r, c] = exp(L - m) merged[r, c] + exp(l - m) partial[r, c], then L = m.
 * A row is a head of a query; rows of no key have -infinity, and the output there is not looked at; where both have, merged is 0.
 * `first` 1: L counts as -infinity, and neither it nor merged is read. partial is of dtype, the rest FP32. */
int ops_attention_merge(const void *partial, const float *log_sum_exp, float *merged, float *merged_log_sum_exp,
                        int64_t rows, int64_t columns, int first, int dtype, OpsStream stream);

/* scale[0] = min(1, max_norm / (norm[0] + 1e-6)), max_norm > 0; a NaN or infinite norm gives 0. */
int ops_clip_scale(const float *norm, float max_norm, float *scale, OpsStream stream);

/* Where ops_adam keeps weights in FP32. */
enum OpsMaster {
  OPS_MASTER_NONE = 0,     /* the weights are FP32 themselves; master is not looked at */
  OPS_MASTER_FLOAT32 = 1,  /* master: FP32, from which weights of 16 bits are rounded to nearest even */
  OPS_MASTER_REMAINDER = 2 /* master: the low 16 bits of each; the weight, BF16, is the upper half plus the highest of
                              those bits: rounded to nearest, ties away from zero */
};

/* One step of Adam over `count` elements, whose numbers lie on the device: with g = gradient_scale[0] * gradient[i], to
 * which weight_decay * w is added when decoupled is 0, m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
 * u = (m / c1) / (sqrt(v / c2) + epsilon) with c = 1 - beta^step[0], or 1 when bias_correction is 0, and
 * w = w - rate[0] * (u + decay), where decay is weight_decay * w when decoupled is 1, else 0. Nothing changes where
 * skip[0] is 1. gradient of gradient_dtype; m and v are mean and square, of moment_dtype (float32 or bfloat16), read and written;
 * weight of weight_dtype; masters: an OpsMaster. step and skip: int32 [1]; rate and gradient_scale: FP32 [1]. None of what
 * is written overlaps anything else. TE's Adam has one of these things at a time: numbers on the device and the skip only
 * with gradients of the weights' type, BF16 moments and remainders only with numbers of the host. */
int ops_adam(const void *gradient, void *weight, void *mean, void *square, void *master, const float *rate,
             const int32_t *step, const float *gradient_scale, const int32_t *skip, float beta1, float beta2,
             float epsilon, float weight_decay, int decoupled, int bias_correction, int64_t count, int gradient_dtype,
             int weight_dtype, int moment_dtype, int masters, OpsStream stream);

/* Elements of a block of ops_adam_ranges. */
enum OpsAdamBlock { OPS_ADAM_BLOCK = 1024 };

/* A range of elements that ops_adam_ranges updates; the addresses are those of ops_adam. */
typedef struct OpsAdamRange {
  const void *gradient;
  void *weight;
  void *mean;
  void *square;
  void *master;
  const float *rate;
  int64_t count;
  int64_t first_block; /* the blocks of all ranges before it; a range has count / OPS_ADAM_BLOCK of them, rounded up */
  float weight_decay;
} OpsAdamRange;

/* ops_adam over many ranges, all with gradients, weights, moments and masters of the same types, in one kernel. ranges: [range_count] on
 * the device, read when the step runs; blocks: those of all ranges, of which one with count 0 has none. Both are below 2^31.
 * What one range writes overlaps no other one. What the table says is checked by the reference alone: a GPU library cannot
 * read it. */
int ops_adam_ranges(const OpsAdamRange *ranges, int64_t range_count, int64_t blocks, const int32_t *step,
                    const float *gradient_scale, const int32_t *skip, float beta1, float beta2, float epsilon,
                    int decoupled, int bias_correction, int gradient_dtype, int weight_dtype, int moment_dtype,
                    int masters, OpsStream stream);

/* What ops_optimizer_step computes. g is gradient_scale[0] * gradient[i], rate and decay are the range's, w is the FP32 weight. */
enum OpsMethod {
  OPS_METHOD_SGD = 0,      /* g += decay w; first = g when step[0] or beta1 says so, else beta1 first + (1 - beta2) g; w -= rate first */
  OPS_METHOD_NESTEROV = 1, /* the same with w -= rate (g + beta1 first) */
  OPS_METHOD_LION = 2, /* w -= rate (sign(beta1 first + (1 - beta1) g) + decay w); first = beta2 first + (1 - beta2) g */
  OPS_METHOD_ADAM = 3, /* ops_adam, with first as mean and second as square */
  OPS_METHOD_SCHEDULE_FREE = 4,      /* x is master, z first, v second, y = (1 - beta1) z + beta1 x: v = beta2 v + (1 - beta2) g^2;
                                        z -= rate (g / (sqrt(v / (1 - beta2^step[0])) + epsilon) + decay y); x += share (z - x);
                                        weight = y of the new x and z, rounded */
  OPS_METHOD_SCHEDULE_FREE_POINT = 5, /* weight = y, rounded, and nothing else */
  OPS_METHOD_AVERAGE = 6 /* first += (1 - beta1) (w - first), and nothing else; gradient and rate are not looked at */
};

/* Elements of a range, from its first one on, that share the scale of states of eight bits. */
enum OpsScaledBlock { OPS_SCALED_BLOCK = 256 };

/* A range of elements that ops_optimizer_step updates. Pointers that a method does not name are not looked at. */
typedef struct OpsStepRange {
  const void *gradient; /* of gradient_dtype */
  void *weight;
  void *master; /* of an OpsMaster; FP32 for schedule-free methods, also beside FP32 weights */
  void *first;
  void *second;
  float *first_scale; /* of states of eight bits, one for each OPS_SCALED_BLOCK elements */
  float *second_scale;
  const float *rate;
  const float *share; /* of schedule-free methods */
  int64_t count;
  int64_t first_block; /* the blocks of all ranges before it; a range has count / OPS_ADAM_BLOCK of them, rounded up */
  float weight_decay;
} OpsStepRange;

/* One step of `method`, an OpsMethod, over many ranges in one kernel, with the table and the numbers of ops_adam_ranges. SGD takes
 * first as its gradient where beta1 is 0 or step[0] is 1; decoupled and bias_correction are ADAM's, epsilon its and SCHEDULE_FREE's.
 * state_dtype, of first and second: float32; also bfloat16 for LION; byte for LION and ADAM. A byte is a code for a number within
 * [-1, 1], times the scale of its block: 0; 1; and 10^(d - 6) (0.1 + 0.9 (i + 1/2) / n) with d from 0 to 6 and i below n, which
 * is 2^d with both signs for first, and 2^(d + 1) for second. Codes count these numbers in rising order, those of first from -127 on, modulo 256, so that the
 * byte 0 is the number 0. A step takes the
 * largest magnitude of a block's new states as the scale, and the nearest numbers, the smaller of two. */
int ops_optimizer_step(const OpsStepRange *ranges, int64_t range_count, int64_t blocks, const int32_t *step,
                       const float *gradient_scale, const int32_t *skip, int method, float beta1, float beta2, float epsilon,
                       int decoupled, int bias_correction, int gradient_dtype, int weight_dtype, int state_dtype,
                       int masters, OpsStream stream);

/* The share of this step in the averages of `count` groups: with sums FP32 [count, 2], the sum of weights and the highest rate so far,
 * highest = max(highest, rates[i]), weight = step[0]^power highest^rate_power, sum += weight, shares[i] = weight / sum, or 0 where the sum
 * is 0. Nothing changes where skip[0] is 1. power, rate_power >= 0. */
int ops_average_share(const float *rates, const int32_t *step, const int32_t *skip, float *sums, float *shares, float power,
                      float rate_power, int64_t count, OpsStream stream);

/* The parts of a step of ops_adafactor, in their order. Ranks that have parts of matrices sum what SUMS and UPDATES write in between. */
enum OpsAdafactorPhase {
  OPS_ADAFACTOR_SUMS = 0,    /* of the range's rows and columns: row_squares = sum g^2, row_weights = sum w^2, column_squares = sum g^2 */
  OPS_ADAFACTOR_FACTORS = 1, /* of whole matrices R x C: with b = 1 - step[0]^-power, row = b row + (1 - b) (row_squares / C + epsilon1),
                                column = b column + (1 - b) (column_squares / R + epsilon1), numbers[0] = average of row,
                                numbers[1] = size, which is the relative rate times, where scaled is 1, max(epsilon2, RMS of w) */
  OPS_ADAFACTOR_UPDATES = 2, /* of the range's rows: row_updates = sum u^2 with u = g / sqrt(row / numbers[0]) / sqrt(column) */
  OPS_ADAFACTOR_CLIP = 3,    /* of whole matrices: numbers[2] = size / max(1, RMS of u / threshold) */
  OPS_ADAFACTOR_STEP = 4     /* of the range: d = numbers[2] u; with beta1, mean = beta1 mean + (1 - beta1) d, and d = mean;
                                w = w - size decay w - d */
};

/* What ops_adafactor makes of a learning rate. */
enum OpsRelativeRate {
  OPS_RATE_GIVEN = 0,   /* itself */
  OPS_RATE_CAPPED = 1,  /* min(rate, 1 / sqrt(step)) */
  OPS_RATE_WARM_UP = 2  /* min(rate step / 10000, 1 / sqrt(step)) */
};

/* A range of neighbours of a matrix for ops_adafactor, or a whole matrix. The matrix has `rows` x `whole_columns` elements, of which
 * ranks that split layers have some rows and columns: their matrix has `columns` columns, and the range `count` elements of it from
 * `first` on. Pointers that a phase does not name are not looked at. A vector is a matrix of one row, without row factors. */
typedef struct OpsAdafactorRange {
  const float *gradient; /* [count], as weight, master and mean */
  void *weight;
  void *master; /* of an OpsMaster */
  float *mean;  /* where beta1 is above 0 */
  const int32_t *row_map; /* which rows and columns of the whole matrix those of this rank are; null: the same */
  const int32_t *column_map;
  float *row_squares; /* [rows], as row_weights, row_updates and row */
  float *row_weights;
  float *row_updates;
  float *column_squares; /* [whole_columns], as column */
  float *row;
  float *column;
  float *numbers; /* [3] */
  const float *rate;
  int64_t first, count, columns, rows, whole_columns;
  float weight_decay;
} OpsAdafactorRange;

/* A phase of Adafactor over many ranges of weights of one type. ranges: [range_count] on the device, read when the step runs;
 * range_count is at most 65535. step, gradient_scale and skip as in ops_adam; g is gradient_scale[0] times the gradient. phase: an
 * OpsAdafactorPhase. power, epsilon1, epsilon2 >= 0, threshold > 0. relative: an OpsRelativeRate. SUMS and UPDATES write the rows and
 * columns that the range has elements of, each of which one range of a call has alone. Fixed order of sums. What the table says is checked
 * by the reference alone. */
int ops_adafactor(const OpsAdafactorRange *ranges, int64_t range_count, const int32_t *step, const float *gradient_scale,
                  const int32_t *skip, int phase, float power, float epsilon1, float epsilon2, float threshold, float beta1,
                  int relative, int scaled, int weight_dtype, int masters, OpsStream stream);

/* Takes the loss scale out of a gradient norm: norm[0] = norm[0] / loss_scale[0] and, of that,
 * factor[0] = min(1, max_norm / (norm[0] + 1e-6)) / loss_scale[0], max_norm > 0. Where the norm is NaN or infinite,
 * factor[0] = 0 and skip[0] (int32) = 1; else skip[0] stays as it is. */
int ops_loss_scale_clip(float *norm, const float *loss_scale, float max_norm, float *factor, int32_t *skip,
                        OpsStream stream);

/* Ends a step under loss scaling. counts: int32 [2], the steps taken since the scale changed last, and the steps skipped
 * so far. Where skip[0] is 1: loss_scale[0] *= backoff_factor, counts[0] = 0, counts[1] += 1. Else step[0] += 1,
 * counts[0] += 1 and, when that reaches growth_interval, loss_scale[0] *= growth_factor and counts[0] = 0. A product that
 * is no normal FP32 number leaves the scale as it is. growth_factor > 1, 0 < backoff_factor < 1, growth_interval > 0. */
int ops_loss_scale_update(const int32_t *skip, float *loss_scale, int32_t *counts, int32_t *step, float growth_factor,
                          float backoff_factor, int32_t growth_interval, OpsStream stream);

/* Takes back what a skipped step changed: values[i] = saved[i] where skip[0] (int32 [1]) is 1; else values stay as they
 * are. saved, values: FP32 [count], which do not overlap. */
int ops_loss_scale_restore(const int32_t *skip, const float *saved, float *values, int64_t count, OpsStream stream);

/* How well FP8 numbers stand for the ones that they were made of: x [R, C] of dtype, and q [R, C] FP8 (7: E4M3, 8: E5M2), which
 * stands for q * s. scaling 0: one s, scale_inverse[0]; 2: s of 128 neighbours in a row, scale_inverse[c / 128 * stride + r];
 * 3: of 128 x 128, scale_inverse[r / 128 * stride + c / 128]; stride is looked at for 2 and 3. statistics: FP32 [6], written:
 * largest |x|; share of x that are not 0 where q is 0; share of |x| beyond 1.001 times the largest q * s, for a scale found
 * from x is rounded; average of (x - q s)^2; smallest and largest 1 / s. NaN counts as nothing, infinite x in the third alone. Without elements all are 0. Fixed order of
 * sums. */
int ops_quantization_statistics(const void *x, const void *q, const float *scale_inverse, float *statistics, int64_t rows,
                                int64_t columns, int64_t stride, int scaling, int dtype, int fp8, OpsStream stream);

/* y[r, c] = q[r, c] s, rounded to nearest even: what FP8 numbers with a scale for each block stand for. q [R, C] of fp8, scale_inverse, stride
 * and scaling (2 or 3) as for ops_quantization_statistics; y [R, C] of dtype, which overlaps nothing else. NaN stays. TE's dequantize takes one
 * scale a tensor alone. */
int ops_dequantize_blocks(const void *q, const float *scale_inverse, void *y, int64_t rows, int64_t columns, int64_t stride,
                          int scaling, int dtype, int fp8, OpsStream stream);

/* Begins a range of host time called `name` (host string) on the calling thread, inside those that are open there.
 * Profilers that listen to NVTX 3, such as Nsight Systems, show it above what is enqueued until its end. Without a
 * profiler, and in the reference, the open ranges are counted and nothing more. Works before ops_open. */
int ops_range_push(const char *name);

/* Ends the range that the calling thread began last. OPS_INVALID_ARGUMENT when the thread has none open. */
int ops_range_pop(void);

/* What OpsActivity is of. */
enum OpsActivityKind { OPS_ACTIVITY_KERNEL = 0, OPS_ACTIVITY_COPY = 1, OPS_ACTIVITY_FILL = 2, OPS_ACTIVITY_RANGE = 3 };

/* A kernel, copy or fill that a GPU ran, or a range of host time. */
typedef struct OpsActivity {
  const char *name; /* host string */
  int64_t begin;    /* nanoseconds */
  int64_t end;      /* 0 for a range that was open still */
  int64_t range;    /* the number of the range that enqueued it, or that it was begun in; 0 for none */
  int64_t number;   /* of a range, from 1 on */
  int64_t bytes;    /* of copies and fills */
  int64_t stream;   /* CUPTI's number of the stream; of a range that of its thread */
  int32_t device;
  int32_t kind; /* OpsActivityKind */
} OpsActivity;

/* Records from now on the ranges of all threads and, through NVIDIA's CUPTI, what GPUs run. cupti (host string): the library's
 * path; "" records ranges alone, as the reference always does. now (host, written): the time by the clock of the records.
 * OPS_NOT_OPEN when the library cannot be opened, OPS_INVALID_ARGUMENT while another recording runs. */
int ops_activity_begin(const char *cupti, int64_t *now);

/* Ends the recording: what is not done yet is not recorded, so wait for the devices before. count (host, written): records,
 * dropped (host, written): those that there was no room for. */
int ops_activity_end(int64_t *count, int64_t *dropped);

/* Copies the first `count` records of the recording that has ended to activities (host [count]). Names stay until the next
 * ops_activity_begin. */
int ops_activity_read(OpsActivity *activities, int64_t count);

#ifdef __cplusplus
}
#endif

#endif /* CHAGRES_OPS_H */
