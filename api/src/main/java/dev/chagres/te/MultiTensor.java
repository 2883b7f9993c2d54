package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import java.lang.foreign.MemorySegment;

/**
 * Operations on many tensors at once, a few kernels for all: their norm, the step of Adam, scales of magnitudes.
 *
 * <p>With empty lists there is nothing to do: a norm is 0.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code multi_tensor.h}; Kingma and Ba, Adam (2015); Loshchilov and Hutter, Decoupled weight decay
 * regularization (2017).
 */
public final class MultiTensor {
    /** Where weight decay w goes. */
    public enum WeightDecay {
        /** Into the gradient: {@code g = g + w p}. */
        L2(0),
        /** Into the update, beside the learning rate alone. */
        DECOUPLED(1);

        private final int mode;

        WeightDecay(int mode) {
            this.mode = mode;
        }
    }

    /** Whether the moments, which begin at 0, are divided by what they lack for that. */
    public enum BiasCorrection {
        /** They are not: {@code c1 = c2 = 1}. */
        NO,
        /** They are: {@code c1 = 1 - beta1^step}, {@code c2 = 1 - beta2^step}. */
        YES
    }

    /** Elements of the partial sums that {@link #l2norm} takes: one a block of a launch. */
    public static final long NORM_PARTIALS = 320;

    /** Elements that one block works on; TE's own callers give this number. */
    static final int CHUNK = 2048 * 32;

    /** g, p, m, v; then masters too. */
    private static final int OWN_LISTS = 4;

    private static final int MASTER_LISTS = 5;

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
        // The kernels add to what is there.
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
     * Enqueues a step of Adam whose numbers lie on the device, {@code nvte_multi_tensor_adam_capturable_cuda}: {@code g =
     * invScale g}, {@code m = beta1 m + (1 - beta1) g}, {@code v = beta2 v + (1 - beta2) g^2}, {@code u = (m / c1) /
     * (sqrt(v / c2) + epsilon)} and, decoupled, {@code p = p - lr (u + weightDecay p)}.
     *
     * @param noopFlag INT32 [1]: where it is 1 nothing changes
     * @param lists g, p, m, v, all of them written: g and p of one floating-point type, m and v FLOAT32
     * @param lr learning rate, FLOAT32 [1]
     * @param beta1 at least 0 and below 1
     * @param beta2 at least 0 and below 1
     * @param epsilon at least 0
     * @param step number of this step, from 1 on, INT32 [1]
     * @param weightDecay at least 0
     * @param invScale factor on the gradients, FLOAT32 [1]
     * @throws IllegalArgumentException when lists, numbers, shapes, types or devices do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void adamCapturable(
            Tensor noopFlag,
            TensorLists lists,
            Tensor lr,
            float beta1,
            float beta2,
            float epsilon,
            Tensor step,
            WeightDecay mode,
            BiasCorrection biasCorrection,
            float weightDecay,
            Tensor invScale,
            Stream stream) {
        adam(
                OWN_LISTS,
                noopFlag,
                lists,
                lr,
                beta1,
                beta2,
                epsilon,
                step,
                mode,
                biasCorrection,
                weightDecay,
                invScale,
                stream);
    }

