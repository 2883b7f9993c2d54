package dev.chagres.internal;

/**
 * The logger of this module.
 *
 * <p>Threading: thread-safe.
 */
public final class Log {
    private Log() {}

    /** Returns the logger. Call this only where something is said: the first logger of a program opens every jar of the class path. */
    public static System.Logger logger() {
        return System.getLogger("dev.chagres");
    }
}
