package dev.chagres.internal.memory;

import java.util.ArrayList;
import java.util.List;

/**
 * What belongs to a graph beside its recorded work: what the host checks and does at each launch, and what it takes back when the
 * capture fails.
 *
 * <p>Threading: the device's thread.
 */
public final class Capture {
    private final List<Object> trusted = new ArrayList<>();
    private final List<Runnable> checks = new ArrayList<>();
    private final List<StepWork> work = new ArrayList<>();
    private final List<Runnable> onFailure = new ArrayList<>();

    /** Makes the lists of a capture that begins. */
    public Capture() {}

    /** Does {@code stepWork} at each launch. */
    public void add(StepWork stepWork) {
        work.add(stepWork);
    }

    /** Runs {@code check} before each launch, once for each {@code tensor}: it throws where kernels may not trust its contents. */
    public void trust(Object tensor, Runnable check) {
        for (int i = 0; i < trusted.size(); i++) {
            if (trusted.get(i) == tensor) {
                return;
            }
        }
        trusted.add(tensor);
        checks.add(check);
    }

    /** Runs {@code action} when the capture fails. */
    public void onFailure(Runnable action) {
        onFailure.add(action);
    }

    /** Checks that everything is there, then enqueues what comes before the graph. No counter moves. */
    public void prepare() {
        for (int i = 0; i < checks.size(); i++) {
            checks.get(i).run();
        }
        for (int i = 0; i < work.size(); i++) {
            work.get(i).check();
        }
        for (int i = 0; i < work.size(); i++) {
            work.get(i).write();
        }
    }

    /** Moves the counters on. */
    public void finish() {
        for (int i = 0; i < work.size(); i++) {
            work.get(i).count();
        }
    }

    /** Takes back what the capture has begun. */
    public void fail() {
        for (int i = 0; i < onFailure.size(); i++) {
            onFailure.get(i).run();
        }
    }
}
