package dev.chagres.optim;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.parameter.Parameters;
import java.util.List;

/**
 * Settings of an optimizer that also keeps an exponential moving average of the weights: {@code a = a + (1 - decay) (w - a)} after each step,
 * w being the FP32 master where there is one.
 *
 * <p>The average, FLOAT32, begins with the first weights, or with those that were loaded. {@link Optimizer#beginEvaluation} makes the weights the
 * average, and {@link Optimizer#endEvaluation} makes them again those of training, with the same bits. A step that is skipped leaves it
 * as it is. The state has {@code name.ema} of each trained parameter.
 *
 * {@snippet file="dev/chagres/optim/WeightAverageTest.java" region="average"}
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code torch.optim.swa_utils.get_ema_multi_avg_fn}.
 *
 * @param updates of the weights
 * @param decay the share of the average that a step keeps, above 0 and below 1
 */
public record AveragedConfig(OptimizerConfig updates, float decay) implements OptimizerConfig {
    /**
     * Checks both.
     *
     * @throws IllegalArgumentException when the decay is out of its range, or the optimizer keeps an average already
     */
    public AveragedConfig {
        Checks.given("updates", updates);
        Numbers.share("decay", decay);
        if (updates instanceof AveragedConfig || updates instanceof ScheduleFreeAdamW.Config) {
            throw new IllegalArgumentException(
                    "updates: expected an optimizer that keeps no average of its own, got " + updates);
        }
    }

    @Override
    public Optimizer make(Parameters parameters, List<ParameterGroup> groups) {
        FlatOptimizer made = (FlatOptimizer) updates.make(parameters, groups);
        made.keepAverage(decay);
        return made;
    }

    @Override
    public boolean isCapturable() {
        return updates.isCapturable();
    }

    /** Returns this with other masters of the optimizer's. */
    @Override
    public AveragedConfig withMasters(AdamW.Masters masters) {
        return new AveragedConfig(updates.withMasters(masters), decay);
    }

    @Override
    public int alignment() {
        return updates.alignment();
    }
}
