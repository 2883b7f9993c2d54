package dev.chagres.recipe;

import dev.chagres.internal.Checks;
import dev.chagres.model.QuantizerSite.Role;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.QuantizationConfig.Scales;

/**
 * A scale for every 1 x 128 values of inputs and gradients, and for every 128 x 128 block of weights. Sums are always
 * split: cuBLASLt has no other kernels.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: TE's {@code Float8BlockScaling}.
 *
 * @param format E4M3
 * @param input how scales of inputs are found; powers of two
 * @param weight how scales of weights are found; powers of two
 * @param gradient how scales of gradients are found; powers of two
 * @param backwardOverride in which precision backward computes; NONE
 */
public record Float8BlockScaling(
        Format format,
        QuantizationConfig input,
        QuantizationConfig weight,
        QuantizationConfig gradient,
        BackwardOverride backwardOverride)
        implements Recipe {
    /** Checks the values. */
    public Float8BlockScaling {
        Checks.given("format", format);
        Quantization.checkAlways("input", input);
        Quantization.checkAlways("weight", weight);
        Quantization.checkAlways("gradient", gradient);
        Checks.given("backwardOverride", backwardOverride);
    }

    /** Returns TE's defaults. */
    public static Float8BlockScaling standard() {
        QuantizationConfig powers = QuantizationConfig.standard().withScales(Scales.POWER_OF_2);
        return new Float8BlockScaling(Format.E4M3, powers, powers, powers, BackwardOverride.NONE);
    }

    /** Returns the same with other types. */
    public Float8BlockScaling withFormat(Format newFormat) {
        return new Float8BlockScaling(newFormat, input, weight, gradient, backwardOverride);
    }

    /** Returns the same with scales that may be other numbers, everywhere. */
    public Float8BlockScaling withScales(Scales scales) {
        return new Float8BlockScaling(
                format,
                input.withScales(scales),
                weight.withScales(scales),
                gradient.withScales(scales),
                backwardOverride);
    }

    /**
     * Returns the same with scales of one kind of tensor found otherwise.
     *
     * @throws IllegalArgumentException when the role is of an attention, which is not cast
     */
    public Float8BlockScaling withQuantization(Role role, QuantizationConfig config) {
        Quantization.checkProduct(role);
        return new Float8BlockScaling(
                format,
                role == Role.INPUT ? config : input,
                role == Role.WEIGHT ? config : weight,
                role == Role.GRADIENT ? config : gradient,
                backwardOverride);
    }

    /** Returns the same with backward in another precision. */
    public Float8BlockScaling withBackwardOverride(BackwardOverride newOverride) {
        return new Float8BlockScaling(format, input, weight, gradient, newOverride);
    }

    @Override
    public Accumulator accumulator(Product product) {
        return Accumulator.SPLIT;
    }

    /** Returns how scales of one kind of tensor are found. */
    QuantizationConfig config(Role role) {
        return switch (role) {
            case INPUT -> input;
            case WEIGHT -> weight;
            case GRADIENT -> gradient;
            case ATTENTION, ATTENTION_WEIGHTS, ATTENTION_GRADIENT ->
                throw new IllegalStateException(role + " is not cast by " + this);
        };
    }
}
