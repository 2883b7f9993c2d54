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
 * @param input how scales of inputs are computed; default any FLOAT32 number
 * @param weight how scales of weights are computed; default any FLOAT32 number
 * @param gradient how scales of gradients are computed; default any FLOAT32 number
 * @param forwardSums accumulator of {@code y = x W^T}; default FAST
 * @param inputGradientSums accumulator of {@code dx = dy W}; default SPLIT
 * @param weightGradientSums accumulator of {@code dW = dy^T x}; default SPLIT
 * @param backwardOverride in which precision backward computes; default NONE
 */
public record Float8CurrentScaling(
        Format format,
        QuantizationConfig input,
        QuantizationConfig weight,
        QuantizationConfig gradient,
        Accumulator forwardSums,
        Accumulator inputGradientSums,
        Accumulator weightGradientSums,
        BackwardOverride backwardOverride)
        implements Recipe {
    /**
     * Checks that every value is there.
     *
     * @throws IllegalArgumentException when a cast has a condition ({@link QuantizationConfig#noop})
     */
    public Float8CurrentScaling {
        Checks.given("format", format);
        Quantization.checkAlways("input", input);
        Quantization.checkAlways("weight", weight);
        Quantization.checkAlways("gradient", gradient);
        Checks.given("forwardSums", forwardSums);
        Checks.given("inputGradientSums", inputGradientSums);
        Checks.given("weightGradientSums", weightGradientSums);
        Checks.given("backwardOverride", backwardOverride);
    }

    /** Returns TE's defaults. */
    public static Float8CurrentScaling standard() {
        QuantizationConfig any = QuantizationConfig.standard();
        return new Float8CurrentScaling(
                Format.HYBRID,
                any,
                any,
                any,
                Accumulator.FAST,
                Accumulator.SPLIT,
                Accumulator.SPLIT,
                BackwardOverride.NONE);
    }

    /** Returns the same with other types. */
    public Float8CurrentScaling withFormat(Format newFormat) {
        return new Float8CurrentScaling(
                newFormat,
                input,
                weight,
                gradient,
                forwardSums,
                inputGradientSums,
                weightGradientSums,
                backwardOverride);
    }

    /** Returns the same with another kind of scales for all tensors. */
    public Float8CurrentScaling withScales(Scales scales) {
        return new Float8CurrentScaling(
                format,
                input.withScales(scales),
                weight.withScales(scales),
                gradient.withScales(scales),
                forwardSums,
                inputGradientSums,
                weightGradientSums,
                backwardOverride);
    }

    /**
     * Returns the same with another computation of scales for one kind of tensor.
     *
     * @throws IllegalArgumentException when the role is one of attention, which is not cast
     */
    public Float8CurrentScaling withQuantization(Role role, QuantizationConfig config) {
        Quantization.checkProduct(role);
        return new Float8CurrentScaling(
                format,
                role == Role.INPUT ? config : input,
                role == Role.WEIGHT ? config : weight,
                role == Role.GRADIENT ? config : gradient,
                forwardSums,
                inputGradientSums,
                weightGradientSums,
                backwardOverride);
    }

    /** Returns the same with another accumulator for one product. */
    public Float8CurrentScaling withAccumulator(Product product, Accumulator accumulator) {
        Checks.given("accumulator", accumulator);
        return new Float8CurrentScaling(
                format,
                input,
                weight,
                gradient,
                Checks.given("product", product) == Product.FORWARD ? accumulator : forwardSums,
                product == Product.INPUT_GRADIENT ? accumulator : inputGradientSums,
                product == Product.WEIGHT_GRADIENT ? accumulator : weightGradientSums,
                backwardOverride);
    }

    /** Returns the same with backward in another precision. */
    public Float8CurrentScaling withBackwardOverride(BackwardOverride newOverride) {
        return new Float8CurrentScaling(
                format, input, weight, gradient, forwardSums, inputGradientSums, weightGradientSums, newOverride);
    }

    @Override
    public Accumulator accumulator(Product product) {
        return switch (Checks.given("product", product)) {
            case FORWARD -> forwardSums;
            case INPUT_GRADIENT -> inputGradientSums;
            case WEIGHT_GRADIENT -> weightGradientSums;
        };
    }

    /** Returns how scales of one kind of tensor are computed. */
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
