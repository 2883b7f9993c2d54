/**
 * Operations that a training step needs and Transformer Engine lacks, as Java methods over tensors, one class per family of {@code ops.h}.
 *
 * <p>Each method checks types, shapes, devices and shared memory, and enqueues: outputs are arguments, the stream comes last, no call waits
 * or makes garbage. Outputs overlap no input unless the method says that they may. A tensor without elements is no error.
 *
 * <p>Arithmetic is FP32 whatever the types, but for {@link dev.chagres.ops.MatrixProduct}, whose kernels are cuBLASLt's, with TF32 for FLOAT32,
 * and {@link dev.chagres.ops.Attention} of 16 bits, most of which runs on tensor cores. Sums have a fixed order, so equal inputs give equal bits,
 * except for MatrixProduct.
 *
 * <p>Letters: T tokens, V rows of a table, H hidden size, R rows, C columns, B sequences, S padded length, h heads, d size
 * of a head.
 */
@NullMarked
package dev.chagres.ops;

import org.jspecify.annotations.NullMarked;
