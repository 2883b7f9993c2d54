package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import java.lang.foreign.MemorySegment;

/**
 * Loss scaling of many tensors at once: scaling by a factor of the host, and the norm of scaled gradients.
 *
 * <p>Threading: the device's thread. Work is enqueued on the given stream.
 *
 * <p>Source: {@code nvte_multi_tensor_scale_cuda} and {@code nvte_multi_tensor_unscale_l2norm_cuda} in TE's {@code
 * multi_tensor.h}.
 */
public final class MultiTensorScale {
    private MultiTensorScale() {}

    /**
     * Enqueues {@code y = scale x}, {@code nvte_multi_tensor_scale_cuda}. A graph replays the factor of its capture; {@link
     * MultiTensor#scaleTensor} reads one on the device.
     *
     * @param isInfinite INT32 [1]: receives 1 when an x is not finite, and else stays as it is
     * @param lists x and y, each of FLOAT32, BFLOAT16 or FLOAT16
     * @param scale any number
     * @throws IllegalArgumentException when lists, shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void scale(Tensor isInfinite, TensorLists lists, float scale, Stream stream) {
        MemorySegment array = MultiTensorChecks.scaled(isInfinite, lists, stream);
        if (lists.tensorCount() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_multi_tensor_scale_cuda(
                        MultiTensor.CHUNK,
                        isInfinite.handle(),
                        array,
                        lists.listCount(),
                        lists.tensorCount(),
                        scale,
                        stream.handle()),
                "te_multi_tensor_scale_cuda");
    }

    /**
     * Enqueues {@code norm = sqrt(sum of (invScale x)^2)} over all tensors of one list, {@code
     * nvte_multi_tensor_unscale_l2norm_cuda}. The tensors stay as they are.
     *
     * @param noopFlag INT32 [1]: receives 1 when a sum of squares is not finite, and else stays as it is
     * @param lists one list of floating-point numbers of one type
     * @param invScale factor, FLOAT32 [1]
     * @param partials FLOAT32 [{@link MultiTensor#NORM_PARTIALS}], scratch
     * @param norm FLOAT32 [1]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void unscaleL2norm(
            Tensor noopFlag, TensorLists lists, Tensor invScale, Tensor partials, Tensor norm, Stream stream) {
        MemorySegment array = MultiTensorChecks.norm(noopFlag, lists, partials, norm, stream);
        Checks.vector(stream, "invScale", invScale, DType.FLOAT32, 1);
        Checks.apart("noopFlag", noopFlag, "invScale", invScale);
        Checks.apart("partials", partials, "invScale", invScale);
        Checks.apart("norm", norm, "invScale", invScale);
        if (lists.tensorCount() == 0) {
            norm.zero(stream);
            return;
        }
        // The kernels add to these.
        partials.zero(stream);
        Status.te(
                TransformerEngine.te_multi_tensor_unscale_l2norm_cuda(
                        MultiTensor.CHUNK,
                        noopFlag.handle(),
                        array,
                        1,
                        lists.tensorCount(),
                        partials.handle(),
                        partials.handle(),
                        norm.handle(),
                        norm.handle(),
                        invScale.handle(),
                        0,
                        0,
                        stream.handle()),
                "te_multi_tensor_unscale_l2norm_cuda");
    }
}
