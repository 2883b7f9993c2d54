package dev.chagres.bindings;

import java.io.Serial;

/**
 * A call cannot be part of a graph: it waits for the device, copies from or to the host's memory, takes memory, or takes a number
 * of the host that would stay as it is. The message names the call and what to do instead.
 *
 * <p>Threading: immutable.
 */
public final class CaptureException extends IllegalStateException {
    @Serial
    private static final long serialVersionUID = 1;

    /** Says what cannot be captured, and what to do instead. */
    public CaptureException(String message) {
        super(message);
    }
}
