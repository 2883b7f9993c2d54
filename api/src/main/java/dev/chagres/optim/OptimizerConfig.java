package dev.chagres.optim;

import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import java.util.List;

/**
 * The settings of an optimizer of any kind, from which it is made.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: the arguments of PyTorch's optimizers.
 */
public sealed interface OptimizerConfig
        permits AdamW.Config,
                SGD.Config,
                Lion.Config,
                Adafactor.Config,
                OffloadedConfig,
                Muon.Config,
                ScheduleFreeAdamW.Config,
                AveragedConfig {
    /**
     * Makes the optimizer.
     *
     * @param groups parameters with their own rate or decay
     * @throws IllegalArgumentException when the constructor of the optimizer refuses something
     * @throws IllegalStateException when the parameters are closed
     */
    Optimizer make(Parameters parameters, List<ParameterGroup> groups);

    /** Returns the same with other masters of 16-bit weights; those of an optimizer without a choice stay as they are. */
    OptimizerConfig withMasters(AdamW.Masters masters);

    /**
     * Returns the same that also keeps an exponential moving average of the weights, to evaluate and to save.
     *
     * @throws IllegalArgumentException as {@link AveragedConfig}
     */
    default AveragedConfig withAverage(float decay) {
        return new AveragedConfig(this, decay);
    }

    /** Returns whether steps of it can be captured in graphs. */
    default boolean isCapturable() {
        return true;
    }

    /**
     * Returns of how many elements each parameter must begin at a multiple: what {@link ModelPlan#alignParameters} is given before memory is
     * allocated.
     */
    default int alignment() {
        return 16;
    }
}
