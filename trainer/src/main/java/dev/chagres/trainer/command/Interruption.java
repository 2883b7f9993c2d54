package dev.chagres.trainer.command;

import java.io.PrintStream;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * What happens on Ctrl-C: the JVM begins to end, but waits until the run has finished its step and written everything.
 *
 * <p>It is a shutdown hook, so SIGTERM and a closed terminal work as Ctrl-C does, and the JVM sets the exit status: 128 plus
 * the signal's number.
 *
 * <p>Threading: thread-safe.
 */
public final class Interruption {
    private static final long PATIENCE_SECONDS = 120;

    private final String command;
    private final PrintStream err;
    private final CountDownLatch ended = new CountDownLatch(1);
    private final Thread hook = new Thread(this::interrupt, "ctrl-c");
    private boolean interrupted;
    private @Nullable Runnable action;

    /**
     * Prepares; {@link #arm} begins to listen.
     *
     * @param command its name
     * @param err gets a line when the run does not end
     */
    public Interruption(String command, PrintStream err) {
        this.command = command;
        this.err = err;
    }

    /** Begins to listen. */
    public void arm() {
        Runtime.getRuntime().addShutdownHook(hook);
    }

    /** Says what ends the run; it runs at once when Ctrl-C came already. */
    public synchronized void onInterrupt(Runnable stop) {
        action = stop;
        if (interrupted) {
            stop.run();
        }
    }

    /** Returns whether Ctrl-C came. */
    public synchronized boolean isInterrupted() {
        return interrupted;
    }

    /** Tells that the run is over and everything is written; a waiting JVM ends now. */
    public void disarm() {
        ended.countDown();
        try {
            Runtime.getRuntime().removeShutdownHook(hook);
        } catch (IllegalStateException e) {
            // The JVM is ending already: this is the case the hook is for.
        }
    }

    /** Runs in the JVM's hook thread. */
    public void interrupt() {
        synchronized (this) {
            interrupted = true;
            if (action != null) {
                action.run();
            }
        }
        try {
            if (!ended.await(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
                err.println(command + ": the step under way did not end within " + PATIENCE_SECONDS
                        + " s; giving up on it");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
