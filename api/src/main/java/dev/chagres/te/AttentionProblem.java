package dev.chagres.te;

import dev.chagres.internal.Checks;

/**
 * What an attention computes, apart from its tensors: {@code o = dropout(softmax(scale q k^T + bias + mask)) v} for each head.
 *
 * <p>Built by name: {@code AttentionProblem.of(layout, scale).withMask(CAUSAL).withDropout(0.1f)}.
 *
 * <p>Threading: immutable.
 *
 * @param layout how query, key and value lie in memory, and their gradients, too
 * @param mask which keys a query sees
 * @param windowLeft keys before its diagonal that a query sees, -1 all
 * @param windowRight keys after its diagonal that a query sees, -1 all
 * @param scale factor of the scores q k^T, finite
 * @param dropout probability of dropping an attention weight, at least 0 and below 1
 * @param mode whether a backward call follows
 * @param order whether gradients are deterministic
 * @param biasType what {@link FusedAttention} adds to scores; our own kernels take it from {@link dev.chagres.ops.AttentionScores}
 * @param softmaxType the extra term in the denominator of {@link FusedAttention}'s softmax
 */
public record AttentionProblem(
        QkvLayout layout,
        MaskType mask,
        long windowLeft,
        long windowRight,
        float scale,
        float dropout,
        Mode mode,
        Order order,
        BiasType biasType,
        SoftmaxType softmaxType) {
    /** Whether a backward call follows. */
    public enum Mode {
        /** Yes; attention weights are dropped. */
        TRAINING,
        /** No; nothing is dropped. */
        INFERENCE
    }

    /** The order of the sums in backward. */
    public enum Order {
        /** The fastest one: equal inputs may give gradients that differ in the last bits. */
        FASTEST,
        /** A fixed one: equal inputs give equal bits. */
        DETERMINISTIC
    }

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when a window side is below -1, a causal mask has a window behind the diagonal, or
     *     scale or dropout are out of their ranges
     */
    public AttentionProblem {
        Checks.given("layout", layout, "mask", mask, "mode", mode, "order", order);
        Checks.given("biasType", biasType, "softmaxType", softmaxType);
        if (windowLeft < -1 || windowRight < -1) {
            throw new IllegalArgumentException(
                    "window: expected -1 (unbounded) or more on each side, got " + windowLeft + " and " + windowRight);
        }
        if (mask.isCausal() && windowRight > 0) {
            throw new IllegalArgumentException(
                    "windowRight: expected 0 or -1 under " + mask + ", which shows no later key, got " + windowRight);
        }
        if (!(scale > 0) || Float.isInfinite(scale)) {
            throw new IllegalArgumentException("scale: expected a number above 0, got " + scale);
        }
        Checks.probability("dropout", dropout);
    }

    /** Every query sees every key; nothing is dropped and scores stay as they are; a backward call follows. */
    public static AttentionProblem of(QkvLayout layout, float scale) {
        return new AttentionProblem(
                layout,
                MaskType.NO_MASK,
                -1,
                -1,
                scale,
                0,
                Mode.TRAINING,
                Order.FASTEST,
                BiasType.NO_BIAS,
                SoftmaxType.VANILLA);
    }

    /** Returns this problem with another layout. */
    public AttentionProblem withLayout(QkvLayout newLayout) {
        return new AttentionProblem(
                newLayout, mask, windowLeft, windowRight, scale, dropout, mode, order, biasType, softmaxType);
    }

    /** Returns this problem with another mask. */
    public AttentionProblem withMask(MaskType newMask) {
        return new AttentionProblem(
                layout, newMask, windowLeft, windowRight, scale, dropout, mode, order, biasType, softmaxType);
    }

    /** Returns this problem with a window of {@code left} keys before and {@code right} keys after the diagonal; -1: all. */
    public AttentionProblem withWindow(long left, long right) {
        return new AttentionProblem(layout, mask, left, right, scale, dropout, mode, order, biasType, softmaxType);
    }

    /** Returns this problem with another probability of dropping an attention weight. */
    public AttentionProblem withDropout(float probability) {
        return new AttentionProblem(
                layout, mask, windowLeft, windowRight, scale, probability, mode, order, biasType, softmaxType);
    }

    /** Returns this problem with something else added to scores. */
    public AttentionProblem withBiasType(BiasType newType) {
        return new AttentionProblem(
                layout, mask, windowLeft, windowRight, scale, dropout, mode, order, newType, softmaxType);
    }

    /** Returns this problem with another softmax. */
    public AttentionProblem withSoftmaxType(SoftmaxType newType) {
        return new AttentionProblem(
                layout, mask, windowLeft, windowRight, scale, dropout, mode, order, biasType, newType);
    }

    /** Returns this problem for a forward call that no backward call follows. */
    public AttentionProblem forInference() {
        return new AttentionProblem(
                layout, mask, windowLeft, windowRight, scale, dropout, Mode.INFERENCE, order, biasType, softmaxType);
    }

    /** Returns this problem with gradients that have the same bits each time. */
    public AttentionProblem deterministic() {
        return new AttentionProblem(
                layout,
                mask,
                windowLeft,
                windowRight,
                scale,
                dropout,
                mode,
                Order.DETERMINISTIC,
                biasType,
                softmaxType);
    }

    /** Returns whether the call draws random numbers: it drops weights, and is in training. */
    public boolean draws() {
        return dropout > 0 && mode == Mode.TRAINING;
    }

    /** Returns whether scores go as they are into a vanilla softmax. */
    public boolean isPlain() {
        return biasType == BiasType.NO_BIAS && softmaxType == SoftmaxType.VANILLA;
    }
}
