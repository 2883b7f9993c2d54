package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.te.MultiTensorChecks.MultiTensorAdamChecks;
import java.lang.foreign.MemorySegment;

/**
 * Steps of Adam over many tensors at once. Learning rate, step number and gradient scale lie on the device, so that each replay of a graph
 * reads them anew. {@link MultiTensorAdam} takes them from the host.
 *
 * <p>Numbers on the device are not checked: a negative rate climbs the gradient, and bias correction at step 0 divides by 0, so that
 * weights become NaN. With empty lists there is nothing to do.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code multi_tensor.h}; Kingma and Ba, Adam (2015); Loshchilov and Hutter, Decoupled weight decay
 * regularization (2017).
 */
public final class MultiTensorAdamCapturable {
    /** g, p, m, v; then perhaps masters. */
    private static final int OWN_LISTS = 4;

    private static final int MASTER_LISTS = 5;

    private MultiTensorAdamCapturable() {}

    /**
     * Enqueues a step of Adam whose numbers lie on the device, {@code nvte_multi_tensor_adam_capturable_cuda}: {@code g =
     * invScale g}, {@code m = beta1 m + (1 - beta1) g}, {@code v = beta2 v + (1 - beta2) g^2}, {@code u = (m / c1) /
     * (sqrt(v / c2) + epsilon)} and, decoupled, {@code p = p - lr (u + weightDecay p)}.
     *
     * @param noopFlag INT32 [1]: where it is 1 nothing changes
     * @param lists g, p, m, v, all of them written: g and p of one floating-point type, m and v FLOAT32
     * @param lr learning rate, at least 0, FLOAT32 [1]; what it holds is trusted
     * @param beta1 at least 0 and below 1
     * @param beta2 at least 0 and below 1
     * @param epsilon positive
     * @param step number of this step, from 1 on, INT32 [1]; what it holds is trusted
     * @param weightDecay at least 0
     * @param invScale factor on the gradients, FLOAT32 [1]; what it holds is trusted
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
     * @param lr learning rate, at least 0, FLOAT32 [1]; what it holds is trusted
     * @param beta1 at least 0 and below 1
     * @param beta2 at least 0 and below 1
     * @param epsilon positive
     * @param step number of this step, from 1 on, INT32 [1]; what it holds is trusted
     * @param weightDecay at least 0
     * @param invScale factor on the gradients, FLOAT32 [1]; what it holds is trusted
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
        MultiTensorAdamChecks.numbers(beta1, beta2, epsilon, weightDecay);
        Checks.given("mode", mode);
        Checks.given("biasCorrection", biasCorrection);
        MemorySegment array = MultiTensorAdamChecks.capturable(noopFlag, lists, listCount, lr, step, invScale, stream);
        if (lists.tensorCount() == 0) {
            return;
        }
        boolean own = listCount == OWN_LISTS;
        AdamCall call = own
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
        Status.te(status, own ? "te_multi_tensor_adam_capturable_cuda" : "te_multi_tensor_adam_capturable_master_cuda");
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
