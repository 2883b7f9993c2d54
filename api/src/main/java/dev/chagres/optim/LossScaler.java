package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.ops.LossScale;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.parameter.StateOwner;
import org.jspecify.annotations.Nullable;

/**
 * Dynamic loss scaling for training in FP16: the loss's gradient is multiplied by a scale, so that small gradients do not become
 * 0, and the optimizer divides by it again.
 *
 * <p>A step whose gradients are not finite is skipped: weights, moments, master weights and the optimizer's step count stay unchanged, and
 * {@code scale = backoffFactor * scale}. After {@code growthInterval} steps in a row that were not skipped, {@code scale = growthFactor *
 * scale}. The device decides this; the host waits only in {@link #skippedSteps} and {@link #currentScale}.
 *
 * {@snippet file="dev/chagres/TrainingExamplesTest.java" region="lossScaling"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: PyTorch's {@code torch.amp.GradScaler}; Micikevicius et al., Mixed precision training (2018).
 */
public final class LossScaler implements StateOwner {
    /**
     * How the scale changes.
     *
     * @param initialScale the initial scale, positive
     * @param growthFactor on the scale after growthInterval taken steps, above 1
     * @param backoffFactor on the scale after a skipped step, above 0 and below 1
     * @param growthInterval taken steps in a row after which the scale grows, at least 1
     */
    public record Config(float initialScale, float growthFactor, float backoffFactor, int growthInterval) {
        /** PyTorch's defaults: 65536, 2, 0.5 and 2000. */
        public static Config standard() {
            return new Config(65536, 2, 0.5f, 2000);
        }

        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when one is out of its range
         */
        public Config {
            if (!(initialScale >= Float.MIN_NORMAL) || Float.isInfinite(initialScale)) {
                throw new IllegalArgumentException("initialScale: expected a positive number, got " + initialScale);
            }
            if (!(growthFactor > 1) || Float.isInfinite(growthFactor)) {
                throw new IllegalArgumentException("growthFactor: expected a number above 1, got " + growthFactor);
            }
            Numbers.share("backoffFactor", backoffFactor);
            Checks.atLeastOne("growthInterval", growthInterval);
        }

        /** Returns this with another initial scale. */
        public Config withInitialScale(float newInitialScale) {
            return new Config(newInitialScale, growthFactor, backoffFactor, growthInterval);
        }

        /** Returns this with another factor on the scale after growthInterval taken steps. */
        public Config withGrowthFactor(float newGrowthFactor) {
            return new Config(initialScale, newGrowthFactor, backoffFactor, growthInterval);
        }

        /** Returns this with another factor on the scale after a skipped step. */
        public Config withBackoffFactor(float newBackoffFactor) {
            return new Config(initialScale, growthFactor, newBackoffFactor, growthInterval);
        }

        /** Returns this with another number of taken steps in a row after which the scale grows. */
        public Config withGrowthInterval(int newGrowthInterval) {
            return new Config(initialScale, growthFactor, backoffFactor, newGrowthInterval);
        }
    }

    private final Parameters parameters;
    private final Config config;
    private final Scope scope;
    private final Tensor scale;
    /** Steps taken since the scale changed last, and steps skipped so far. */
    private final Tensor counts;
    /** What {@link #state()} returns; null before. */
    private @Nullable State state;

    /**
     * Begins with the initial scale. A few bytes are allocated from the scope of {@code parameters}.
     *
     * @throws IllegalStateException when the parameters are closed
     */
    public LossScaler(Parameters parameters, Config config) {
        this.parameters = Checks.given("parameters", parameters);
        this.config = Checks.given("config", config);
        scope = parameters.scope();
        Checks.on(scope.stream(), "parameters", parameters.gradients());
        scale = scope.tensor(DType.FLOAT32, 1);
        counts = scope.tensor(DType.INT32, 2);
        scale.set(scope.stream(), config.initialScale);
        counts.zero(scope.stream());
    }

    /** Returns how the scale changes. */
    public Config config() {
        return config;
    }

    /**
     * Returns the scale, FLOAT32 [1]. Every backward pass of a step must multiply its loss's gradient by it, as {@code
     * CrossEntropy.backward(factor, scale, pass)} does.
     */
    public Tensor scale() {
        return scale;
    }

    /** Waits for the enqueued steps and returns the scale of the next step. */
    public float currentScale() {
        return scale.toFloats(scope.stream())[0];
    }

    /** Waits for the enqueued steps and returns how many steps were skipped so far. */
    public long skippedSteps() {
        return counts.toInts(scope.stream())[1];
    }

    /** Returns the parameters whose gradients are scaled. */
    Parameters parameters() {
        return parameters;
    }

    /** Enqueues the division of the norm of scaled gradients by the scale, and the factor that unscales and clips. */
    void clip(Tensor norm, float maxNorm, Tensor factor, Tensor skip) {
        LossScale.clip(norm, scale, maxNorm, factor, skip, scope.stream());
    }

    /** Enqueues the end of a step: counts it, in {@code step} if it was not skipped, and updates the scale. */
    void update(Tensor skip, Tensor step) {
        LossScale.update(
                skip,
                scale,
                counts,
                step,
                config.growthFactor,
                config.backoffFactor,
                config.growthInterval,
                scope.stream());
    }

    /**
     * Lists the state that is needed to go on exactly: {@code loss_scaler.scale}, FLOAT32 [1]; {@code loss_scaler.growth_tracker}, the
     * steps taken since the scale changed last, and {@code loss_scaler.skipped_steps}, INT32 [1] each.
     */
    @Override
    public State state() {
        State present = state;
        if (present == null) {
            present = new State.Builder()
                    .tensor("loss_scaler.scale", scale, State.Values.POSITIVE)
                    .tensor("loss_scaler.growth_tracker", scope.view(counts, 0, 1))
                    .tensor("loss_scaler.skipped_steps", scope.view(counts, 1, 1))
                    .build();
            state = present;
        }
        return present;
    }

    /** Returns the configuration; {@link #currentScale} reads the present scale from the device. */
    @Override
    public String toString() {
        return "LossScaler(initialScale=" + config.initialScale + ", growthFactor=" + config.growthFactor
                + ", backoffFactor=" + config.backoffFactor + ", growthInterval=" + config.growthInterval + ")";
    }
}
