package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Inside;
import dev.chagres.te.HandleArrays.UnsetTensor;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.te.MultiTensorChecks.MultiTensorAdamChecks;
import java.lang.foreign.MemorySegment;

/**
 * Steps of Adam over many tensors at once, by a few kernels. Learning rate and step number come from the host: a graph replays those of its
 * capture. {@link MultiTensorAdamCapturable} reads them on the device.
 *
 * <p>These kernels read no noop flag: infinities and NaN in gradients reach the weights. With empty lists there is nothing to
 * do.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code multi_tensor.h}; Kingma and Ba, Adam (2015); Loshchilov and Hutter, Decoupled weight decay
 * regularization (2017).
 */
public final class MultiTensorAdam {
    private MultiTensorAdam() {}

    /**
     * Enqueues a step of Adam, {@code nvte_multi_tensor_adam_cuda}: {@code m = beta1 m + (1 - beta1) g}, {@code v = beta2 v + (1 -
     * beta2) g^2}, {@code u = (m / c1) / (sqrt(v / c2) + epsilon)} and, decoupled, {@code p = p - lr (u + weightDecay p)}. With masters the
     * step updates the master, and p is the master rounded.
     *
     * @param lists g, p, m, v or g, p, m, v, master: g of one floating-point type, p of one, m and v both FLOAT32 or both
     *     BFLOAT16, master FLOAT32; all but g are written
     * @param lr learning rate, at least 0
     * @param beta1 at least 0 and below 1
     * @param beta2 at least 0 and below 1
     * @param epsilon positive
     * @param step number of this step, from 1 on
     * @param weightDecay at least 0
     * @throws IllegalArgumentException when lists, numbers, types or devices do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void adam(
            TensorLists lists,
            float lr,
            float beta1,
            float beta2,
            float epsilon,
            int step,
            WeightDecay mode,
            BiasCorrection biasCorrection,
            float weightDecay,
            Stream stream) {
        step(
                MultiTensorAdamChecks::adam,
                TransformerEngine::te_multi_tensor_adam_cuda,
                "te_multi_tensor_adam_cuda",
                lists,
                lr,
                beta1,
                beta2,
                epsilon,
                step,
                mode,
                biasCorrection,
                weightDecay,
                stream);
    }

    /**
     * Enqueues the step of {@link #adam} over FP32 masters that are split into p and a remainder of 16 bits each, {@code
     * nvte_multi_tensor_adam_param_remainder_cuda}. The remainder holds the lower 16 bits of a master; the upper 16 are the bits of p, less
     * 1 if the remainder is negative. So p is the master rounded to BFLOAT16, ties away from zero.
     *
     * @param lists g, p, m, v, remainder: g of one floating-point type, p BFLOAT16, m and v both FLOAT32 or both BFLOAT16, remainder
     *     INT16, zeros where the masters begin as p; all but g are written
     * @param lr learning rate, at least 0
     * @param beta1 at least 0 and below 1
     * @param beta2 at least 0 and below 1
     * @param epsilon positive
     * @param step number of this step, from 1 on
     * @param weightDecay at least 0
     * @throws IllegalArgumentException when lists, numbers, types or devices do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public static void adamParamRemainder(
            TensorLists lists,
            float lr,
            float beta1,
            float beta2,
            float epsilon,
            int step,
            WeightDecay mode,
            BiasCorrection biasCorrection,
            float weightDecay,
            Stream stream) {
        step(
                MultiTensorAdamChecks::adamParamRemainder,
                TransformerEngine::te_multi_tensor_adam_param_remainder_cuda,
                "te_multi_tensor_adam_param_remainder_cuda",
                lists,
                lr,
                beta1,
                beta2,
                epsilon,
                step,
                mode,
                biasCorrection,
                weightDecay,
                stream);
    }

    /**
     * Enqueues a step of Adam on weights in eight bits, {@code nvte_multi_tensor_adam_fp8_cuda}: the step of {@link
     * #adam} over the masters, then {@code p = scale * master} rounded to eight
     * bits, {@code amax = max(amax, |master|)} and {@code scaleInverse = 1 / scale}. Layers with {@code WeightStorage.QUANTIZED} keep their
     * weights in eight bits without this function.
     *
     * @param lists g, p, m, v, master, scale, amax, scale inverse, of {@link TensorLists#ofScaled}: g of one floating-point type,
     *     p of {@code dtype}, the others FLOAT32; all but g and scale are written
     * @param lr learning rate, at least 0
     * @param beta1 at least 0 and below 1
     * @param beta2 at least 0 and below 1
     * @param epsilon positive
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
        MultiTensorAdamChecks.numbers(beta1, beta2, epsilon, weightDecay);
        MultiTensorAdamChecks.step(lr, step, mode, biasCorrection);
        MemorySegment array = MultiTensorAdamChecks.adamFp8(lists, dtype, stream);
        if (lists.tensorCount() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_multi_tensor_adam_fp8_cuda(
                        MultiTensor.CHUNK,
                        unlookedAt(stream),
                        array,
                        lists.listCount(),
                        lists.tensorCount(),
                        lr,
                        beta1,
                        beta2,
                        epsilon,
                        step,
                        mode.ordinal(),
                        biasCorrection.ordinal(),
                        weightDecay,
                        dtype.code(),
                        stream.handle()),
                "te_multi_tensor_adam_fp8_cuda");
    }

    private static void step(
            ListsCheck check,
            AdamCall call,
            String function,
            TensorLists lists,
            float lr,
            float beta1,
            float beta2,
            float epsilon,
            int step,
            WeightDecay mode,
            BiasCorrection biasCorrection,
            float weightDecay,
            Stream stream) {
        MultiTensorAdamChecks.numbers(beta1, beta2, epsilon, weightDecay);
        MultiTensorAdamChecks.step(lr, step, mode, biasCorrection);
        MemorySegment array = check.check(lists, stream);
        if (lists.tensorCount() == 0) {
            return;
        }
        int status = call.call(
                MultiTensor.CHUNK,
                unlookedAt(stream),
                array,
                lists.listCount(),
                lists.tensorCount(),
                lr,
                beta1,
                beta2,
                epsilon,
                step,
                mode.ordinal(),
                biasCorrection.ordinal(),
                weightDecay,
                stream.handle());
        Status.te(status, function);
    }

    private static MemorySegment unlookedAt(Stream stream) {
        return Inside.state(stream).get(UnsetTensor.ATTACHMENT).handle();
    }

    /** Checks the lists of a function, and returns their array. */
    @FunctionalInterface
    private interface ListsCheck {
        MemorySegment check(TensorLists lists, Stream stream);
    }

    /** One of the two functions, without and with remainders, which take the same arguments. */
    @FunctionalInterface
    private interface AdamCall {
        int call(
                int chunkSize,
                MemorySegment noopFlag,
                MemorySegment lists,
                long listCount,
                long tensorCount,
                float lr,
                float beta1,
                float beta2,
                float epsilon,
                int step,
                int mode,
                int biasCorrection,
                float weightDecay,
                MemorySegment stream);
    }
}
