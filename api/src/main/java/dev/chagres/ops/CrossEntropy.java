package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Cross-entropy of logits [T, columns] with labels, over the first {@code classes} columns; the others are padding. A label
 * outside 0 to {@code classes - 1}, by custom -100, leaves its token out.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_cross_entropy_forward}, {@code ops_cross_entropy_backward} in {@code ops.h}.
 */
public final class CrossEntropy {
    private CrossEntropy() {}

    /**
     * Enqueues {@code loss = sum over counted tokens of (logsumexp(z[t]) - z[t, label[t]]) / divisor}, 0 where the divisor is
     * not above 0.
     *
     * @param logits z, floating-point numbers [T, at least classes]
     * @param labels INT32 [T]
     * @param classes columns that take part, at least 1
     * @param divisor INT32 [1], such as the tokens counted in all micro-batches of a step; null: the tokens counted here
     * @param logSumExp FLOAT32 [T], what {@link #backward} needs
     * @param loss FLOAT32 [1]
     * @param counted INT32 [1]: receives the number of tokens that are not left out
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void forward(
            Tensor logits,
            Tensor labels,
            long classes,
            @Nullable Tensor divisor,
            Tensor logSumExp,
            Tensor loss,
            Tensor counted,
            Stream stream) {
        checkLogits(logits, labels, classes, stream);
        Checks.vector(stream, "logSumExp", logSumExp, DType.FLOAT32, logits.size(0));
        Checks.vector(stream, "loss", loss, DType.FLOAT32, 1);
        Checks.vector(stream, "counted", counted, DType.INT32, 1);
        checkWritten("logSumExp", logSumExp, logits, labels);
        checkWritten("loss", loss, logits, labels);
        checkWritten("counted", counted, logits, labels);
        Checks.apart("loss", loss, "logSumExp", logSumExp);
        Checks.apart("counted", counted, "logSumExp", logSumExp);
        Checks.apart("counted", counted, "loss", loss);
        if (divisor != null) {
            Checks.vector(stream, "divisor", divisor, DType.INT32, 1);
            Checks.apart("logSumExp", logSumExp, "divisor", divisor);
            Checks.apart("loss", loss, "divisor", divisor);
            Checks.apart("counted", counted, "divisor", divisor);
        }
        Status.ops(
                Ops.ops_cross_entropy_forward(
                        logits.address(),
                        labels.address(),
                        Checks.addressOrNull(divisor),
                        logSumExp.address(),
                        loss.address(),
                        counted.address(),
                        logits.size(0),
                        classes,
                        logits.size(1),
                        logits.dtype().code(),
                        stream.handle()),
                "ops_cross_entropy_forward");
    }

    /**
     * Enqueues {@code dlogits = factor dloss/dz}; tokens that are left out, and columns of padding, get 0.
     *
     * @param logits those of forward
     * @param labels those of forward
     * @param classes that of forward
     * @param logSumExp what forward wrote
     * @param divisor INT32 [1]: forward's or, where that was null, the count that forward wrote
     * @param factor on the loss, finite
     * @param dlogits like the logits; may be the logits
     * @throws IllegalArgumentException when shapes, types, factor or devices do not fit, or dlogits shares memory
     *     otherwise
     */
    public static void backward(
            Tensor logits,
            Tensor labels,
            long classes,
            Tensor logSumExp,
            Tensor divisor,
            float factor,
            Tensor dlogits,
            Stream stream) {
        checkLogits(logits, labels, classes, stream);
        Checks.vector(stream, "logSumExp", logSumExp, DType.FLOAT32, logits.size(0));
        Checks.vector(stream, "divisor", divisor, DType.INT32, 1);
        if (!Float.isFinite(factor)) {
            throw new IllegalArgumentException("factor: expected a finite number, got " + factor);
        }
        Checks.like(stream, "dlogits", dlogits, logits);
        Checks.writable("dlogits", dlogits);
        Checks.apartOrSame("dlogits", dlogits, "logits", logits);
        Checks.apart("dlogits", dlogits, "labels", labels);
        Checks.apart("dlogits", dlogits, "logSumExp", logSumExp);
        Checks.apart("dlogits", dlogits, "divisor", divisor);
        Status.ops(
                Ops.ops_cross_entropy_backward(
                        logits.address(),
                        labels.address(),
                        logSumExp.address(),
                        divisor.address(),
                        factor,
                        dlogits.address(),
                        logits.size(0),
                        classes,
                        logits.size(1),
                        logits.dtype().code(),
                        stream.handle()),
                "ops_cross_entropy_backward");
    }

    private static void checkLogits(Tensor logits, Tensor labels, long classes, Stream stream) {
        if (classes < 1) {
            throw new IllegalArgumentException("classes: expected at least 1, got " + classes);
        }
        Checks.on(stream, "logits", logits);
        if (logits.rank() != 2 || logits.size(1) < classes || !logits.dtype().isFloat()) {
            throw new IllegalArgumentException(
                    "logits: expected [T, at least " + classes + " columns] of floats, got " + Checks.describe(logits));
        }
        Checks.vector(stream, "labels", labels, DType.INT32, logits.size(0));
    }

    private static void checkWritten(String argument, Tensor tensor, Tensor logits, Tensor labels) {
        Checks.writable(argument, tensor);
        Checks.apart(argument, tensor, "logits", logits);
        Checks.apart(argument, tensor, "labels", labels);
    }
}
