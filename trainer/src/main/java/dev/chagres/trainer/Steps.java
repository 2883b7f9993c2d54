package dev.chagres.trainer;

import java.util.Locale;

/** How the work of a step gets to the device. */
enum Steps {
    /** Captured once for each bucket of batches, then replayed. */
    CAPTURED,
    /** Kernel by kernel. */
    ENQUEUED;

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
