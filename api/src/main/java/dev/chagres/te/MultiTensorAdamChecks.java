package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import java.lang.foreign.MemorySegment;

/**
 * Checks of the arguments of {@link MultiTensorAdam} and {@link MultiTensorAdamCapturable}. Checks of lists return the native array of
 * lists.
 *
 * <p>Threading: the device's thread.
 */
final class MultiTensorAdamChecks {
    private static final int GRADIENT = 0;
    private static final int PARAMETER = 1;
    private static final int MEAN = 2;
    private static final int SQUARE = 3;
    private static final int MASTER = 4;

    private MultiTensorAdamChecks() {}

    static MemorySegment adam(TensorLists lists, Stream stream) {
        Checks.given("stream", stream);
        boolean masters = Checks.given("lists", lists).listCount() == MASTER + 1;
        MemorySegment array = MultiTensorChecks.listed(lists, masters ? MASTER + 1 : MASTER, stream);
        for (int j = 0; j < lists.tensorCount(); j++) {
            MultiTensorChecks.ofType(lists, GRADIENT, j, MultiTensorChecks.floats(lists, GRADIENT));
            MultiTensorChecks.ofType(lists, PARAMETER, j, MultiTensorChecks.floats(lists, PARAMETER));
            moments(lists, j);
            if (masters) {
                MultiTensorChecks.ofType(lists, MASTER, j, DType.FLOAT32);
            }
        }
        return array;
    }

    static MemorySegment adamParamRemainder(TensorLists lists, Stream stream) {
        Checks.given("stream", stream);
        MemorySegment array = MultiTensorChecks.listed(lists, MASTER + 1, stream);
        for (int j = 0; j < lists.tensorCount(); j++) {
            MultiTensorChecks.ofType(lists, GRADIENT, j, MultiTensorChecks.floats(lists, GRADIENT));
            MultiTensorChecks.ofType(lists, PARAMETER, j, DType.BFLOAT16);
            moments(lists, j);
            MultiTensorChecks.ofType(lists, MASTER, j, DType.INT16);
        }
        return array;
    }

    /** TE has kernels for both moments of FLOAT32 and both of BFLOAT16. */
    private static void moments(TensorLists lists, int index) {
        Tensor first = lists.tensor(MEAN, 0);
        if (first.dtype() != DType.FLOAT32 && first.dtype() != DType.BFLOAT16) {
            throw new IllegalArgumentException(TensorLists.name(MEAN, 0)
                    + ": expected elements of FLOAT32 or BFLOAT16, got " + Checks.describe(first));
        }
        MultiTensorChecks.ofType(lists, MEAN, index, first.dtype());
        MultiTensorChecks.ofType(lists, SQUARE, index, first.dtype());
    }

    static MemorySegment capturable(
            Tensor noopFlag, TensorLists lists, int count, Tensor lr, Tensor step, Tensor invScale, Stream stream) {
        Checks.vector(stream, "noopFlag", noopFlag, DType.INT32, 1);
        MemorySegment array = MultiTensorChecks.listed(lists, count, stream);
        Checks.vector(stream, "lr", lr, DType.FLOAT32, 1);
        Checks.vector(stream, "step", step, DType.INT32, 1);
        Checks.vector(stream, "invScale", invScale, DType.FLOAT32, 1);
        for (int j = 0; j < lists.tensorCount(); j++) {
            DType type = MultiTensorChecks.floats(lists);
            for (int i = 0; i < count; i++) {
                MultiTensorChecks.ofType(lists, i, j, i == GRADIENT || i == PARAMETER ? type : DType.FLOAT32);
                MultiTensorChecks.apart("noopFlag", noopFlag, i, j, lists.tensor(i, j));
                MultiTensorChecks.apart("lr", lr, i, j, lists.tensor(i, j));
                MultiTensorChecks.apart("step", step, i, j, lists.tensor(i, j));
                MultiTensorChecks.apart("invScale", invScale, i, j, lists.tensor(i, j));
            }
        }
        return array;
    }

    static MemorySegment adamFp8(TensorLists lists, DType dtype, Stream stream) {
        Checks.given("stream", stream);
        RecipeChecks.float8(dtype);
        MemorySegment array =
                MultiTensorChecks.listed(lists, MASTER + 1 + TensorLists.SCALE_CELLS, TensorLists.SCALE_CELLS, stream);
        for (int j = 0; j < lists.tensorCount(); j++) {
            DType type = MultiTensorChecks.floats(lists);
            for (int i = 0; i <= MASTER; i++) {
                MultiTensorChecks.ofType(lists, i, j, i == GRADIENT ? type : i == PARAMETER ? dtype : DType.FLOAT32);
            }
        }
        return array;
    }

    static void step(float lr, int step, WeightDecay mode, BiasCorrection biasCorrection) {
        if (!(lr >= 0) || Float.isInfinite(lr)) {
            throw new IllegalArgumentException("lr: expected a number of at least 0, got " + lr);
        }
        if (step < 1) {
            throw new IllegalArgumentException("step: expected the number of a step, from 1 on, got " + step);
        }
        Checks.given("mode", mode);
        Checks.given("biasCorrection", biasCorrection);
    }

    static void numbers(float beta1, float beta2, float epsilon, float weightDecay) {
        if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1)) {
            throw new IllegalArgumentException(
                    "beta1, beta2: expected numbers within [0, 1), got " + beta1 + " and " + beta2);
        }
        if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
            // With epsilon 0, a gradient of 0 would give 0 / 0.
            throw new IllegalArgumentException("epsilon: expected a positive number, got " + epsilon);
        }
        if (!(weightDecay >= 0) || Float.isInfinite(weightDecay)) {
            throw new IllegalArgumentException("weightDecay: expected a number of at least 0, got " + weightDecay);
        }
    }
}
