package dev.chagres.bindings;

/**
 * The logger of this module.
 *
 * <p>Threading: thread-safe.
 */
final class Log {
    private Log() {}

    /** Returns the logger. Call this only where something is said: the first logger of a program opens every jar of the class path. */
    static System.Logger logger() {
        return System.getLogger("dev.chagres");
    }
}
