package dev.chagres.pass;

import dev.chagres.internal.Checks;
import java.util.StringJoiner;

/**
 * Sizes and options of a layer, as {@link Layer#toString} shows them: {@code in=32, out=96, bias=ABSENT}.
 *
 * <p>Threading: one thread at a time.
 */
public final class LayerSummary {
    private final StringJoiner text = new StringJoiner(", ");

    /** Makes an empty one. */
    public LayerSummary() {}

    /** Returns the line of a layer: {@code head: Linear(in=32, out=96)}; without brackets where there is nothing to say. */
    public static String line(String name, String type, String summary) {
        Checks.given("type", type);
        return (Checks.given("name", name).isEmpty() ? "" : name + ": ")
                + type
                + (Checks.given("summary", summary).isEmpty() ? "" : "(" + summary + ")");
    }

    /** Adds a size, or an option that is always shown. */
    public LayerSummary with(String name, Object value) {
        text.add(name + "=" + value);
        return this;
    }

    /** Adds an option that differs from its default. */
    public LayerSummary withUnlessUsual(String name, Object value, Object usual) {
        return value.equals(usual) ? this : with(name, value);
    }

    @Override
    public String toString() {
        return text.toString();
    }
}
