package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.internal.TensorCell;

/**
 * {@code loss = mean over labelled tokens of logsumexp(z[t]) - z[t, label[t]]}.
 *
 * <p>Only the first {@code classes} columns of the logits take part; the others are padding and get no gradient. A label
 * outside 0 to {@code classes - 1}, by custom -100, leaves its token out. Computed in FP32.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_cross_entropy_forward}, {@code ops_cross_entropy_backward} in {@code ops.h}.
 */
public final class CrossEntropy {
    private final long classes;

    /**
     * Compares with {@code classes} classes.
     *
     * @throws IllegalArgumentException when there are fewer than one
     */
    public CrossEntropy(long classes) {
        if (classes < 1) {
            throw new IllegalArgumentException("classes: expected at least 1, got " + classes);
        }
        this.classes = classes;
    }

    /**
     * What backward needs.
     *
     * @param logits z
     * @param labels one a token
     * @param logSumExp FLOAT32 [T]
     * @param loss FLOAT32 [1]: the mean, 0 when no token is labelled
     * @param counted INT32 [1]: labelled tokens
     */
    public record Saved(Tensor logits, Tensor labels, Tensor logSumExp, Tensor loss, Tensor counted) {}

    /**
     * Enqueues the loss.
     *
     * @param logits [T, columns], at least as many columns as classes
     * @param labels INT32 [T]
     * @param scope receives the loss
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Saved forward(Tensor logits, Tensor labels, Scope scope) {
        TensorCell scores = checkLogits("logits", logits, scope);
        Checks.vector(scope, "labels", labels, DType.INT32, scores.size(0));
        Tensor logSumExp = scope.tensor(DType.FLOAT32, scores.size(0));
        Tensor loss = scope.tensor(DType.FLOAT32, 1);
        Tensor counted = scope.tensor(DType.INT32, 1);
        Status.ops(
                Ops.ops_cross_entropy_forward(
                        scores.pointer(),
                        labels.pointer(),
                        logSumExp.pointer(),
                        loss.pointer(),
                        counted.pointer(),
                        scores.size(0),
                        classes,
                        scores.size(1),
                        scores.dtype().code(),
                        scope.stream().handle()),
                "ops_cross_entropy_forward");
        Saved saved = scope.recall(Saved.class);
        if (saved == null || saved.logits != logits || saved.labels != labels || saved.loss != loss) {
            saved = new Saved(logits, labels, logSumExp, loss, counted);
        }
        return scope.keep(saved);
    }

    /**
     * Enqueues {@code dz = factor * dloss/dz}.
     *
     * @param saved what forward returned
     * @param factor on the loss, such as 1 over the micro-batches of a step
     * @param scope receives the gradient, like the logits
     * @throws IllegalArgumentException when the record does not fit these classes, or the factor is not finite
     */
    public Tensor backward(Saved saved, float factor, Scope scope) {
        TensorCell scores = checkLogits("saved.logits", saved.logits, scope);
        Checks.vector(scope, "saved.labels", saved.labels, DType.INT32, scores.size(0));
        Checks.vector(scope, "saved.logSumExp", saved.logSumExp, DType.FLOAT32, scores.size(0));
        Checks.vector(scope, "saved.counted", saved.counted, DType.INT32, 1);
        if (!Float.isFinite(factor)) {
            throw new IllegalArgumentException("factor: expected a finite number, got " + factor);
        }
        Tensor gradient = scope.like(saved.logits);
        Status.ops(
                Ops.ops_cross_entropy_backward(
                        scores.pointer(),
                        saved.labels.pointer(),
                        saved.logSumExp.pointer(),
                        saved.counted.pointer(),
                        factor,
                        gradient.pointer(),
                        scores.size(0),
                        classes,
                        scores.size(1),
                        scores.dtype().code(),
                        scope.stream().handle()),
                "ops_cross_entropy_backward");
        return gradient;
    }

    private TensorCell checkLogits(String argument, Tensor logits, Scope scope) {
        TensorCell scores = Checks.on(scope, argument, logits);
        if (scores.rank() != 2 || scores.size(1) < classes || !scores.dtype().isFloat()) {
            throw new IllegalArgumentException(argument + ": expected [T, at least " + classes
                    + " columns] of floats, got " + Checks.describe(scores));
        }
        return scores;
    }
}
