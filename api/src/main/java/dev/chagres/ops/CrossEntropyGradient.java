package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * The backward call of {@link CrossEntropy} and of {@link VocabularyCrossEntropy}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_cross_entropy_backward} in {@code ops.h}.
 */
final class CrossEntropyGradient {
    private CrossEntropyGradient() {}

    /** Enqueues the gradient, after checks of all arguments but logits, labels and numbers of classes, which the caller has checked. */
    static void enqueue(
            Tensor logits,
            Tensor labels,
            long first,
            long classes,
            long allClasses,
            float labelSmoothing,
            Tensor logSumExp,
            @Nullable Tensor divisor,
            float factor,
            @Nullable Tensor lossScale,
            @Nullable Tensor tokenGradients,
            Tensor dlogits,
            Stream stream) {
        Checks.vector(stream, "logSumExp", logSumExp, DType.FLOAT32, logits.size(0));
        if (!Float.isFinite(factor)) {
            throw new IllegalArgumentException("factor: expected a finite number, got " + factor);
        }
        Checks.like(stream, "dlogits", dlogits, logits);
        Checks.writable("dlogits", dlogits);
        Checks.apartOrSame("dlogits", dlogits, "logits", logits);
        Checks.apart("dlogits", dlogits, "labels", labels);
        Checks.apart("dlogits", dlogits, "logSumExp", logSumExp);
        checkRead("divisor", divisor, DType.INT32, 1, dlogits, stream);
        checkRead("lossScale", lossScale, DType.FLOAT32, 1, dlogits, stream);
        checkRead("tokenGradients", tokenGradients, DType.FLOAT32, logits.size(0), dlogits, stream);
        Status.ops(
                Ops.ops_cross_entropy_backward(
                        logits.address(),
                        labels.address(),
                        logSumExp.address(),
                        Checks.addressOrNull(divisor),
                        factor,
                        Checks.addressOrNull(lossScale),
                        Checks.addressOrNull(tokenGradients),
                        labelSmoothing,
                        dlogits.address(),
                        logits.size(0),
                        classes,
                        logits.size(1),
                        first,
                        allClasses,
                        logits.dtype().code(),
                        stream.handle()),
                "ops_cross_entropy_backward");
    }

    /** Checks an optional input of backward. */
    private static void checkRead(
            String argument, @Nullable Tensor tensor, DType dtype, long count, Tensor dlogits, Stream stream) {
        if (tensor != null) {
            Checks.vector(stream, argument, tensor, dtype, count);
            Checks.apart("dlogits", dlogits, argument, tensor);
        }
    }
}
