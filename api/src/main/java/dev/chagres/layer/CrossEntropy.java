package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.CrossEntropy.Factors;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import org.jspecify.annotations.Nullable;

/**
 * {@code loss = sum over labelled tokens of l[t] / n}, where {@code l[t] = logsumexp(z[t]) - (1 - e) z[t, label[t]] - e (mean of z[t] over
 * the classes)}. n is the number of labelled tokens, or a number of the caller's. e is the label smoothing, 0 by default, set by {@link
 * #withLabelSmoothing}. {@link #tokenLosses} gives l itself.
 *
 * <p>Only the first {@code classes} columns of the logits take part; the others are padding and get no gradient. A token whose label is
 * outside 0 to {@code classes - 1}, by convention -100, is left out. Computed in FP32.
 *
 * <p>{@link #vocabularyParallel} makes a loss of logits whose columns are split among tensor-parallel ranks.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_cross_entropy_forward}, {@code ops_cross_entropy_backward} in {@code ops.h}; PyTorch's
 * {@code torch.nn.CrossEntropyLoss}.
 */
public final class CrossEntropy {
    private static final class Scores extends SavedContext {
        private final SavedTensor logits = new SavedTensor("the logits");
        private final SavedTensor labels = new SavedTensor("the labels");
        private final SavedTensor logSumExp = new SavedTensor("the log-sum-exp");
        /** Empty where forward gave a loss for each token. */
        private final SavedTensor divisor = new SavedTensor("the divisor of the loss");

        private final Factors factors = Factors.one();
    }

    private final long classes;
    private final float labelSmoothing;
    private final dev.chagres.ops.CrossEntropy whole;
    /** Null where each rank has all columns. */
    private final @Nullable ClassSplit split;
    /** The number of columns of the logits; 0: any number that is at least the number of classes. */
    private final long columns;

    private final ContextPool<Scores> saved = new ContextPool<>(this, Scores::new);

    /**
     * Compares with {@code classes} classes.
     *
     * @throws IllegalArgumentException when there are fewer than one
     */
    public CrossEntropy(long classes) {
        this(classes, 0, null, 0);
    }

    /**
     * Makes a loss of logits whose columns are split among the tensor-parallel ranks of {@code plan}, as those of a decoder whose weight is
     * the table of {@link Embedding#vocabularyParallel}: each rank passes its own columns, [T, columns of this rank], all pass the same
     * labels, and all get the same loss. Without tensor-parallel ranks it is {@link #CrossEntropy(long)} of logits with all columns.
     *
     * <p>Forward reduces over the ranks, in FP32, T largest logits and then 2 T sums, 3 T with label smoothing; backward reduces nothing.
     *
     * @param classes of all ranks together
     * @param columns of the logits of all ranks together; those from {@code classes} on are padding, and a rank may have padding only
     * @throws IllegalArgumentException when there is no class, or there are fewer columns than classes
     */
    public static CrossEntropy vocabularyParallel(long classes, long columns, ModelPlan plan) {
        TensorParallel ranks = Checks.given("plan", plan).tensorParallel();
        if (classes >= 1 && columns < classes) {
            throw new IllegalArgumentException(
                    "columns: expected at least the " + classes + " classes, got " + columns);
        }
        CrossEntropy whole = new CrossEntropy(classes, 0, null, columns);
        return ranks.isSplit() ? new CrossEntropy(classes, 0, ClassSplit.of(ranks, classes, columns), columns) : whole;
    }

    private CrossEntropy(long classes, float labelSmoothing, @Nullable ClassSplit split, long columns) {
        whole = new dev.chagres.ops.CrossEntropy(classes, labelSmoothing);
        this.classes = classes;
        this.labelSmoothing = labelSmoothing;
        this.split = split;
        this.columns = columns;
    }

    /**
     * Returns a loss like this one whose target distribution is {@code 1 - e + e / classes} for the label's class and {@code e / classes}
     * for every other class.
     *
     * @param newLabelSmoothing e, 0 to 1
     * @throws IllegalArgumentException when it is outside
     */
    public CrossEntropy withLabelSmoothing(float newLabelSmoothing) {
        ClassSplit smoothed = split == null ? null : split.withLabelSmoothing(newLabelSmoothing);
        return new CrossEntropy(classes, newLabelSmoothing, smoothed, columns);
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
        return run(logits, labels, Over.COUNTED, null, pass);
    }

    /**
     * Enqueues the sum over the labelled tokens, divided by a number of the caller's: usually the number of labelled tokens of the whole
     * step, so that the losses of unequal micro-batches add up to the mean over one batch.
     *
     * @param logits [T, columns], at least as many columns as classes
     * @param labels INT32 [T]
     * @param divisor INT32 [1]; it must not change before backward
     * @return this micro-batch's part of the loss, FLOAT32 [1]; 0 when the divisor is 0
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor forward(Tensor logits, Tensor labels, Tensor divisor, Pass pass) {
        return run(logits, labels, Over.GIVEN, Checks.given("divisor", divisor), pass);
    }

    /**
     * Enqueues the loss of each token, which the caller may weight: PyTorch's {@code reduction="none"}. Its backward is {@link
     * #backward(Tensor, Pass)}.
     *
     * @param logits [T, columns], at least as many columns as classes
     * @param labels INT32 [T]
     * @return l, FLOAT32 [T]; 0 for tokens without a label
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor tokenLosses(Tensor logits, Tensor labels, Pass pass) {
        return run(logits, labels, Over.NOTHING, null, pass);
    }

    /** The divisor of the sum of the losses; NOTHING: the losses are not summed. */
    private enum Over {
        COUNTED,
        GIVEN,
        NOTHING
    }

