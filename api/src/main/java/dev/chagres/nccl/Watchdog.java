package dev.chagres.nccl;

import dev.chagres.bindings.ProcessExit;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * A thread that ends the wait of a rank whose peers do not come within the timeout, or whose thread is interrupted: that rank itself is inside NCCL
 * or CUDA, and notices neither.
 *
 * <p>Threading: thread-safe.
 */
final class Watchdog {
    static final String THREAD = "chagres-collective-watch";

    private static final Map<Endpoint, Seen> WATCHED = new HashMap<>();
    private static boolean started;
    /** Whether NCCL may still be busy with a communicator that is closed. */
    private static boolean leaks;

    static {
        endProcessInTime();
    }

    /** The wait of an endpoint at the last check, and its beginning. */
    private static final class Seen {
        private long wait;
        /** By the clock of the thread. */
        private long sinceNanos;
    }

    private Watchdog() {}

    static void add(Endpoint endpoint) {
        synchronized (WATCHED) {
            WATCHED.put(endpoint, new Seen());
            if (!started) {
                started = true;
                Thread.ofPlatform().daemon().name(THREAD).start(Watchdog::watch);
            }
            WATCHED.notifyAll();
        }
    }

    static void remove(Endpoint endpoint) {
        synchronized (WATCHED) {
            WATCHED.remove(endpoint);
        }
    }

    /** Says that NCCL was not waited for when an endpoint was closed. */
    static void leaked() {
        synchronized (WATCHED) {
            leaks = true;
        }
    }

    /** Threads of NCCL that work for an open communicator crash the process when its destructors run. */
    private static void endProcessInTime() {
        try {
            Runtime.getRuntime().addShutdownHook(new Thread(Watchdog::atExit, "chagres-exit"));
        } catch (IllegalStateException ends) { // the JVM
            ProcessExit.skipDestructors();
        }
    }

    private static void atExit() {
        synchronized (WATCHED) {
            if (leaks || !WATCHED.isEmpty()) {
                ProcessExit.skipDestructors();
            }
        }
    }

    /** Returns how many endpoints are open. */
    static int watched() {
        synchronized (WATCHED) {
            return WATCHED.size();
        }
    }

    private static void watch() {
        RunningClock clock = new RunningClock();
        while (true) {
            Endpoint late;
            List<Endpoint> interrupted;
            synchronized (WATCHED) {
                try {
                    // Without a communicator there is nothing to check until one is added.
                    WATCHED.wait(WATCHED.isEmpty() ? 0 : RunningClock.PERIOD_MILLIS);
                } catch (InterruptedException stopped) {
                    started = false;
                    return;
                }
                late = firstLate(clock.look());
                interrupted = interrupted();
            }
            interrupted.forEach(Watchdog::endInterrupted);
            if (late != null) {
                if (late.calls.peerWait.number() != 0) {
                    timeOut(late);
                } else {
                    timeOutIfAnyIsBehind(late);
                }
            }
        }
    }

    private static List<Endpoint> interrupted() {
        return WATCHED.keySet().stream()
                .filter(endpoint -> endpoint.failure() == null && endpoint.calls.isInterrupted())
                .toList();
    }

    /** Ends the wait of a rank whose thread was interrupted; a wait for work of the device alone ends by itself. */
    private static void endInterrupted(Endpoint waiting) {
        boolean forPeers =
                waiting.calls.peerWait.number() != 0 || !behind(waiting).isEmpty();
        if (forPeers && waiting.failure() == null) {
            waiting.failInterrupted();
        }
    }

    /** Ends the wait of a rank, and of its known peers, after the timeout. */
    static void timeOut(Endpoint late) {
        List<Integer> missing = late.meeting == null ? List.of() : late.calls.peerWait.missing();
        fail(
                late,
                Called.in(late.toString(), late.calls.current.toString()),
                missing.isEmpty() ? behind(late) : missing);
    }

    /** Ends the wait for work of the device, or for the launch of more, if other ranks are behind; otherwise that work just takes long. */
    private static void timeOutIfAnyIsBehind(Endpoint late) {
        List<Integer> behind = late.failure() == null ? behind(late) : List.of();
        if (!behind.isEmpty()) {
            fail(late, late.calls.describe(), behind);
        }
    }

    private static List<Integer> behind(Endpoint late) {
        if (late.meeting != null) {
            return late.calls.behind();
        }
        PeerPlace elsewhere = late.elsewhere;
        return elsewhere == null ? List.of() : elsewhere.behind(late);
    }

    private static void fail(Endpoint late, Called waiting, List<Integer> missing) {
        long millis = late.config.timeout().toMillis();
        ThreadRanks meeting = late.meeting;
        if (meeting == null) {
            late.failures.fail(RankFailure.late(waiting, missing, millis));
        } else {
            // A rank that does not come here is missing in the communicators that this was split from, too.
            meeting.root().fail(RankFailure.late(waiting, FailureAttribution.of(late, meeting, missing), millis));
        }
    }

    private static @Nullable Endpoint firstLate(long now) {
        for (Map.Entry<Endpoint, Seen> entry : WATCHED.entrySet()) {
            long wait = entry.getKey().calls.waitingForPeers();
            Seen seen = entry.getValue();
            if (wait == 0 || wait != seen.wait) {
                seen.wait = wait;
                seen.sinceNanos = now;
            } else if (now - seen.sinceNanos > entry.getKey().config.timeout().toNanos()) {
                seen.sinceNanos = now;
                return entry.getKey();
            }
        }
        return null;
    }
}
