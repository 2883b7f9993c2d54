package dev.chagres.trainer;

import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.GradientReduction;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.WeightGather;
import org.jspecify.annotations.Nullable;

/**
 * How weights are really gathered and gradients reduced, which is not what the options say where NCCL makes no windows.
 *
 * <p>Threading: immutable.
 *
 * @param weightGather null if nothing is sharded
 * @param gradientReduction null if nothing is sharded
 * @param noWindows why NCCL made no windows, if options ask for them in vain; else null
 */
public record EffectiveWindows(
        @Nullable WeightGather weightGather,
        @Nullable GradientReduction gradientReduction,
        @Nullable String noWindows) {
    /** That of a run in which nothing is sharded. */
    public static final EffectiveWindows NOTHING_SHARDED = new EffectiveWindows(null, null, null);

    static EffectiveWindows of(Strategy strategy) {
        return strategy instanceof FullySharded sharded
                ? new EffectiveWindows(sharded.weightGather(), sharded.gradientReduction(), sharded.whyNoWindows())
                : NOTHING_SHARDED;
    }
}
