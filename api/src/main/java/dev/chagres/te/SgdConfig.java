package dev.chagres.te;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;

/**
 * The hyperparameters of a step of stochastic gradient descent, for {@link MultiTensor#sgd}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code nvte_multi_tensor_sgd_cuda}; PyTorch's {@code torch.optim.SGD}.
 */
public record SgdConfig(
        float learningRate,
        float momentum,
        float dampening,
        float weightDecay,
        float gradientScale,
        Momentum kind,
        DecayPlace decayPlace) {
    /** What updates the weights if momentum is not 0. */
    public enum Momentum {
        /** The momentum buffer v. */
        PLAIN,
        /** {@code g + momentum v}. */
        NESTEROV
    }

    /** Where {@code weightDecay p} is added. */
    public enum DecayPlace {
        /** To the gradient, before momentum. */
        BEFORE_MOMENTUM,
        /** To the update, after momentum. */
        AFTER_MOMENTUM
    }

    /**
     * Checks the numbers.
     *
     * @param learningRate at least 0
     * @param momentum at least 0; at 0 the momentum buffer is neither read nor written
     * @param dampening of gradients in the momentum buffer: {@code v = momentum v + (1 - dampening) g}
     * @param weightDecay at least 0
     * @param gradientScale what gradients are multiplied by first
     * @throws IllegalArgumentException when a number is negative where it must not be, or not finite, or when Nesterov's momentum is
     *     0 or dampened
     */
    public SgdConfig {
        Numbers.notNegative("learningRate", learningRate);
        Numbers.notNegative("momentum", momentum);
        finite("dampening", dampening);
        Numbers.notNegative("weightDecay", weightDecay);
        finite("gradientScale", gradientScale);
        Checks.given("kind", kind, "decayPlace", decayPlace);
        if (kind == Momentum.NESTEROV && (momentum == 0 || dampening != 0)) {
            throw new IllegalArgumentException(
                    "kind: NESTEROV expects a momentum above 0 without dampening, got momentum " + momentum
                            + " and dampening " + dampening);
        }
    }

    /** Returns plain descent at this rate: no momentum, no decay, gradients as they are. */
    public static SgdConfig of(float learningRate) {
        return new SgdConfig(learningRate, 0, 0, 0, 1, Momentum.PLAIN, DecayPlace.BEFORE_MOMENTUM);
    }

    /** Returns the same with momentum: {@code v = momentum v + (1 - dampening) g} updates the weights. */
    public SgdConfig withMomentum(float newMomentum, float newDampening) {
        return new SgdConfig(
                learningRate, newMomentum, newDampening, weightDecay, gradientScale, Momentum.PLAIN, decayPlace);
    }

    /** Returns the same with Nesterov's momentum: {@code g + momentum v} updates the weights. */
    public SgdConfig withNesterov(float newMomentum) {
        return new SgdConfig(learningRate, newMomentum, 0, weightDecay, gradientScale, Momentum.NESTEROV, decayPlace);
    }

    /** Returns the same with weight decay. */
    public SgdConfig withWeightDecay(float newWeightDecay, DecayPlace newPlace) {
        return new SgdConfig(learningRate, momentum, dampening, newWeightDecay, gradientScale, kind, newPlace);
    }

    /** Returns the same with another factor on the gradients. */
    public SgdConfig withGradientScale(float newScale) {
        return new SgdConfig(learningRate, momentum, dampening, weightDecay, newScale, kind, decayPlace);
    }

    private static void finite(String name, float value) {
        if (!Float.isFinite(value)) {
            throw new IllegalArgumentException(name + ": expected a number, got " + value);
        }
    }
}
