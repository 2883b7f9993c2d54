package dev.chagres.trainer;

import java.util.logging.Level;
import java.util.logging.Logger;

/** The log line that names the provider. Of several processes rank 0 alone shows it, for all of them compute by the same one. */
final class ProviderLine {
    /** Kept: a logger that nobody holds forgets its level. */
    private static final Logger LOGGER = Logger.getLogger("dev.chagres");

    private ProviderLine() {}

    /** Leaves the line out in this process, and keeps warnings. */
    static void leaveOut() {
        LOGGER.setLevel(Level.WARNING);
    }
}
