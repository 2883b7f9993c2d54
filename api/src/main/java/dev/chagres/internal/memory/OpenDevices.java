package dev.chagres.internal.memory;

/**
 * Counts the process's open devices, for settings that may change only while there is none.
 *
 * <p>Threading: thread-safe.
 */
public final class OpenDevices {
    private static int count;

    private OpenDevices() {}

    /** Counts a device that was opened; waits for a running {@link #whileNone}. */
    public static synchronized void add() {
        count++;
    }

    /** Counts a device that was closed. */
    public static synchronized void remove() {
        count--;
    }

    /**
     * Runs {@code change} while no device is opened.
     *
     * @param call names the method in the error
     * @throws IllegalStateException while a device is open
     */
    public static synchronized void whileNone(String call, Runnable change) {
        if (count != 0) {
            throw new IllegalStateException(
                    call + ": expected a process without open devices, whose work a change would reach," + " got "
                            + count + "; call it before Device.open, or close them");
        }
        change.run();
    }
}
