package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.CallMemory;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import org.jspecify.annotations.Nullable;

/**
 * Cross-entropy of logits [T, columns] with labels, over the first {@code classes} columns; the others are padding. A token whose label is
 * outside 0 to {@code classes - 1}, such as -100, is ignored. With label smoothing e the loss of a token is {@code l[t] = logsumexp(z[t]) -
 * (1 - e) z[t, label[t]] - e (mean of z[t] over the classes)}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_cross_entropy_forward}, {@code ops_cross_entropy_backward} in {@code ops.h}; Szegedy et al.,
 * Rethinking the Inception architecture for computer vision (2016).
 */
public final class CrossEntropy {
    /**
     * What the gradient of a loss is multiplied by, besides the reciprocal of the divisor; the object is reused for the next call.
     *
     * <p>Threading: the device's thread.
     */
    public static final class Factors {
        private float factor;
        private @Nullable Tensor lossScale;
        private @Nullable Tensor tokenGradients;

        /**
         * Makes them; the tensors are checked by each call.
         *
         * @param factor finite
         * @param lossScale FLOAT32 [1]; null: 1
         * @param tokenGradients FLOAT32 [T], the gradient of each token's loss; null: 1 each
         * @throws IllegalArgumentException when the factor is infinite or no number
         */
        public Factors(float factor, @Nullable Tensor lossScale, @Nullable Tensor tokenGradients) {
            set(factor, lossScale, tokenGradients);
        }

        /** Returns the factor 1, without tensors. */
        public static Factors one() {
            return new Factors(1, null, null);
        }

        /**
         * Sets all three.
         *
         * @throws IllegalArgumentException when the factor is infinite or no number
         */
        public Factors set(float newFactor, @Nullable Tensor newLossScale, @Nullable Tensor newTokenGradients) {
            Numbers.finite("factor", newFactor);
            factor = newFactor;
            lossScale = newLossScale;
            tokenGradients = newTokenGradients;
            return this;
        }

        /** Returns the factor. */
        public float factor() {
            return factor;
        }

        /** Returns the loss scale; null: 1. */
        public @Nullable Tensor lossScale() {
            return lossScale;
        }

        /** Returns the gradient of each token's loss; null: 1 each. */
        public @Nullable Tensor tokenGradients() {
            return tokenGradients;
        }
    }

    /** The classes as those of a single rank. */
    private final VocabularyCrossEntropy whole;

    /**
     * Makes a loss over classes.
     *
     * @param classes columns that take part, at least 1
     * @param labelSmoothing e, 0 to 1
     * @throws IllegalArgumentException when a number is outside
     */
    public CrossEntropy(long classes, float labelSmoothing) {
        Checks.atLeastOne("classes", classes);
        whole = new VocabularyCrossEntropy(0, classes, classes, labelSmoothing);
    }

    /**
     * Enqueues {@code loss = sum of l[t] over counted tokens / divisor}, 0 if the divisor is not above 0, and the loss of each token.
     *
     * @param logits z, floating-point numbers [T, at least classes]
     * @param labels INT32 [T]
     * @param divisor INT32 [1], such as the tokens counted in all micro-batches of a step; null: the tokens counted here
     * @param logSumExp FLOAT32 [T], what {@link #backward} needs
     * @param tokenLosses FLOAT32 [T]: receives l, 0 for ignored tokens; may be null
     * @param loss FLOAT32 [1]
     * @param counted INT32 [1]: receives the number of tokens that are not left out
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public void forward(
            Tensor logits,
            Tensor labels,
            @Nullable Tensor divisor,
            Tensor logSumExp,
            @Nullable Tensor tokenLosses,
            Tensor loss,
            Tensor counted,
            Stream stream) {
        whole.checkLogits(logits, stream);
        Checks.vector(stream, "labels", labels, DType.INT32, logits.size(0));
        Checks.vector(stream, "logSumExp", logSumExp, DType.FLOAT32, logits.size(0));
        Checks.vector(stream, "loss", loss, DType.FLOAT32, 1);
        Checks.vector(stream, "counted", counted, DType.INT32, 1);
        if (divisor != null) {
            Checks.vector(stream, "divisor", divisor, DType.INT32, 1);
        }
        if (tokenLosses != null) {
            Checks.vector(stream, "tokenLosses", tokenLosses, DType.FLOAT32, logits.size(0));
        }
        CallMemory.of(stream)
                .read("logits", logits)
                .read("labels", labels)
                .read("divisor", divisor)
                .written("logSumExp", logSumExp)
                .written("loss", loss)
                .written("counted", counted)
                .written("tokenLosses", tokenLosses);
        Status.ops(
                Ops.ops_cross_entropy_forward(
                        logits.address(),
                        labels.address(),
                        Checks.addressOrNull(divisor),
                        whole.labelSmoothing(),
                        logSumExp.address(),
                        Checks.addressOrNull(tokenLosses),
                        loss.address(),
                        counted.address(),
                        logits.size(0),
                        whole.classes(),
                        logits.size(1),
                        logits.dtype().code(),
                        stream.handle()),
                "ops_cross_entropy_forward");
    }

    /**
     * Enqueues {@code dlogits[t] = factor lossScale tokenGradients[t] / divisor dl[t]/dlogits[t]}; ignored tokens, and columns of padding,
     * get 0.
     *
     * @param logits those of forward
     * @param labels those of forward
     * @param logSumExp what forward wrote
     * @param divisor INT32 [1]: forward's or, where that was null, the count that forward wrote; null: the gradient is that of
     *     the sum of the losses, or of the losses by token
     * @param dlogits like the logits; may be the logits
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dlogits shares memory otherwise
     */
    public void backward(
            Tensor logits,
            Tensor labels,
            Tensor logSumExp,
            @Nullable Tensor divisor,
            Factors factors,
            Tensor dlogits,
            Stream stream) {
        whole.backward(logits, labels, logSumExp, divisor, factors, dlogits, stream);
    }
}
