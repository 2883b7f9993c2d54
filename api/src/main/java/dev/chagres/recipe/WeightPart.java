package dev.chagres.recipe;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.QuantizerSite;
import dev.chagres.model.QuantizerSite.Role;
import org.jspecify.annotations.Nullable;

/**
 * For sharding: what one rank has of a weight that is cast to eight bits: a stretch of its elements, row after row.
 *
 * <p>Threading: immutable.
 *
 * @param site the place of the weight
 * @param begin the first element
 * @param values [n] in the weight's type, which is cast; null where the rank has none of it
 * @param bytes [n] in the recipe's type for forward, which the cast writes; null where the rank has none of it
 */
public record WeightPart(
        QuantizerSite site,
        long begin,
        @Nullable Tensor values,
        @Nullable Tensor bytes) {
    /**
     * Checks that the stretch is one of the weight.
     *
     * @throws IllegalArgumentException when the place is none of a weight, or values and bytes are no stretch of the weight of
     *     equal lengths
     */
    public WeightPart {
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

    /** Returns the values, where this rank has some. */
    Tensor presentValues() {
        return Checks.given("values", values);
    }

    /** Returns where they go in eight bits, where this rank has some. */
    Tensor presentBytes() {
        return Checks.given("bytes", bytes);
    }

    /** Returns whether this rank has none of the weight. */
    boolean isEmpty() {
        return values == null;
    }
}
