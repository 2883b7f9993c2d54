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
import org.jspecify.annotations.Nullable;

/**
 * Operations on many tensors at once, by a few kernels: their norm, products with a factor, steps of stochastic gradient descent, scales from amaxes. {@link
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

    private static final int GRADIENT = 0;

    /** g, p, v; then perhaps a copy of p. */
    private static final int SGD_LISTS = 3;

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
        enqueueNorm(noopFlag, lists, null, partials, norm, stream);
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
        Checks.given("stream", stream);
        MemorySegment array = TensorLists.listed(lists, SCALE_LISTS, stream);
        for (int i = 0; i < SCALE_LISTS; i++) {
            for (int j = 0; j < lists.tensorCount(); j++) {
                TensorLists.ofType(lists, i, j, DType.FLOAT32);
            }
        }
        RecipeChecks.float8(dtype);
        if (Checks.given("config", config).noop() != null) {
            throw new IllegalArgumentException(
                    "config: expected one without a flag, which TE's kernel does not read, got " + config);
        }
        if (lists.tensorCount() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_multi_tensor_compute_scale_and_scale_inv_cuda(
                        CHUNK,
                        // The kernel does not look at the flag.
                        Inside.state(stream).get(UnsetTensor.ATTACHMENT).handle,
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
     * Enqueues {@code norm = sqrt(sum of (invScale x)^2)} over all tensors of one list, {@code
     * nvte_multi_tensor_unscale_l2norm_cuda}. The tensors stay as they are.
     *
     * @param noopFlag INT32 [1]: receives 1 when a sum of squares is not finite, and else stays as it is
     * @param lists one list of floating-point numbers of one type
     * @param invScale factor, FLOAT32 [1]
     * @param partials FLOAT32 [{@link #NORM_PARTIALS}], scratch
     * @param norm FLOAT32 [1]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void unscaleL2norm(
            Tensor noopFlag, TensorLists lists, Tensor invScale, Tensor partials, Tensor norm, Stream stream) {
        enqueueNorm(noopFlag, lists, Checks.given("invScale", invScale), partials, norm, stream);
    }

    /**
     * Enqueues {@code y = scale x}, {@code nvte_multi_tensor_scale_cuda}. A graph replays the factor of its capture; {@link
     * #scaleTensor} reads one on the device.
     *
     * @param isInfinite INT32 [1]: receives 1 when an x is not finite, and else stays as it is
     * @param lists x and y, each of FLOAT32, BFLOAT16 or FLOAT16
     * @param scale any number
     * @throws IllegalArgumentException when lists, shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void scale(Tensor isInfinite, TensorLists lists, float scale, Stream stream) {
        MemorySegment array = checkScaled(isInfinite, lists, stream);
        if (lists.tensorCount() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_multi_tensor_scale_cuda(
                        CHUNK,
                        isInfinite.handle(),
                        array,
                        lists.listCount(),
                        lists.tensorCount(),
                        scale,
                        stream.handle()),
                "te_multi_tensor_scale_cuda");
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
        MemorySegment array = checkScaled(isInfinite, lists, stream);
        Checks.vector(stream, "scale", scale, DType.FLOAT32, 1);
        for (int j = 0; j < lists.tensorCount(); j++) {
            TensorLists.apart("scale", scale, 1, j, lists.tensor(1, j));
        }
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
        Checks.given("config", config, "step", step);
        Checks.vector(stream, "noopFlag", noopFlag, DType.INT32, 1);
        boolean copies = Checks.given("lists", lists).listCount() == SGD_LISTS + 1;
        MemorySegment array = TensorLists.listed(lists, copies ? SGD_LISTS + 1 : SGD_LISTS, stream);
        for (int j = 0; j < lists.tensorCount(); j++) {
            DType type = lists.tensor(GRADIENT, 0).dtype();
            if (type != DType.FLOAT32 && type != DType.FLOAT16) {
                throw new IllegalArgumentException(TensorLists.name(GRADIENT, 0)
                        + ": expected elements of FLOAT32 or FLOAT16, which TE's kernel has, got "
                        + Checks.describe(lists.tensor(GRADIENT, 0)));
            }
            for (int i = 0; i < lists.listCount(); i++) {
                DType other = copies ? DType.FLOAT32 : type;
                TensorLists.ofType(lists, i, j, i == GRADIENT ? type : i == SGD_LISTS ? DType.FLOAT16 : other);
                TensorLists.apart("noopFlag", noopFlag, i, j, lists.tensor(i, j));
            }
        }
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

    private static void enqueueNorm(
            Tensor noopFlag,
            TensorLists lists,
            @Nullable Tensor invScale,
            Tensor partials,
            Tensor norm,
            Stream stream) {
        MemorySegment array = checkNorm(noopFlag, lists, partials, norm, stream);
        if (invScale != null) {
            Checks.vector(stream, "invScale", invScale, DType.FLOAT32, 1);
            Checks.apart("noopFlag", noopFlag, "invScale", invScale);
            Checks.apart("partials", partials, "invScale", invScale);
            Checks.apart("norm", norm, "invScale", invScale);
        }
        int count = lists.tensorCount();
        if (count == 0) {
            norm.zero(stream);
            return;
        }
        // The kernels add to these.
        partials.zero(stream);
        MemorySegment flag = noopFlag.handle();
        MemorySegment sums = partials.handle();
        MemorySegment result = norm.handle();
        MemorySegment queue = stream.handle();
        if (invScale == null) {
            Status.te(
                    TransformerEngine.te_multi_tensor_l2norm_cuda(
                            CHUNK, flag, array, 1, count, sums, sums, result, result, 0, 0, queue),
                    "te_multi_tensor_l2norm_cuda");
        } else {
            MemorySegment factor = invScale.handle();
            Status.te(
                    TransformerEngine.te_multi_tensor_unscale_l2norm_cuda(
                            CHUNK, flag, array, 1, count, sums, sums, result, result, factor, 0, 0, queue),
                    "te_multi_tensor_unscale_l2norm_cuda");
        }
    }

    private static MemorySegment checkNorm(
            Tensor noopFlag, TensorLists lists, Tensor partials, Tensor norm, Stream stream) {
        Checks.vector(stream, "noopFlag", noopFlag, DType.INT32, 1);
        MemorySegment array = TensorLists.listed(lists, 1, stream);
        Checks.vector(stream, "partials", partials, DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        Checks.vector(stream, "norm", norm, DType.FLOAT32, 1);
        for (int j = 0; j < lists.tensorCount(); j++) {
            Tensor tensor = lists.tensor(0, j);
            TensorLists.ofType(lists, 0, j, TensorLists.floats(lists));
            TensorLists.apart("noopFlag", noopFlag, 0, j, tensor);
            TensorLists.apart("partials", partials, 0, j, tensor);
            TensorLists.apart("norm", norm, 0, j, tensor);
        }
        Checks.writable("noopFlag", noopFlag);
        Checks.written("partials", partials, "noopFlag", noopFlag);
        Checks.written("norm", norm, "noopFlag", noopFlag, "partials", partials);
        return array;
    }

    private static MemorySegment checkScaled(Tensor isInfinite, TensorLists lists, Stream stream) {
        Checks.vector(stream, "isInfinite", isInfinite, DType.INT32, 1);
        MemorySegment array = TensorLists.listed(lists, 2, stream);
        for (int j = 0; j < lists.tensorCount(); j++) {
            DType from = TensorLists.floats(lists);
            DType to = lists.tensor(1, 0).dtype();
            if (!to.isFloat()) {
                throw new IllegalArgumentException(
                        TensorLists.name(1, 0) + ": expected elements of FLOAT32, BFLOAT16 or" + " FLOAT16, got "
                                + Checks.describe(lists.tensor(1, 0)));
            }
            for (int i = 0; i < 2; i++) {
                TensorLists.ofType(lists, i, j, i == 0 ? from : to);
                TensorLists.apart("isInfinite", isInfinite, i, j, lists.tensor(i, j));
            }
        }
        Checks.writable("isInfinite", isInfinite);
        return array;
    }
}
