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
public record MadeWindows(
        @Nullable WeightGather weightGather,
        @Nullable GradientReduction gradientReduction,
        @Nullable String noWindows) {
    /** That of a run in which nothing is sharded. */
    public static final MadeWindows NOTHING_SHARDED = new MadeWindows(null, null, null);

    static MadeWindows of(Strategy strategy) {
        return strategy instanceof FullySharded sharded
                ? new MadeWindows(sharded.weightGather(), sharded.gradientReduction(), sharded.whyNoWindows())
                : NOTHING_SHARDED;
    }
}
