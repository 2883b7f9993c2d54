package dev.chagres.internal;

import java.nio.file.Path;

/**
 * Files that this process has open and locks: to close a second channel to one would release its lock. They are properties of the JVM,
 * because copies of these classes, of which two applications of a server have one each, share no variable.
 *
 * <p>Threading: thread-safe.
 */
public final class ProcessFiles {
    private static final String PREFIX = "dev.chagres.open.";

    private ProcessFiles() {}

    /** Adds a file; false when it is there. */
    public static boolean add(Path file) {
        return System.getProperties().putIfAbsent(PREFIX + file, "") == null;
    }

    /** Returns whether the file is there. */
    public static boolean contains(Path file) {
        return System.getProperties().containsKey(PREFIX + file);
    }

    /** Takes a file away. */
    public static void remove(Path file) {
        System.getProperties().remove(PREFIX + file);
    }
}
