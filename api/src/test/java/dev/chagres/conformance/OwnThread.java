package dev.chagres.conformance;

import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Assertions;

/** Runs a body on a platform thread of its own: for what the libraries keep as long as a thread lives. */
public final class OwnThread {
    private OwnThread() {}

    /** Runs {@code body}, waits for its end, and throws what it threw. */
    public static void run(String name, Runnable body) {
        AtomicReference<Throwable> thrown = new AtomicReference<>();
        Thread thread = Thread.ofPlatform()
                .name(name)
                .uncaughtExceptionHandler((_, failure) -> thrown.set(failure))
                .start(body);
        Assertions.assertDoesNotThrow(() -> thread.join());
        Throwable failure = thrown.get();
        if (failure != null) {
            throw new AssertionError("on thread \"" + name + "\": " + failure.getMessage(), failure);
        }
    }
}
