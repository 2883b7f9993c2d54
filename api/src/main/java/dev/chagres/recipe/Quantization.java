package dev.chagres.recipe;

import dev.chagres.internal.Checks;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.te.QuantizationConfig;

/**
 * Checks how a recipe finds scales.
 *
 * <p>Threading: immutable.
 */
final class Quantization {
    private Quantization() {}

    /** Refuses roles of attention. */
    static void checkProduct(Role role) {
        if (Checks.given("role", role).isOfAttention()) {
            throw new IllegalArgumentException(
                    "role: expected INPUT, WEIGHT or GRADIENT, for attention keeps the model's type, got " + role);
        }
    }

    /** Refuses a noop flag: a recipe always casts, since a skipped cast would leave undefined copies. */
    static void checkAlways(String argument, QuantizationConfig config) {
        if (Checks.given(argument, config).noop() != null) {
            throw new IllegalArgumentException(argument + ": expected no noop, for a recipe casts always, got one;"
                    + " use QuantizationConfig.standard()");
        }
    }
}
