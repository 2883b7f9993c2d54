package dev.chagres.layer;

import dev.chagres.model.ContextParallel;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.TensorParallel;

/**
 * The heads of an attention that one of several tensor-parallel or context-parallel ranks computes.
 *
 * <p>Threading: immutable.
 */
final class RankHeads {
    private RankHeads() {}

    /**
     * Returns {@code config} with the heads of the plan's rank alone.
     *
     * @throws IllegalArgumentException when the ranks do not divide the heads
     */
    static AttentionConfig of(AttentionConfig config, ModelPlan plan) {
        TensorParallel tensor = plan.tensorParallel();
        ContextParallel context = plan.contextParallel();
        long heads = context.share("heads", plan.name(), tensor.share("heads", plan.name(), config.heads()));
        long keyHeads =
                context.share("keyHeads", plan.name(), tensor.share("keyHeads", plan.name(), config.keyHeads()));
        return new AttentionConfig(
                Math.toIntExact(heads),
                Math.toIntExact(keyHeads),
                config.headDim(),
                config.mask(),
                config.dropout(),
                config.scale(),
                config.qkNorm(),
                config.order(),
                config.softcap(),
                config.softmaxType());
    }
}
