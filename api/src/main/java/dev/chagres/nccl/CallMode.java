package dev.chagres.nccl;

import dev.chagres.bindings.ForeignText;
import java.util.Locale;

/**
 * How NCCL runs a communicator's calls on the host. Results are the same. Ranks of one communicator may differ, unless they {@linkplain
 * Communicator#register register} tensors of ordinary memory.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code blocking} of {@code ncclConfig_t} in {@code nccl.h}.
 */
public enum CallMode {
    /** A call returns when it is enqueued: the thread is inside NCCL while other ranks are awaited there. */
    BLOCKING(1),
    /**
     * NCCL runs a call on a thread of its own, and the calling thread asks until it is enqueued. That costs more for each call, but the
     * thread never waits for other ranks inside NCCL. Calls inside {@link Communicator#group} are passed to NCCL when its body has ended. Streams
     * that capture refuse these calls. After a {@link dev.chagres.bindings.NcclException} of a call the communicator refuses all but {@link
     * Communicator#revoke}, {@link Communicator#shrink} after it, and {@link Communicator#close}.
     */
    NON_BLOCKING(0);

    private static final String PROPERTY = "chagres.collective.calls";

    private final int code;

    CallMode(int code) {
        this.code = code;
    }

    /**
     * Returns the value of {@code -Dchagres.collective.calls=blocking|non-blocking}; {@code blocking} by default.
     *
     * @throws IllegalArgumentException when the property has another value
     */
    static CallMode fromProperty() {
        String value = System.getProperty(PROPERTY, "blocking");
        return switch (value.toLowerCase(Locale.ROOT)) {
            case "blocking" -> BLOCKING;
            case "non-blocking" -> NON_BLOCKING;
            default ->
                throw new IllegalArgumentException(
                        "-D" + PROPERTY + ": expected blocking or non-blocking, got " + ForeignText.quoted(value));
        };
    }

    int code() {
        return code;
    }
}
