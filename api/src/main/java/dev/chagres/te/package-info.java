/**
 * Transformer Engine's functions as Java methods over tensors, one class or a few for each header of its C API:
 *
 * <ul>
 *   <li>{@code gemm.h}: {@link dev.chagres.te.Gemm}
 *   <li>{@code cast.h}: {@link dev.chagres.te.Cast}
 *   <li>{@code transpose.h}, {@code cast_transpose_noop.h}: {@link dev.chagres.te.Transpose}
 *   <li>{@code recipe.h}: {@link dev.chagres.te.RecipeUpdates}, {@link dev.chagres.te.PartialCast}
 *   <li>{@code normalization.h}: {@link dev.chagres.te.Normalization}, {@link dev.chagres.te.NormSwitches}
 *   <li>{@code activation.h}: {@link dev.chagres.te.Activation}, {@link dev.chagres.te.ClampedSwiglu}, {@link dev.chagres.te.SituGlu}, {@link
 *       dev.chagres.te.ScaledActivation}
 *   <li>{@code fused_attn.h}: {@link dev.chagres.te.FusedAttention}, {@link dev.chagres.te.ThdConversion}, {@link
 *       dev.chagres.te.ContextParallelThd}, {@link dev.chagres.te.ContextParallelCorrection}, {@link dev.chagres.te.FlashAttentionLayout}
 *   <li>{@code softmax.h}: {@link dev.chagres.te.Softmax}
 *   <li>{@code fused_rope.h}: {@link dev.chagres.te.FusedRope}, {@link dev.chagres.te.FusedQkvRope}
 *   <li>{@code dropout.h}: {@link dev.chagres.te.Dropout}
 *   <li>{@code hadamard_transform.h}: {@link dev.chagres.te.HadamardTransform}
 *   <li>{@code topk.h}: {@link dev.chagres.te.Topk}
 *   <li>{@code padding.h}: {@link dev.chagres.te.Padding}
 *   <li>{@code multi_tensor.h}: {@link dev.chagres.te.MultiTensor}, {@link
 *       dev.chagres.te.MultiTensorAdam}
 *   <li>{@code transformer_engine.h}: {@link dev.chagres.te.SplitsToOffsets}
 *   <li>{@code utils.h}: {@link dev.chagres.te.HostToDevice}
 * </ul>
 *
 * <p>Each method checks types, shapes, devices and shared memory, provides the workspace, and enqueues: outputs are arguments, the stream
 * comes last, no call waits or makes garbage. Outputs overlap no input unless the method says that they may. A tensor without elements is
 * no error.
 *
 * <p>Letters: T tokens, H hidden size, F inner size, B sequences, S padded length, h heads, d size of a head.
 */
@NullMarked
package dev.chagres.te;

import org.jspecify.annotations.NullMarked;
