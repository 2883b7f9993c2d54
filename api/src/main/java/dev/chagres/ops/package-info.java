/**
 * Operations that a training step needs and Transformer Engine lacks, as Java methods over tensors, one class a family of
 * {@code ops.h}.
 *
 * <p>Each method checks types, shapes, devices and shared memory, and enqueues: the result is an argument, the stream comes
 * last, nothing waits and no call makes garbage. What is written shares no byte with what is read unless the method says
 * that it may. A tensor without elements is no error. Arithmetic is FP32 whatever the types, and sums have a fixed order:
 * equal inputs give equal bits.
 *
 * <p>Letters: T tokens, V rows of a table, H hidden size, R rows, C columns, B sequences, S padded length, h heads, d size
 * of a head.
 */
@NullMarked
package dev.chagres.ops;

import org.jspecify.annotations.NullMarked;
