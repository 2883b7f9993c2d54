package dev.chagres.sharding;

import org.jspecify.annotations.Nullable;

/** Why NCCL makes ordinary registered buffers where windows are asked for. */
final class NoWindows {
    private static final String VARIABLE = "NCCL_WIN_ENABLE";

    private NoWindows() {}

    /** Returns the reason, as in "NCCL made none: ranks cannot reach each other's memory". */
    static String reason() {
        return reason(System.getenv(VARIABLE));
    }

    /** {@code enabled}: the variable's value. */
    static String reason(@Nullable String enabled) {
        return "0".equals(enabled) ? VARIABLE + "=0 is set" : "ranks cannot reach each other's memory";
    }
}
