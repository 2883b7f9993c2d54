package dev.chagres.launch;

import dev.chagres.internal.Log;
import java.time.Duration;
import java.util.function.Supplier;

/**
 * A rank's wait until all have come. After a while the log says once what it waits for: until the timeout nothing else would.
 *
 * <p>Threading: thread-safe.
 */
final class StoreWait implements AutoCloseable {
    /** How long ranks usually take at most. */
    static final Duration PATIENCE = Duration.ofSeconds(10);

    private final RankEnvironment environment;
    private final Duration patience;
    private final Duration timeout;
    private final Thread thread;
    private volatile Supplier<String> awaited;

    /** Begins to wait for {@code awaited}. */
    StoreWait(RankEnvironment environment, Duration patience, Duration timeout, Supplier<String> awaited) {
        this.environment = environment;
        this.patience = patience;
        this.timeout = timeout;
        this.awaited = awaited;
        thread = Thread.ofPlatform().daemon().name("chagres-store-wait").unstarted(this::tell);
        if (patience.compareTo(timeout) < 0) {
            thread.start();
        }
    }

    /** Waits for something else from now on. */
    void goOn(Supplier<String> next) {
        awaited = next;
    }

    private void tell() {
        try {
            Thread.sleep(patience);
        } catch (InterruptedException _) {
            return; // The wait is over.
        }
        Log.logger()
                .log(
                        System.Logger.Level.WARNING,
                        "rank " + environment.rank() + " of " + environment.count() + " has waited " + text(patience)
                                + " for " + awaited.get() + "; it gives up after " + text(timeout));
    }

    private static String text(Duration time) {
        return time.toMillis() % 1000 == 0 ? time.toSeconds() + " s" : time.toMillis() + " ms";
    }

    @Override
    public void close() {
        thread.interrupt();
    }
}
