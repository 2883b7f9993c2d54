package dev.chagres.nccl;

import dev.chagres.bindings.ForeignText;
import java.util.Locale;

/**
 * What is checked before a collective is enqueued.
 *
 * <p>Threading: immutable.
 */
public enum CollectiveChecks {
    /** The caller's own arguments. */
    ARGUMENTS,
    /**
     * Also that all ranks call the same operation on tensors of the same shape and type, in the same order: a difference is an exception on
     * every rank instead of a hang. Each call waits for the other ranks, which must be threads of one program, or processes that {@code
     * dev.chagres.launch.Ranks} has joined and that communicate through its store; these may announce 16,384 calls at once, such as in a
     * group.
     */
    FULL;

    private static final String PROPERTY = "chagres.collective.checks";

    /**
     * Returns the value of {@code -Dchagres.collective.checks=arguments|full}; {@code arguments} by default.
     *
     * @throws IllegalArgumentException when the property has another value
     */
    static CollectiveChecks fromProperty() {
        String value = System.getProperty(PROPERTY, "arguments");
        return switch (value.toLowerCase(Locale.ROOT)) {
            case "arguments" -> ARGUMENTS;
            case "full" -> FULL;
            default ->
                throw new IllegalArgumentException(
                        "-D" + PROPERTY + ": expected arguments or full, got " + ForeignText.quoted(value));
        };
    }
}
