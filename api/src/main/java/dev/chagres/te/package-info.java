/**
 * Transformer Engine's functions as Java methods over tensors, one class a header of its C API: {@link
 * dev.chagres.te.Gemm}, {@link dev.chagres.te.Cast}, {@link dev.chagres.te.Transpose}, {@link
 * dev.chagres.te.RecipeUpdates}, {@link dev.chagres.te.Normalization}, {@link dev.chagres.te.Activation}, {@link
 * dev.chagres.te.FusedAttention}, {@link dev.chagres.te.FusedRope}, {@link dev.chagres.te.FusedQkvRope}, {@link dev.chagres.te.MultiTensor},
 * {@link dev.chagres.te.Padding}, {@link dev.chagres.te.Dropout}, {@link dev.chagres.te.Topk}.
 *
 * <p>Each method checks types, shapes, devices and shared memory, finds its workspace, and enqueues: the result is an
 * argument, the stream comes last, nothing waits and no call makes garbage. What is written shares no byte with what is
 * read unless the method says that it may. A tensor without elements is no error.
 *
 * <p>Letters: T tokens, H hidden size, F inner size, B sequences, S padded length, h heads, d size of a head.
 */
@NullMarked
package dev.chagres.te;

import org.jspecify.annotations.NullMarked;