    private Tensor run(Tensor logits, Tensor labels, Over over, @Nullable Tensor divisor, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Stream stream = pass.stream();
        checkLogits(logits, stream);
        if (split != null) {
            split.checkTokens(logits, labels);
        }
        Scope kept = pass.kept();
        Scope temporary = pass.temporary();
        Tensor tokenLosses = over == Over.NOTHING ? temporary.tensor(DType.FLOAT32, logits.size(0)) : null;
        Tensor loss = temporary.tensor(DType.FLOAT32, 1);
        Tensor logSumExp = kept.tensor(DType.FLOAT32, logits.size(0));
        Tensor counted = kept.tensor(DType.INT32, 1);
        if (split == null) {
            whole.forward(logits, labels, divisor, logSumExp, tokenLosses, loss, counted, stream);
        } else {
            Scope before = pass.enter();
            try {
                split.forward(logits, labels, divisor, logSumExp, tokenLosses, loss, counted, pass);
            } finally {
                pass.leave(before);
            }
        }
        Scores scores = saved.push(pass);
        if (scores != null) {
            scores.logits.set(logits);
            scores.labels.set(labels);
            scores.logSumExp.set(logSumExp);
            scores.divisor.clear();
            if (over != Over.NOTHING) {
                scores.divisor.set(divisor == null ? counted : divisor);
            }
        }
        return tokenLosses != null ? tokenLosses : loss;
    }

    /**
     * Enqueues {@code dz = dloss/dz}, which takes the place of the logits.
     *
     * @return the gradient of the logits, in their memory: read the logits before
     * @throws IllegalStateException when the last forward call of the pass was another layer's or {@link #tokenLosses}
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
     * @throws IllegalStateException when the last forward call of the pass was another layer's or {@link #tokenLosses}
     */
    public Tensor backward(float factor, Pass pass) {
        return backward(factor, null, null, pass);
    }

    /**
     * Enqueues {@code dz = factor * lossScale * dloss/dz}, which takes the place of the logits. FP16 gradients need the scale:
     * without it small ones become 0.
     *
     * @param factor on the loss
     * @param lossScale FLOAT32 [1], read on the device
     * @return the gradient of the logits, in their memory: read the logits before
     * @throws IllegalArgumentException when the factor is not finite, or shape, type or device do not fit
     * @throws IllegalStateException when the last forward call of the pass was another layer's or {@link #tokenLosses}
     */
    public Tensor backward(float factor, @Nullable Tensor lossScale, Pass pass) {
        return backward(factor, lossScale, null, pass);
    }

    /**
     * Enqueues {@code dz[t] = tokenGradients[t] * dl[t]/dz[t]}, which takes the place of the logits.
     *
     * @param tokenGradients FLOAT32 [T]: the gradient of the tensor that {@link #tokenLosses} returned
     * @return the gradient of the logits, in their memory: read the logits before
     * @throws IllegalArgumentException when shape, type or device do not fit
     * @throws IllegalStateException when the last forward call of the pass was not {@link #tokenLosses} of this
     */
    public Tensor backward(Tensor tokenGradients, Pass pass) {
        return backward(1, null, Checks.given("tokenGradients", tokenGradients), pass);
    }

    private Tensor backward(float factor, @Nullable Tensor lossScale, @Nullable Tensor tokenGradients, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Scores scores = saved.peek(pass);
        if (scores.divisor.isEmpty() != (tokenGradients != null)) {
            throw new IllegalStateException(
                    tokenGradients == null
                            ? "the last forward was tokenLosses: call backward(tokenGradients, pass)"
                            : "the last forward gave one loss: call backward(factor, pass)");
        }
        Tensor logits = scores.logits.get();
        Tensor labels = scores.labels.get();
        Tensor logSumExp = scores.logSumExp.get();
        Tensor divisor = tokenGradients == null ? scores.divisor.get() : null;
        checkScales(logits, lossScale, tokenGradients, pass.stream());
        Factors factors = scores.factors.set(factor, lossScale, tokenGradients);
        saved.pop(pass);
        if (split != null) {
            split.backward(logits, labels, logSumExp, divisor, factors, pass.stream());
        } else {
            whole.backward(logits, labels, logSumExp, divisor, factors, logits, pass.stream());
        }
        return logits;
    }

    /** Called before anything is popped from the pass, so that backward can be called again after an error. */
    private static void checkScales(
            Tensor logits, @Nullable Tensor lossScale, @Nullable Tensor tokenGradients, Stream stream) {
        if (lossScale != null) {
            Checks.vector(stream, "lossScale", lossScale, DType.FLOAT32, 1);
            Checks.apart("logits", logits, "lossScale", lossScale);
        }
        if (tokenGradients != null) {
            Checks.vector(stream, "tokenGradients", tokenGradients, DType.FLOAT32, logits.size(0));
            Checks.apart("logits", logits, "tokenGradients", tokenGradients);
        }
    }

    private void checkLogits(Tensor logits, Stream stream) {
        Checks.on(stream, "logits", logits);
        boolean fits = logits.rank() == 2
                && (split != null
                        ? logits.size(1) == split.columns()
                        : columns > 0 ? logits.size(1) == columns : logits.size(1) >= classes);
        if (!fits || !logits.dtype().isFloat()) {
            String wanted = split != null
                    ? split.columns() + " columns] of floats, " + split
                    : (columns > 0 ? columns : "at least " + classes) + " columns] of floats";
            throw new IllegalArgumentException("logits: expected [T, " + wanted + ", got " + Checks.describe(logits));
        }
        // Backward writes the gradient there.
        Checks.writable("logits", logits);
    }

    @Override
    public String toString() {
        return "cross-entropy of " + classes + " classes"
                + (labelSmoothing == 0 ? "" : ", label smoothing " + labelSmoothing);
    }
}
