package dev.chagres.layer;

import dev.chagres.attention.AttentionMask;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.LayerSummary;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.SoftmaxType;

/**
 * What an attention module computes: {@code softmax(scale q k^T + mask) v} for each head. {@link #of} has the usual values; the
 * {@code with} methods change one each.
 *
 * <p>Threading: immutable.
 *
 * @param heads query heads h
 * @param keyHeads heads g of key and value: h, or a divisor of it when several query heads share one
 * @param headDim size d of a head: a multiple of 8, at most 256, which is what the kernels take
 * @param mask which keys a query sees
 * @param dropout of attention weights
 * @param scale factor on query times key, usually {@code 1 / sqrt(d)}
 * @param qkNorm of each head of query and key, which {@link MultiheadAttention} and {@link CrossAttention} compute
 * @param order of the sums in backward
 * @param softcap c, which changes scores s to {@code c tanh(s / c)} before the softmax; 0 for unchanged scores
 * @param softmaxType which term the sum of the softmax has besides the exponentials of the scores
 */
public record AttentionConfig(
        int heads,
        int keyHeads,
        int headDim,
        AttentionMask mask,
        Dropout dropout,
        float scale,
        QkNorm qkNorm,
        Order order,
        float softcap,
        SoftmaxType softmaxType) {
    private static final int HEAD_DIM_MULTIPLE = 8;
    private static final int LARGEST_HEAD_DIM = 256;

    /**
     * Checks the sizes.
     *
     * @throws IllegalArgumentException when a size is not positive, no kernel takes the head dimension, or the query heads
     *     cannot be divided evenly
     */
    public AttentionConfig {
        Checks.given("mask", mask, "dropout", dropout, "qkNorm", qkNorm, "order", order);
        Checks.given("softmaxType", softmaxType);
        Checks.atLeastOne("heads", heads);
        if (keyHeads < 1 || heads % keyHeads != 0) {
            throw new IllegalArgumentException(
                    "keyHeads: expected a divisor of the " + heads + " query heads, got " + keyHeads);
        }
        if (headDim < HEAD_DIM_MULTIPLE || headDim > LARGEST_HEAD_DIM || headDim % HEAD_DIM_MULTIPLE != 0) {
            throw new IllegalArgumentException(
                    "headDim: expected a multiple of 8 from 8 to 256, which attention's kernels take, got " + headDim);
        }
        Numbers.positive("scale", scale);
        if (!(softcap >= 0) || Float.isInfinite(softcap)) {
            throw new IllegalArgumentException("softcap: expected a positive number, or 0 for none, got " + softcap);
        }
    }

    /** Attention scaled by {@code 1 / sqrt(headDim)}, with a key head for each query head and no dropout. */
    public static AttentionConfig of(int heads, int headDim, AttentionMask mask) {
        return new AttentionConfig(
                heads,
                heads,
                headDim,
                mask,
                Dropout.none(),
                (float) (1 / Math.sqrt(Math.max(1, headDim))),
                QkNorm.none(),
                Order.FASTEST,
                0,
                SoftmaxType.VANILLA);
    }

    /** Returns the same with {@code newKeyHeads} heads of key and value. */
    public AttentionConfig withKeyHeads(int newKeyHeads) {
        return new AttentionConfig(
                heads, newKeyHeads, headDim, mask, dropout, scale, qkNorm, order, softcap, softmaxType);
    }

    /** Returns the same with another mask. */
    public AttentionConfig withMask(AttentionMask newMask) {
        return new AttentionConfig(
                heads, keyHeads, headDim, newMask, dropout, scale, qkNorm, order, softcap, softmaxType);
    }

    /** Returns the same with dropout of attention weights. */
    public AttentionConfig withDropout(Dropout newDropout) {
        return new AttentionConfig(
                heads, keyHeads, headDim, mask, newDropout, scale, qkNorm, order, softcap, softmaxType);
    }

    /** Returns the same with another factor on query times key. */
    public AttentionConfig withScale(float newScale) {
        return new AttentionConfig(
                heads, keyHeads, headDim, mask, dropout, newScale, qkNorm, order, softcap, softmaxType);
    }

    /** Returns the same with a norm of each head of query and key. */
    public AttentionConfig withQkNorm(QkNorm newQkNorm) {
        return new AttentionConfig(
                heads, keyHeads, headDim, mask, dropout, scale, newQkNorm, order, softcap, softmaxType);
    }

    /**
     * Returns the same with gradients that have the same bits each time. For packed sequences cuDNN needs about 128 B h S^2 bytes more
     * workspace for this, with B sequences of at most S tokens.
     */
    public AttentionConfig deterministic() {
        return new AttentionConfig(
                heads, keyHeads, headDim, mask, dropout, scale, qkNorm, Order.DETERMINISTIC, softcap, softmaxType);
    }

    /** Returns the same with scores s replaced by {@code newSoftcap * tanh(s / newSoftcap)}, as in Gemma 2; 0 for unchanged scores. */
    public AttentionConfig withSoftcap(float newSoftcap) {
        return new AttentionConfig(
                heads, keyHeads, headDim, mask, dropout, scale, qkNorm, order, newSoftcap, softmaxType);
    }

    /** Returns the same with another softmax; the sinks of a learnable one are a parameter, {@code softmax_offset} [h]. */
    public AttentionConfig withSoftmaxType(SoftmaxType newType) {
        return new AttentionConfig(heads, keyHeads, headDim, mask, dropout, scale, qkNorm, order, softcap, newType);
    }

    /** Returns the heads, and options that differ from their defaults. */
    LayerSummary summary() {
        AttentionConfig usual = of(heads, headDim, mask);
        return new LayerSummary()
                .with("heads", heads)
                .withUnlessUsual("keyHeads", keyHeads, usual.keyHeads)
                .with("headDim", headDim)
                .with("mask", mask.kind())
                .withUnlessUsual("windowLeft", mask.windowLeft(), -1L)
                .withUnlessUsual("windowRight", Math.max(0, mask.windowRight()), 0L)
                .withUnlessUsual("dropout", dropout.probability(), 0f)
                .withUnlessUsual("scale", scale, usual.scale)
                .withUnlessUsual("qkNorm", qkNorm.kind(), usual.qkNorm.kind())
                .withUnlessUsual("order", order, usual.order)
                .withUnlessUsual("softcap", softcap, 0f)
                .withUnlessUsual("softmaxType", softmaxType, usual.softmaxType);
    }

    /**
     * Returns this with only the heads that the plan's rank computes, of tensor-parallel or context-parallel ranks.
     *
     * @throws IllegalArgumentException when the ranks do not divide the heads
     */
    AttentionConfig ofRank(ModelPlan plan) {
        return new AttentionConfig(
                share("heads", heads, plan),
                share("keyHeads", keyHeads, plan),
                headDim,
                mask,
                dropout,
                scale,
                qkNorm,
                order,
                softcap,
                softmaxType);
    }

    private static int share(String what, int count, ModelPlan plan) {
        TensorParallel tensor = plan.tensorParallel();
        ContextParallel context = plan.contextParallel();
        long own = tensor.share(what, plan.name(), count);
        if (tensor.isSplit() && context.dividesHeads() && own % context.size() != 0) {
            throw new IllegalArgumentException(
                    what + ": " + (plan.name().isEmpty() ? "the layer" : plan.name()) + " expected a multiple of "
                            + tensor.size() * context.size() + ", for " + tensor.size()
                            + " tensor-parallel ranks divide them and "
                            + context.size() + " context-parallel ranks divide what each of these has, got " + count
                            + "; withRing() and withAllGather() need only a multiple of " + tensor.size());
        }
        return Math.toIntExact(context.share(what, plan.name(), own));
    }
}
