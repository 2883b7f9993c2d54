package dev.chagres.nccl;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.time.Duration;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * One rank's wait for its peers, in the api and in NCCL, as seen by other threads: {@link Watchdog} ends a wait that exceeds the timeout, and
 * {@link FailureAttribution} follows which rank waits for which.
 *
 * <p>Threading: begun and ended on the device's thread; read by any thread where it says so.
 */
final class PeerWait {
    private static final VarHandle UNDER_WAY;

    static {
        try {
            UNDER_WAY = MethodHandles.lookup().findVarHandle(PeerWait.class, "underWay", long.class);
        } catch (ReflectiveOperationException impossible) {
            throw new ExceptionInInitializerError(impossible);
        }
    }

    private final Awaited calls;
    /** How many waits have begun. */
    private long begun;
    /** The number of the thread's current wait, from 1 on; outside of a wait minus the number of the last one, or 0. */
    @SuppressWarnings("unused") // through UNDER_WAY
    private long underWay;
    /** Who is in the current wait, or was in the last one. */
    private @Nullable Thread thread;
    /** When the current or last wait began. */
    private long sinceNanos;
    /** The call that the thread waits to compare with its peers', or null. */
    private volatile @Nullable Awaited compared;

    /** {@code calls} are those that were passed to NCCL. */
    PeerWait(Awaited calls) {
        this.calls = calls;
    }

    void begin() {
        sinceNanos = System.nanoTime();
        thread = Thread.currentThread();
        UNDER_WAY.setRelease(this, ++begun);
    }

    void end() {
        UNDER_WAY.setRelease(this, -begun);
    }

    /** Sets the call that the thread waits to compare with its peers', or null. */
    void compares(@Nullable Awaited comparison) {
        compared = comparison;
    }

    /** Returns the number of the wait that the thread is in, 0 outside and while it compares calls. Any thread. */
    long number() {
        return Math.max(0, (long) UNDER_WAY.getAcquire(this));
    }

    /** Returns whether the thread that is in a wait was interrupted. Any thread. */
    boolean isInterrupted() {
        Thread waiting = number() == 0 ? null : thread;
        return waiting != null && waiting.isInterrupted();
    }

    /** Returns how many waits have begun. Any thread. */
    long count() {
        return Math.abs((long) UNDER_WAY.getAcquire(this));
    }

    /** Returns whether the thread waits for other ranks. Any thread. */
    boolean isUnderWay() {
        return number() != 0 || compared != null;
    }

    /** Returns the ranks whose calls make one with what this one waits for. Any thread. */
    List<Integer> awaited() {
        return present().awaited();
    }

    /** Returns the peers that have not come. Any thread. */
    List<Integer> missing() {
        return present().missing();
    }

    private Awaited present() {
        Awaited present = compared;
        return present == null ? calls : present;
    }

    /** Returns whether the thread has waited ever. */
    boolean hasBegun() {
        return begun > 0;
    }

    /** Returns the text that {@code caller} is in {@code call}, or was in it last, and since when. */
    Called describe(String caller, CurrentCall call) {
        boolean isInside = number() != 0;
        return begun == 0
                ? Called.nothing(caller)
                : new Called(caller, call.toString(), Duration.ofNanos(System.nanoTime() - sinceNanos), isInside);
    }

    /** The calls for which a rank waits: those that it has passed to NCCL, or one that is compared first. */
    interface Awaited {
        /** Returns the ranks whose calls make one with what this one waits for. */
        List<Integer> awaited();

        /** Returns the peers that have not reached them. */
        List<Integer> missing();
    }
}
