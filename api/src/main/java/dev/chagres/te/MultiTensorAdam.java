package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Numbers;
import dev.chagres.te.HandleArrays.UnsetTensor;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.te.RecipeUpdates.RecipeChecks;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Steps of Adam over many tensors at once, by a few kernels: {@code m = beta1 m + (1 - beta1) g}, {@code v = beta2 v + (1 - beta2) g^2},
 * {@code u = (m / c1) / (sqrt(v / c2) + epsilon)} and, decoupled, {@code p = p - lr (u + weightDecay p)}. With empty lists there is nothing
 * to do.
 *
 * <p>{@link #adam}, {@link #adamParamRemainder} and {@link #adamFp8} take learning rate and step number from the host: a graph replays those
 * of its capture. They read no noop flag: infinities and NaN in gradients reach the weights.
 *
 * <p>{@link #adamCapturable} and {@link #adamCapturableMaster} read both numbers and a factor on the gradients on the device, so that each
 * replay of a graph reads them anew. Those are not checked: a negative rate climbs the gradient, and bias correction at step 0 divides by
 * 0, so that weights become NaN.
 *
 * <p>Threading: immutable; its steps belong to the device's thread.
 *
 * <p>Source: TE's {@code multi_tensor.h}; Kingma and Ba, Adam (2015); Loshchilov and Hutter, Decoupled weight decay
 * regularization (2017).
 *
 * @param beta1 at least 0 and below 1
 * @param beta2 at least 0 and below 1
 * @param epsilon positive
 * @param mode where the weight decay goes
 * @param biasCorrection whether {@code c = 1 - beta^step} or 1
 * @param weightDecay at least 0
 */
public record MultiTensorAdam(
        float beta1, float beta2, float epsilon, WeightDecay mode, BiasCorrection biasCorrection, float weightDecay) {
    private static final int GRADIENT = 0;
    private static final int PARAMETER = 1;
    private static final int MEAN = 2;
    private static final int SQUARE = 3;
    private static final int MASTER = 4;

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is outside its range
     */
    public MultiTensorAdam {
        Numbers.betas(beta1, beta2);
        if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
            // With epsilon 0, a gradient of 0 would give 0 / 0.
            throw new IllegalArgumentException("epsilon: expected a positive number, got " + epsilon);
        }
        Checks.given("mode", mode, "biasCorrection", biasCorrection);
        Numbers.notNegative("weightDecay", weightDecay);
    }

    /**
     * Enqueues a step, {@code nvte_multi_tensor_adam_cuda}. With masters the step updates the master, and p is the master rounded.
     *
     * @param lists g, p, m, v or g, p, m, v, master: g of one floating-point type, p of one, m and v both FLOAT32 or both
     *     BFLOAT16, master FLOAT32; all but g are written
     * @param lr learning rate, at least 0
     * @param step number of this step, from 1 on
     * @throws IllegalArgumentException when lists, numbers, types or devices do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public void adam(TensorLists lists, float lr, int step, Stream stream) {
        checkHost(lr, step, stream);
        boolean masters = Checks.given("lists", lists).listCount() == MASTER + 1;
        MemorySegment array = TensorLists.listed(lists, masters ? MASTER + 1 : MASTER, stream);
        for (int j = 0; j < lists.tensorCount(); j++) {
            TensorLists.ofType(lists, PARAMETER, j, TensorLists.floats(lists, PARAMETER));
            checkVectors(lists, j, masters ? DType.FLOAT32 : null);
        }
        enqueue(
                TransformerEngine::te_multi_tensor_adam_cuda,
                "te_multi_tensor_adam_cuda",
                lists,
                array,
                lr,
                step,
                stream);
    }

    /**
     * Enqueues a step over FP32 masters that are split into p and a remainder of 16 bits each, {@code
     * nvte_multi_tensor_adam_param_remainder_cuda}. The remainder holds the lower 16 bits of a master; the upper 16 are the bits of p, less
     * 1 if the remainder is negative. So p is the master rounded to BFLOAT16, ties away from zero.
     *
     * @param lists g, p, m, v, remainder: g of one floating-point type, p BFLOAT16, m and v both FLOAT32 or both BFLOAT16, remainder
     *     INT16, zeros where the masters begin as p; all but g are written
     * @param lr learning rate, at least 0
     * @param step number of this step, from 1 on
     * @throws IllegalArgumentException when lists, numbers, types or devices do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public void adamParamRemainder(TensorLists lists, float lr, int step, Stream stream) {
        checkHost(lr, step, stream);
        MemorySegment array = TensorLists.listed(lists, MASTER + 1, stream);
        for (int j = 0; j < lists.tensorCount(); j++) {
            TensorLists.ofType(lists, PARAMETER, j, DType.BFLOAT16);
            checkVectors(lists, j, DType.INT16);
        }
        enqueue(
                TransformerEngine::te_multi_tensor_adam_param_remainder_cuda,
                "te_multi_tensor_adam_param_remainder_cuda",
                lists,
                array,
                lr,
                step,
                stream);
    }

    /**
     * Enqueues a step on weights in eight bits, {@code nvte_multi_tensor_adam_fp8_cuda}: the step of {@link
     * #adam} over the masters, then {@code p = scale * master} rounded to eight
     * bits, {@code amax = max(amax, |master|)} and {@code scaleInverse = 1 / scale}. Layers with {@code WeightStorage.QUANTIZED} keep their
     * weights in eight bits without this function.
     *
     * @param lists g, p, m, v, master, scale, amax, scale inverse, of {@link TensorLists#ofScaled}: g of one floating-point type,
     *     p of {@code dtype}, the others FLOAT32; all but g and scale are written
     * @param lr learning rate, at least 0
     * @param step number of this step, from 1 on
     * @param dtype FLOAT8_E4M3 or FLOAT8_E5M2
     * @throws IllegalArgumentException when lists, numbers, types or devices do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public void adamFp8(TensorLists lists, float lr, int step, DType dtype, Stream stream) {
        checkHost(lr, step, stream);
        RecipeChecks.float8(dtype);
        int cells = TensorLists.SCALE_CELLS;
        MemorySegment array = TensorLists.listed(lists, MASTER + 1 + cells, cells, stream);
        for (int j = 0; j < lists.tensorCount(); j++) {
            DType type = TensorLists.floats(lists);
            for (int i = 0; i <= MASTER; i++) {
                TensorLists.ofType(lists, i, j, i == GRADIENT ? type : i == PARAMETER ? dtype : DType.FLOAT32);
            }
        }
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

    /**
     * Enqueues a step on gradients {@code invScale g} whose numbers lie on the device, {@code nvte_multi_tensor_adam_capturable_cuda}.
     *
     * @param noopFlag INT32 [1]: where it is 1 nothing changes
     * @param lists g, p, m, v, all of them written: g and p of one floating-point type, m and v FLOAT32
     * @param lr learning rate, at least 0, FLOAT32 [1]; what it holds is trusted
     * @param step number of this step, from 1 on, INT32 [1]; what it holds is trusted
     * @param invScale factor on the gradients, FLOAT32 [1]; what it holds is trusted
     * @throws IllegalArgumentException when lists, shapes, types or devices do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public void adamCapturable(
            Tensor noopFlag, TensorLists lists, Tensor lr, Tensor step, Tensor invScale, Stream stream) {
        enqueueCapturable(MASTER, noopFlag, lists, lr, step, invScale, stream);
    }

    /**
     * Enqueues the step of {@link #adamCapturable} on FP32 master weights, from which p is rounded,
     * {@code nvte_multi_tensor_adam_capturable_master_cuda}.
     *
     * @param noopFlag INT32 [1]: where it is 1 nothing changes
     * @param lists g, p, m, v, master, all of them written: g and p of one floating-point type, m, v and master FLOAT32
     * @param lr learning rate, at least 0, FLOAT32 [1]; what it holds is trusted
     * @param step number of this step, from 1 on, INT32 [1]; what it holds is trusted
     * @param invScale factor on the gradients, FLOAT32 [1]; what it holds is trusted
     * @throws IllegalArgumentException when lists, shapes, types or devices do not fit
     * @throws IllegalStateException when the lists are closed, or a tensor's memory was handed out again since
     */
    public void adamCapturableMaster(
            Tensor noopFlag, TensorLists lists, Tensor lr, Tensor step, Tensor invScale, Stream stream) {
        enqueueCapturable(MASTER + 1, noopFlag, lists, lr, step, invScale, stream);
    }

    private static void checkHost(float lr, int step, Stream stream) {
        Numbers.notNegative("lr", lr);
        if (step < 1) {
            throw new IllegalArgumentException("step: expected the number of a step, from 1 on, got " + step);
        }
        Checks.given("stream", stream);
    }

    /** Checks gradients, moments, for which TE has kernels both of FLOAT32 and both of BFLOAT16, and masters. */
    private static void checkVectors(TensorLists lists, int index, @Nullable DType masters) {
        TensorLists.ofType(lists, GRADIENT, index, TensorLists.floats(lists, GRADIENT));
        Tensor first = lists.tensor(MEAN, 0);
        if (first.dtype() != DType.FLOAT32 && first.dtype() != DType.BFLOAT16) {
            throw new IllegalArgumentException(TensorLists.name(MEAN, 0)
                    + ": expected elements of FLOAT32 or BFLOAT16, got " + Checks.describe(first));
        }
        TensorLists.ofType(lists, MEAN, index, first.dtype());
        TensorLists.ofType(lists, SQUARE, index, first.dtype());
        if (masters != null) {
            TensorLists.ofType(lists, MASTER, index, masters);
        }
    }

    private void enqueue(
            HostCall call, String function, TensorLists lists, MemorySegment array, float lr, int step, Stream stream) {
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
        return Inside.state(stream).get(UnsetTensor.ATTACHMENT).handle;
    }

    private void enqueueCapturable(
            int count, Tensor noopFlag, TensorLists lists, Tensor lr, Tensor step, Tensor invScale, Stream stream) {
        Checks.vector(stream, "noopFlag", noopFlag, DType.INT32, 1);
        MemorySegment array = TensorLists.listed(lists, count, stream);
        Checks.vector(stream, "lr", lr, DType.FLOAT32, 1);
        Checks.vector(stream, "step", step, DType.INT32, 1);
        Checks.vector(stream, "invScale", invScale, DType.FLOAT32, 1);
        for (int j = 0; j < lists.tensorCount(); j++) {
            DType type = TensorLists.floats(lists);
            for (int i = 0; i < count; i++) {
                TensorLists.ofType(lists, i, j, i == GRADIENT || i == PARAMETER ? type : DType.FLOAT32);
                TensorLists.apart("noopFlag", noopFlag, i, j, lists.tensor(i, j));
                TensorLists.apart("lr", lr, i, j, lists.tensor(i, j));
                TensorLists.apart("step", step, i, j, lists.tensor(i, j));
                TensorLists.apart("invScale", invScale, i, j, lists.tensor(i, j));
            }
        }
        if (lists.tensorCount() == 0) {
            return;
        }
        CapturableCall call = count == MASTER
                ? TransformerEngine::te_multi_tensor_adam_capturable_cuda
                : TransformerEngine::te_multi_tensor_adam_capturable_master_cuda;
        int status = call.call(
                MultiTensor.CHUNK,
                noopFlag.handle(),
                array,
                lists.listCount(),
                lists.tensorCount(),
                lr.handle(),
                beta1,
                beta2,
                epsilon,
                step.handle(),
                mode.ordinal(),
                biasCorrection.ordinal(),
                weightDecay,
                invScale.handle(),
                stream.handle());
        Status.te(
                status,
                count == MASTER
                        ? "te_multi_tensor_adam_capturable_cuda"
                        : "te_multi_tensor_adam_capturable_master_cuda");
    }

    /** One of the two functions without and with remainders, which take the same arguments. */
    @FunctionalInterface
    private interface HostCall {
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

    /** One of the two functions without and with masters, which take the same arguments. */
    @FunctionalInterface
    private interface CapturableCall {
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
