package dev.chagres.recipe;

import dev.chagres.internal.Checks;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.QuantizationConfig.Scales;

/**
 * One scale a tensor, from the largest magnitude in it: {@code scale = fp8max / amax}. The data is read once more than with {@link
 * DelayedScaling}, and there is no history.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: TE's {@code Float8CurrentScaling}.
 *
 * @param format which types inputs, weights and gradients are cast to; default HYBRID
 * @param quantizations how scales are computed; default any FLOAT32 number
 * @param accumulators of the products; default FAST forward, SPLIT backward
 * @param backwardOverride in which precision backward computes; default NONE
 */
public record Float8CurrentScaling(
        Format format, Quantizations quantizations, Accumulators accumulators, BackwardOverride backwardOverride)
        implements Recipe {
    /** Checks that every value is there. */
    public Float8CurrentScaling {
        Checks.given("format", format, "quantizations", quantizations, "accumulators", accumulators);
        Checks.given("backwardOverride", backwardOverride);
    }

    /** Returns TE's defaults. */
    public static Float8CurrentScaling standard() {
        Quantizations any = Quantizations.of(QuantizationConfig.standard());
        return new Float8CurrentScaling(Format.HYBRID, any, Accumulators.standard(), BackwardOverride.NONE);
    }

    /** Returns the same with other types. */
    public Float8CurrentScaling withFormat(Format newFormat) {
        return new Float8CurrentScaling(newFormat, quantizations, accumulators, backwardOverride);
    }

    /** Returns the same with another kind of scales for all tensors. */
    public Float8CurrentScaling withScales(Scales scales) {
        return new Float8CurrentScaling(format, quantizations.withScales(scales), accumulators, backwardOverride);
    }

    /**
     * Returns the same with another computation of scales for one kind of tensor.
     *
     * @throws IllegalArgumentException when the role is one of attention, which is not cast, or the cast has a condition
     */
    public Float8CurrentScaling withQuantization(Role role, QuantizationConfig config) {
        return new Float8CurrentScaling(format, quantizations.with(role, config), accumulators, backwardOverride);
    }

    /** Returns the same with another accumulator for one product. */
    public Float8CurrentScaling withAccumulator(Product product, Accumulator accumulator) {
        Accumulators changed = accumulators.with(product, accumulator);
        return new Float8CurrentScaling(format, quantizations, changed, backwardOverride);
    }

    /** Returns the same with backward in another precision. */
    public Float8CurrentScaling withBackwardOverride(BackwardOverride newOverride) {
        return new Float8CurrentScaling(format, quantizations, accumulators, newOverride);
    }

    @Override
    public Accumulator accumulator(Product product) {
        return accumulators.of(product);
    }
}
