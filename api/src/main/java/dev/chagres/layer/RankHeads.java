package dev.chagres.layer;

import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;

/**
 * The heads of an attention that one of several tensor-parallel or context-parallel ranks computes.
 *
 * <p>Threading: immutable.
 */
final class RankHeads {
    private RankHeads() {}

    /**
     * Returns {@code config} with only the heads of the plan's rank.
     *
     * @throws IllegalArgumentException when the ranks do not divide the heads
     */
    static AttentionConfig of(AttentionConfig config, ModelPlan plan) {
        return new AttentionConfig(
                share("heads", config.heads(), plan),
                share("keyHeads", config.keyHeads(), plan),
                config.headDim(),
                config.mask(),
                config.dropout(),
                config.scale(),
                config.qkNorm(),
                config.order(),
                config.softcap(),
                config.softmaxType());
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
