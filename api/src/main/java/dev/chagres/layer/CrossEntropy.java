package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * {@code loss = sum over labelled tokens of (logsumexp(z[t]) - z[t, label[t]]) / n}, where n is the number of labelled tokens, or
 * what the caller says.
 *
 * <p>Only the first {@code classes} columns of the logits take part; the others are padding and get no gradient. A label
 * outside 0 to {@code classes - 1}, by custom -100, leaves its token out. Computed in FP32.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_cross_entropy_forward}, {@code ops_cross_entropy_backward} in {@code ops.h}.
 */
public final class CrossEntropy {
    private static final class Scores extends Saved {
        private final Kept logits = new Kept("the logits");
        private final Kept labels = new Kept("the labels");
        private final Kept logSumExp = new Kept("the log-sum-exp");
        private final Kept divisor = new Kept("the divisor of the loss");
    }

    private final long classes;
    private final SavedPool<Scores> saved = new SavedPool<>(this, Scores::new);

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
     * Enqueues the mean over the labelled tokens.
     *
     * @param logits [T, columns], at least as many columns as classes
     * @param labels INT32 [T]
     * @return the loss, FLOAT32 [1]; 0 when no token is labelled
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor forward(Tensor logits, Tensor labels, Pass pass) {
        return run(logits, labels, null, pass);
    }

    /**
     * Enqueues the sum over the labelled tokens divided by a number of the caller's: that of the labelled tokens of a whole
     * step, so that micro-batches with unequal numbers of them add up to the mean of one batch.
     *
     * @param logits [T, columns], at least as many columns as classes
     * @param labels INT32 [T]
     * @param divisor INT32 [1]; it must not change before backward
     * @return this micro-batch's part of the loss, FLOAT32 [1]; 0 when the divisor is 0
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor forward(Tensor logits, Tensor labels, Tensor divisor, Pass pass) {
        return run(logits, labels, Checks.given("divisor", divisor), pass);
    }

    private Tensor run(Tensor logits, Tensor labels, @Nullable Tensor divisor, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Stream stream = pass.stream();
        checkLogits(logits, stream);
        Scope kept = pass.kept();
        Tensor loss = pass.temporary().tensor(DType.FLOAT32, 1);
        Tensor logSumExp = kept.tensor(DType.FLOAT32, logits.size(0));
        Tensor counted = kept.tensor(DType.INT32, 1);
        dev.chagres.ops.CrossEntropy.forward(logits, labels, classes, divisor, logSumExp, loss, counted, stream);
        Scores scores = saved.push(pass);
        if (scores != null) {
            scores.logits.set(logits);
            scores.labels.set(labels);
            scores.logSumExp.set(logSumExp);
            scores.divisor.set(divisor == null ? counted : divisor);
        }
        return loss;
    }

    /**
     * Enqueues {@code dz = dloss/dz}, which takes the place of the logits.
     *
     * @return the gradient of the logits, in their memory: read the logits before
     * @throws IllegalStateException when the last forward call of the pass was another layer's
     */
    public Tensor backward(Pass pass) {
        return backward(1, pass);
    }

    /**
     * Enqueues {@code dz = factor * dloss/dz}, which takes the place of the logits.
     *
     * @param factor on the loss
     * @return the gradient of the logits, in their memory: read the logits before
     * @throws IllegalArgumentException when the factor is not finite
     * @throws IllegalStateException when the last forward call of the pass was another layer's
     */
    public Tensor backward(float factor, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        if (!Float.isFinite(factor)) {
            throw new IllegalArgumentException("factor: expected a finite number, got " + factor);
        }
        Scores scores = saved.peek(pass);
        Tensor logits = scores.logits.get();
        Tensor labels = scores.labels.get();
        Tensor logSumExp = scores.logSumExp.get();
        Tensor divisor = scores.divisor.get();
        saved.pop(pass);
        dev.chagres.ops.CrossEntropy.backward(
                logits, labels, classes, logSumExp, divisor, factor, logits, pass.stream());
        return logits;
    }

    private void checkLogits(Tensor logits, Stream stream) {
        Checks.on(stream, "logits", logits);
        if (logits.rank() != 2 || logits.size(1) < classes || !logits.dtype().isFloat()) {
            throw new IllegalArgumentException(
                    "logits: expected [T, at least " + classes + " columns] of floats, got " + Checks.describe(logits));
        }
        // Backward writes the gradient there.
        Checks.writable("logits", logits);
    }

    @Override
    public String toString() {
        return "cross-entropy of " + classes + " classes";
    }
}
