package dev.chagres.recipe;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import org.jspecify.annotations.Nullable;

/**
 * For sharding: one rank's part of a weight that is cast to eight bits: consecutive elements in row-major order.
 *
 * <p>Threading: immutable.
 *
 * @param site the place of the weight
 * @param begin the first element
 * @param values [n] in the weight's type, to be cast; null if the rank has no element
 * @param bytes [n] in the recipe's type for forward, written by the cast; null if the rank has no element
 */
public record WeightShard(
        QuantizerSite site,
        long begin,
        @Nullable Tensor values,
        @Nullable Tensor bytes) {
    /**
     * Checks that the elements lie within the weight.
     *
     * @throws IllegalArgumentException when the place is not a weight's, or values and bytes differ in length or exceed the weight
     */
    public WeightShard {
        if (Checks.given("site", site).role() != Role.WEIGHT) {
            throw new IllegalArgumentException("site: expected that of a weight, got " + site);
        }
        long count = site.weight().shape().count();
        boolean fits = values == null
                ? bytes == null
                : bytes != null && bytes.count() == values.count() && begin >= 0 && begin <= count - values.count();
        if (!fits) {
            throw new IllegalArgumentException("values, bytes: expected a stretch of " + site.weight()
                    + " of equal lengths from element " + begin + " on, or none, got "
                    + (values == null ? "none" : Checks.describe(values)) + " and "
                    + (bytes == null ? "none" : Checks.describe(bytes)));
        }
    }

    /** Returns the values; this rank must have some. */
    Tensor presentValues() {
        return Checks.given("values", values);
    }

    /** Returns the bytes; this rank must have some. */
    Tensor presentBytes() {
        return Checks.given("bytes", bytes);
    }

    /** Returns whether this rank has no element of the weight. */
    boolean isEmpty() {
        return values == null;
    }
}
