package dev.chagres.bindings;

import java.util.List;

/** The environment variables with a number that the CPU reference reads: a wrong one is refused before anything is computed. */
final class ReferenceVariables {
    private record Variable(String name, String what, long most) {}

    private static final List<Variable> ALL = List.of(
            new Variable("CHAGRES_REFERENCE_DEVICES", "a number of devices from 1 to 1024", 1024),
            new Variable("CHAGRES_THREADS", "a number of threads from 1 to 512", 512),
            new Variable("CHAGRES_REFERENCE_MEMORY", "a number of bytes above 0", Long.MAX_VALUE),
            new Variable("CHAGRES_REFERENCE_NCCL_TIMEOUT", "a number of seconds above 0", Integer.MAX_VALUE));

    private ReferenceVariables() {}

    /**
     * Checks those that are set.
     *
     * @throws IllegalArgumentException when one is no such number
     */
    static void check(Surroundings surroundings) {
        for (Variable variable : ALL) {
            surroundings.variable(variable.name).ifPresent(value -> {
                if (!isNumber(value, variable.most)) {
                    throw new IllegalArgumentException("the variable " + variable.name + ": expected " + variable.what
                            + ", got " + ForeignText.quoted(value));
                }
            });
        }
    }

    private static boolean isNumber(String value, long most) {
        try {
            long number = Long.parseLong(value);
            return number >= 1 && number <= most;
        } catch (NumberFormatException e) {
            return false;
        }
    }
}
