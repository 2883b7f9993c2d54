package dev.chagres.internal.memory;

/**
 * Waits that an interrupt does not end; the thread sees it afterwards.
 *
 * <p>Threading: thread-safe.
 */
public final class Uninterruptibles {
    private Uninterruptibles() {}

    /** Something that waits. */
    @FunctionalInterface
    public interface Wait {
        /** Waits. */
        void run() throws InterruptedException;
    }

    /**
     * Something that waits no longer than a given time.
     *
     * @param <R> what came of it
     */
    @FunctionalInterface
    public interface TimedWait<R> {
        /** Waits as many nanoseconds, 0 or more. */
        R run(long nanos) throws InterruptedException;
    }

    /** Waits, again after each interrupt. */
    public static void await(Wait wait) {
        var _ = await(0, _ -> {
            wait.run();
            return true;
        });
    }

    /** Waits no longer than that; after each interrupt again as long as is left. */
    public static <R> R await(long nanos, TimedWait<R> wait) {
        long end = System.nanoTime() + nanos;
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return wait.run(Math.max(0, end - System.nanoTime()));
                } catch (InterruptedException _) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
