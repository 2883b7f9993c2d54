package dev.chagres.recipe;

import dev.chagres.internal.Checks;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.QuantizationConfig.Scales;

/**
 * How scales of the three tensors of a product are computed.
 *
 * <p>Threading: immutable.
 *
 * @param input of inputs
 * @param weight of weights
 * @param gradient of gradients
 */
public record Quantizations(QuantizationConfig input, QuantizationConfig weight, QuantizationConfig gradient) {
    /**
     * Checks that every value is there.
     *
     * @throws IllegalArgumentException when a cast has a condition ({@link QuantizationConfig#noop}): a recipe always casts, since a skipped
     *     cast would leave undefined copies
     */
    public Quantizations {
        checkAlways("input", input);
        checkAlways("weight", weight);
        checkAlways("gradient", gradient);
    }

    private static void checkAlways(String argument, QuantizationConfig config) {
        if (Checks.given(argument, config).noop() != null) {
            throw new IllegalArgumentException(argument + ": expected no noop, for a recipe casts always, got one;"
                    + " use QuantizationConfig.standard()");
        }
    }

    /**
     * Returns the same computation for all three.
     *
     * @throws IllegalArgumentException when the cast has a condition
     */
    public static Quantizations of(QuantizationConfig all) {
        return new Quantizations(all, all, all);
    }

    /**
     * Returns how scales of one kind of tensor are computed.
     *
     * @throws IllegalArgumentException when the role is one of attention, which is not cast
     */
    public QuantizationConfig of(Role role) {
        return switch (checkProduct(role)) {
            case INPUT -> input;
            case WEIGHT -> weight;
            default -> gradient;
        };
    }

    /** Returns the same with another kind of scales for all tensors. */
    public Quantizations withScales(Scales scales) {
        return new Quantizations(input.withScales(scales), weight.withScales(scales), gradient.withScales(scales));
    }

    /**
     * Returns the same with another computation of scales for one kind of tensor.
     *
     * @throws IllegalArgumentException when the role is one of attention, which is not cast, or the cast has a condition
     */
    public Quantizations with(Role role, QuantizationConfig config) {
        return switch (checkProduct(role)) {
            case INPUT -> new Quantizations(config, weight, gradient);
            case WEIGHT -> new Quantizations(input, config, gradient);
            default -> new Quantizations(input, weight, config);
        };
    }

    /** Returns the role, which must not be one of attention. */
    static Role checkProduct(Role role) {
        if (Checks.given("role", role).isOfAttention()) {
            throw new IllegalArgumentException(
                    "role: expected INPUT, WEIGHT or GRADIENT, for attention keeps the model's type, got " + role);
        }
        return role;
    }
}