    /**
     * Enqueues the same step on FP32 master weights, from which p is rounded,
     * {@code nvte_multi_tensor_adam_capturable_master_cuda}.
     *
     * @param noopFlag INT32 [1]: where it is 1 nothing changes
     * @param lists g, p, m, v, master, all of them written: g and p of one floating-point type, m, v and master FLOAT32
     * @param lr learning rate, FLOAT32 [1]
     * @param beta1 at least 0 and below 1
     * @param beta2 at least 0 and below 1
     * @param epsilon at least 0
     * @param step number of this step, from 1 on, INT32 [1]
     * @param weightDecay at least 0
     * @param invScale factor on the gradients, FLOAT32 [1]
     * @throws IllegalArgumentException when lists, numbers, shapes, types or devices do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void adamCapturableMaster(
            Tensor noopFlag,
            TensorLists lists,
            Tensor lr,
            float beta1,
            float beta2,
            float epsilon,
            Tensor step,
            WeightDecay mode,
            BiasCorrection biasCorrection,
            float weightDecay,
            Tensor invScale,
            Stream stream) {
        adam(
                MASTER_LISTS,
                noopFlag,
                lists,
                lr,
                beta1,
                beta2,
                epsilon,
                step,
                mode,
                biasCorrection,
                weightDecay,
                invScale,
                stream);
    }

    private static void adam(
            int listCount,
            Tensor noopFlag,
            TensorLists lists,
            Tensor lr,
            float beta1,
            float beta2,
            float epsilon,
            Tensor step,
            WeightDecay mode,
            BiasCorrection biasCorrection,
            float weightDecay,
            Tensor invScale,
            Stream stream) {
        MultiTensorChecks.numbers(beta1, beta2, epsilon, weightDecay);
        Checks.given("mode", mode);
        Checks.given("biasCorrection", biasCorrection);
        MemorySegment array = MultiTensorChecks.adam(noopFlag, lists, listCount, lr, step, invScale, stream);
        if (lists.tensorCount() == 0) {
            return;
        }
        boolean own = listCount == OWN_LISTS;
        AdamCall call = own
                ? TransformerEngine::te_multi_tensor_adam_capturable_cuda
                : TransformerEngine::te_multi_tensor_adam_capturable_master_cuda;
        int status = call.call(
                CHUNK,
                noopFlag.handle(),
                array,
                lists.listCount(),
                lists.tensorCount(),
                lr.handle(),
                beta1,
                beta2,
                epsilon,
                step.handle(),
                mode.mode,
                biasCorrection.ordinal(),
                weightDecay,
                invScale.handle(),
                stream.handle());
        Status.te(status, own ? "te_multi_tensor_adam_capturable_cuda" : "te_multi_tensor_adam_capturable_master_cuda");
    }

    /**
     * Enqueues {@code scale = largest / max(amax, epsilon)} and {@code scaleInverse = 1 / scale} of many magnitudes,
     * {@code nvte_multi_tensor_compute_scale_and_scale_inv_cuda}: a scale is 1 where its amax is 0 or not finite, and the largest
     * FP32 number where the quotient is larger. Numbers below FP32's least normal one count as 0.
     *
     * @param lists amax, scale, scaleInverse, FLOAT32; the first list is read, the others are written
     * @param dtype FLOAT8_E4M3 or FLOAT8_E5M2, which has the largest number
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
     * Enqueues a step of Adam on weights in eight bits, {@code nvte_multi_tensor_adam_fp8_cuda}: the step of {@link
     * #adamCapturableMaster} over the masters, without a scale of the gradients, then {@code p = scale * master} rounded to eight
     * bits, {@code amax = max(amax, |master|)} and {@code scaleInverse = 1 / scale}. Rate and number of the step are the host's: a
     * graph replays the ones that it was captured with. A model's own weights are kept so by {@code WeightStorage.QUANTIZED}, without this function.
     *
     * @param lists g, p, m, v, master, scale, amax, scale inverse, of {@link TensorLists#ofScaled}: g of one floating-point type,
     *     p of {@code dtype}, the others FLOAT32; all but g and scale are written
     * @param lr learning rate, at least 0
     * @param beta1 at least 0 and below 1
     * @param beta2 at least 0 and below 1
     * @param epsilon at least 0
     * @param step number of this step, from 1 on
     * @param weightDecay at least 0
     * @param dtype FLOAT8_E4M3 or FLOAT8_E5M2
     * @throws IllegalArgumentException when lists, numbers, types or devices do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void adamFp8(
            TensorLists lists,
            float lr,
            float beta1,
            float beta2,
            float epsilon,
            int step,
            WeightDecay mode,
            BiasCorrection biasCorrection,
            float weightDecay,
            DType dtype,
            Stream stream) {
        MultiTensorChecks.numbers(beta1, beta2, epsilon, weightDecay);
        Checks.given("mode", mode);
        Checks.given("biasCorrection", biasCorrection);
        MemorySegment array = MultiTensorChecks.adamFp8(lists, lr, step, dtype, stream);
        if (lists.tensorCount() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_multi_tensor_adam_fp8_cuda(
                        CHUNK,
                        // The kernel does not look at the flag.
                        Inside.state(stream).get(UnsetTensor.ATTACHMENT).handle(),
                        array,
                        lists.listCount(),
                        lists.tensorCount(),
                        lr,
                        beta1,
                        beta2,
                        epsilon,
                        step,
                        mode.mode,
                        biasCorrection.ordinal(),
                        weightDecay,
                        dtype.code(),
                        stream.handle()),
                "te_multi_tensor_adam_fp8_cuda");
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
        /** The first: the running sum begins as the gradient, whatever it holds. */
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

    /** One of the two functions, with and without masters, which take the same arguments. */
    @FunctionalInterface
    private interface AdamCall {
        int call(
                int chunkSize,
                MemorySegment noopFlag,
                MemorySegment lists,
                long listCount,
                long tensorCount,
                MemorySegment lr,
                float beta1,
                float beta2,
                float epsilon,
                MemorySegment step,
                int mode,
                int biasCorrection,
                float weightDecay,
                MemorySegment invScale,
                MemorySegment stream);
    }
}
