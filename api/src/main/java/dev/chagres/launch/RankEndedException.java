package dev.chagres.launch;

import java.io.Serial;

/**
 * What this process has heard of a rank in another one that failed.
 *
 * <p>Threading: immutable.
 */
final class RankEndedException extends RuntimeException {
    @Serial
    private static final long serialVersionUID = 1;

    RankEndedException(String message) {
        super(message, null, false, false);
    }

    @Override
    public String toString() {
        return String.valueOf(getMessage());
    }
}
