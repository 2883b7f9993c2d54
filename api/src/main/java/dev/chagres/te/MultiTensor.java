package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.te.HandleArrays.UnsetTensor;
import dev.chagres.te.RecipeUpdates.RecipeChecks;
import java.lang.foreign.MemorySegment;

/**
 * Operations on many tensors at once, by a few kernels: their norm, steps of stochastic gradient descent, scales from amaxes. {@link
 * MultiTensorAdam} has the steps of Adam.
 *
 * <p>With empty lists there is nothing to do: a norm is 0.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code multi_tensor.h}.
 */
public final class MultiTensor {
    /** Where a step of {@link MultiTensorAdam} applies weight decay w. */
    public enum WeightDecay {
        /** To the gradient: {@code g = g + w p}. */
        L2,
        /** To the weight itself, scaled by the learning rate alone: AdamW. */
        DECOUPLED
    }

    /** Whether the moments are corrected for beginning at 0. */
    public enum BiasCorrection {
        /** They are not: {@code c1 = c2 = 1}. */
        NO,
        /** They are: {@code c1 = 1 - beta1^step}, {@code c2 = 1 - beta2^step}. */
        YES
    }

    /** Elements of the partial sums that {@link #l2norm} takes: one per block of a launch. */
    public static final long NORM_PARTIALS = 320;

    /** Elements that one block works on; TE's own callers give this number. */
    static final int CHUNK = 2048 * 32;

    /** amax, scale, scale inverse. */
    private static final int SCALE_LISTS = 3;

    private MultiTensor() {}

    /**
     * Enqueues {@code norm = sqrt(sum of squares)} over all tensors of one list, {@code nvte_multi_tensor_l2norm_cuda}.
     *
     * @param noopFlag INT32 [1]: receives 1 when a sum of squares is not finite, and else stays as it is
     * @param lists one list of floating-point numbers of one type
     * @param partials FLOAT32 [{@link #NORM_PARTIALS}], scratch
     * @param norm FLOAT32 [1]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void l2norm(Tensor noopFlag, TensorLists lists, Tensor partials, Tensor norm, Stream stream) {
        MemorySegment array = MultiTensorChecks.norm(noopFlag, lists, partials, norm, stream);
        if (lists.tensorCount() == 0) {
            norm.zero(stream);
            return;
        }
        // The kernels add to these.
        partials.zero(stream);
        Status.te(
                TransformerEngine.te_multi_tensor_l2norm_cuda(
                        CHUNK,
                        noopFlag.handle(),
                        array,
                        1,
                        lists.tensorCount(),
                        partials.handle(),
                        partials.handle(),
                        norm.handle(),
                        norm.handle(),
                        0,
                        0,
                        stream.handle()),
                "te_multi_tensor_l2norm_cuda");
    }

    /**
     * Enqueues {@code scale = largest / max(amax, epsilon)} and {@code scaleInverse = 1 / scale} for many amaxes,
     * {@code nvte_multi_tensor_compute_scale_and_scale_inv_cuda}: a scale is 1 where its amax is 0 or not finite, and the largest
     * FP32 number where the quotient is larger. Subnormal FP32 numbers count as 0.
     *
     * @param lists amax, scale, scaleInverse, FLOAT32; the first list is read, the others are written
     * @param dtype FLOAT8_E4M3 or FLOAT8_E5M2, whose largest number is {@code largest}
     * @param config epsilon, and which numbers scales may be; it has no flag
     * @throws IllegalArgumentException when lists, types, devices or the configuration do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void computeScaleAndScaleInverse(
            TensorLists lists, DType dtype, QuantizationConfig config, Stream stream) {
        MemorySegment array = MultiTensorChecks.scales(lists, dtype, config, stream);
        if (lists.tensorCount() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_multi_tensor_compute_scale_and_scale_inv_cuda(
                        CHUNK,
                        // The kernel does not look at the flag.
                        Inside.state(stream).get(UnsetTensor.ATTACHMENT).handle(),
                        array,
                        SCALE_LISTS,
                        lists.tensorCount(),
                        RecipeChecks.largest(dtype),
                        config.scales().ordinal(),
                        config.amaxEpsilon(),
                        stream.handle()),
                "te_multi_tensor_compute_scale_and_scale_inv_cuda");
    }

    /**
     * Enqueues {@code y = scale x}, {@code nvte_multi_tensor_scale_tensor_cuda}, with a factor that the device reads.
     *
     * @param isInfinite INT32 [1]: receives 1 when an x is not finite, and else stays as it is
     * @param lists x and y, each of FLOAT32, BFLOAT16 or FLOAT16
     * @param scale FLOAT32 [1]
     * @throws IllegalArgumentException when lists, shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void scaleTensor(Tensor isInfinite, TensorLists lists, Tensor scale, Stream stream) {
        MemorySegment array = MultiTensorChecks.scaled(isInfinite, lists, scale, stream);
        if (lists.tensorCount() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_multi_tensor_scale_tensor_cuda(
                        CHUNK,
                        isInfinite.handle(),
                        array,
                        lists.listCount(),
                        lists.tensorCount(),
                        scale.handle(),
                        stream.handle()),
                "te_multi_tensor_scale_tensor_cuda");
    }

    /** Which step of a run {@link #sgd} makes. */
    public enum SgdStep {
        /** The first: the momentum buffer is overwritten with the gradient. */
        FIRST,
        /** A later one. */
        LATER
    }

    /**
     * Enqueues a step of stochastic gradient descent, {@code nvte_multi_tensor_sgd_cuda}: {@code g = gradientScale g}, {@code g = g +
     * weightDecay p} before or after momentum, {@code v = momentum v + (1 - dampening) g}, {@code p = p - lr v}, with Nesterov's
     * momentum {@code p = p - lr (g + momentum v)}, without momentum {@code p = p - lr g}.
     *
     * @param noopFlag INT32 [1]: where it is not 0 nothing changes
     * @param lists g, p, v, of which p and v are written: all FLOAT32 or all FLOAT16; or g, p, v and a copy of p in FLOAT16, with g
     *     of FLOAT16 or FLOAT32 and p and v of FLOAT32
     * @throws IllegalArgumentException when lists, shapes, types or devices do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void sgd(Tensor noopFlag, TensorLists lists, SgdConfig config, SgdStep step, Stream stream) {
        Checks.given("config", config);
        Checks.given("step", step);
        MemorySegment array = MultiTensorChecks.sgd(noopFlag, lists, stream);
        if (lists.tensorCount() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_multi_tensor_sgd_cuda(
                        CHUNK,
                        noopFlag.handle(),
                        array,
                        lists.listCount(),
                        lists.tensorCount(),
                        config.weightDecay(),
                        config.momentum(),
                        config.dampening(),
                        config.learningRate(),
                        config.kind().ordinal(),
                        step == SgdStep.FIRST ? 1 : 0,
                        config.decayPlace().ordinal(),
                        config.gradientScale(),
                        stream.handle()),
                "te_multi_tensor_sgd_cuda");
    }
}
