package dev.chagres.recipe;

import dev.chagres.Scaling;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.QuantizationConfig.Scales;

/**
 * A scale for every 1 x 128 values of inputs and gradients, and for every 128 x 128 block of weights, unless {@link #withBlocks} says
 * otherwise. Accumulators are always SPLIT: cuBLASLt has no other kernels.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: TE's {@code Float8BlockScaling}.
 *
 * @param format which types inputs, weights and gradients are cast to; default E4M3
 * @param quantizations how scales are computed; default powers of two
 * @param blocks which elements share a scale; default 1 x 128 of inputs and gradients, 128 x 128 of weights
 * @param backwardOverride in which precision backward computes; default NONE
 */
public record Float8BlockScaling(
        Format format, Quantizations quantizations, Blocks blocks, BackwardOverride backwardOverride)
        implements Recipe {
    /**
     * Which elements of each tensor of a product share a scale: {@link Scaling#BLOCK_1D} or {@link Scaling#BLOCK_2D}.
     *
     * <p>Threading: immutable.
     *
     * @param input of inputs; TE's {@code x_block_scaling_dim}
     * @param weight of weights; {@code w_block_scaling_dim}
     * @param gradient of gradients; {@code grad_block_scaling_dim}
     */
    public record Blocks(Scaling input, Scaling weight, Scaling gradient) {
        /**
         * Checks that cuBLASLt has products of each pair.
         *
         * @throws IllegalArgumentException when one is TENSOR, or more than one is BLOCK_2D, for which cuBLASLt has no product
         */
        public Blocks {
            check("input", input);
            check("weight", weight);
            check("gradient", gradient);
            if (square(input) + square(weight) + square(gradient) > 1) {
                throw new IllegalArgumentException(
                        "blocks: expected at most one BLOCK_2D, for cuBLASLt has no product of"
                                + " two, got " + input + " inputs, " + weight + " weights and " + gradient
                                + " gradients; set one to BLOCK_1D before another to BLOCK_2D");
            }
        }

        private static void check(String argument, Scaling scaling) {
            if (Checks.given(argument, scaling) == Scaling.TENSOR) {
                throw new IllegalArgumentException(
                        argument + ": expected BLOCK_1D or BLOCK_2D, got TENSOR; use Float8CurrentScaling or"
                                + " DelayedScaling for one scale per tensor");
            }
        }

        private static int square(Scaling scaling) {
            return scaling == Scaling.BLOCK_2D ? 1 : 0;
        }
    }

    /** Checks the values. */
    public Float8BlockScaling {
        Checks.given("format", format, "quantizations", quantizations, "blocks", blocks);
        Checks.given("backwardOverride", backwardOverride);
    }

    /** Returns TE's defaults. */
    public static Float8BlockScaling standard() {
        Quantizations powers = Quantizations.of(QuantizationConfig.standard().withScales(Scales.POWER_OF_2));
        Blocks blocks = new Blocks(Scaling.BLOCK_1D, Scaling.BLOCK_2D, Scaling.BLOCK_1D);
        return new Float8BlockScaling(Format.E4M3, powers, blocks, BackwardOverride.NONE);
    }

    /** Returns the same with other types. */
    public Float8BlockScaling withFormat(Format newFormat) {
        return new Float8BlockScaling(newFormat, quantizations, blocks, backwardOverride);
    }

    /** Returns the same with another kind of scales for all tensors. */
    public Float8BlockScaling withScales(Scales scales) {
        return new Float8BlockScaling(format, quantizations.withScales(scales), blocks, backwardOverride);
    }

    /**
     * Returns the same with another computation of scales for one kind of tensor.
     *
     * @throws IllegalArgumentException when the role is one of attention, which is not cast, or the cast has a condition
     */
    public Float8BlockScaling withQuantization(Role role, QuantizationConfig config) {
        return new Float8BlockScaling(format, quantizations.with(role, config), blocks, backwardOverride);
    }

    /**
     * Returns the same with other blocks. At most one of the three has BLOCK_2D. Weights of BLOCK_1D are cast again for backward, so they
     * cannot be {@code WeightStorage.QUANTIZED_ONLY}, and ranks gather them in 16 bits.
     *
     * {@snippet file="dev/chagres/layer/ExplanationTest.java" region="blocks"}
     *
     * <p>Source: TE's {@code x_block_scaling_dim}, {@code w_block_scaling_dim}, {@code grad_block_scaling_dim}.
     */
    public Float8BlockScaling withBlocks(Blocks newBlocks) {
        return new Float8BlockScaling(format, quantizations, newBlocks, backwardOverride);
    }

    /** Returns the same with backward in another precision. */
    public Float8BlockScaling withBackwardOverride(BackwardOverride newOverride) {
        return new Float8BlockScaling(format, quantizations, blocks, newOverride);
    }

    /** Returns which elements of one kind of tensor share a scale. */
    Scaling scaling(Role role) {
        return switch (Quantizations.checkProduct(role)) {
            case INPUT -> blocks.input;
            case WEIGHT -> blocks.weight;
            default -> blocks.gradient;
        };
    }
}
