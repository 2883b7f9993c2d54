package dev.chagres.internal.memory;

import java.util.ArrayList;
import java.util.List;

/**
 * What the host does besides at each launch of a graph: numbers that change from step to step are written before it, and counters
 * move on after it. Whoever would do so at once while a stream captures leaves it here instead.
 *
 * <p>Threading: the device's thread.
 */
public final class Capture {
    private final List<Runnable> before = new ArrayList<>();
    private final List<Runnable> after = new ArrayList<>();
    private final List<Runnable> onFailure = new ArrayList<>();

    /** Makes the list of a capture that begins. */
    public Capture() {}

    /** Runs {@code action} before each launch; what it enqueues comes before the graph. */
    public void beforeLaunch(Runnable action) {
        before.add(action);
    }

    /** Runs {@code action} after each launch is enqueued. */
    public void afterLaunch(Runnable action) {
        after.add(action);
    }

    /** Runs {@code action} when the capture fails. */
    public void onFailure(Runnable action) {
        onFailure.add(action);
    }

    /** Enqueues what comes before the graph. */
    public void prepare() {
        run(before);
    }

    /** Moves the counters on. */
    public void finish() {
        run(after);
    }

    /** Forgets what the capture has begun. */
    public void fail() {
        run(onFailure);
    }

    private static void run(List<Runnable> actions) {
        for (int i = 0; i < actions.size(); i++) {
            actions.get(i).run();
        }
    }
}
