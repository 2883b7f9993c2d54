package dev.chagres.nccl;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * A thread that ends the wait of a rank whose peers do not come within the timeout: that rank itself is inside C, and cannot look
 * at the clock.
 *
 * <p>Threading: thread-safe.
 */
final class Watch {
    private static final Map<Endpoint, Seen> WATCHED = new HashMap<>();
    private static boolean started;

    /** The wait that an endpoint was in when it was looked at, and since when. */
    private static final class Seen {
        private long wait;
        /** By the clock of the thread. */
        private long sinceNanos;
    }

    private Watch() {}

    static void add(Endpoint endpoint) {
        synchronized (WATCHED) {
            WATCHED.put(endpoint, new Seen());
            if (!started) {
                started = true;
                Thread.ofPlatform().daemon().name("chagres-collective-watch").start(Watch::watch);
            }
            WATCHED.notifyAll();
        }
    }

    static void remove(Endpoint endpoint) {
        synchronized (WATCHED) {
            WATCHED.remove(endpoint);
        }
    }

    /** Returns how many endpoints are open. */
    static int watched() {
        synchronized (WATCHED) {
            return WATCHED.size();
        }
    }

    private static void watch() {
        RunningClock clock = new RunningClock(System.nanoTime());
        while (true) {
            Endpoint late;
            synchronized (WATCHED) {
                try {
                    // Without a communicator there is nothing to look at until one is added.
                    WATCHED.wait(WATCHED.isEmpty() ? 0 : RunningClock.PERIOD_MILLIS);
                } catch (InterruptedException stopped) {
                    started = false;
                    return;
                }
                late = firstLate(clock.look(System.nanoTime()));
            }
            if (late != null) {
                if (late.calls().peerWait().number() != 0) {
                    timeOut(late);
                } else {
                    timeOutIfAnyIsBehind(late);
                }
            }
        }
    }

    /** Ends the wait of a rank, and of its peers where they are known: the time is up. */
    static void timeOut(Endpoint late) {
        long millis = late.config().timeout().toMillis();
        Called waiting = Called.in(late.toString(), late.calls().current().toString());
        Meeting meeting = late.meeting();
        if (meeting == null) {
            PeerPlace elsewhere = late.elsewhere();
            List<Integer> missing = elsewhere == null ? List.of() : elsewhere.behind(late);
            late.failures().fail(RankFailure.late(waiting, missing, millis));
        } else {
            List<Integer> missing = late.calls().peerWait().missing();
            fail(late, meeting, waiting, missing.isEmpty() ? late.calls().behind() : missing);
        }
    }

    private static void fail(Endpoint late, Meeting meeting, Called waiting, List<Integer> missing) {
        // Whoever does not come here is missed by the communicators that this was split from, too.
        List<Integer> blamed = Blame.of(late, meeting, missing);
        meeting.root()
                .fail(RankFailure.late(waiting, blamed, late.config().timeout().toMillis()));
    }

    /** Ends the wait for work of the device, or for the launch of more, where other ranks are behind: else that work is long. */
    private static void timeOutIfAnyIsBehind(Endpoint late) {
        if (late.failure() != null) {
            return;
        }
        Meeting meeting = late.meeting();
        if (meeting != null) {
            List<Integer> behind = late.calls().behind();
            if (!behind.isEmpty()) {
                fail(late, meeting, late.calls().describe(), behind);
            }
            return;
        }
        PeerPlace elsewhere = late.elsewhere();
        List<Integer> behind = elsewhere == null ? List.of() : elsewhere.behind(late);
        if (!behind.isEmpty()) {
            late.failures()
                    .fail(RankFailure.late(
                            late.calls().describe(),
                            behind,
                            late.config().timeout().toMillis()));
        }
    }

    private static @Nullable Endpoint firstLate(long now) {
        for (Map.Entry<Endpoint, Seen> entry : WATCHED.entrySet()) {
            long wait = entry.getKey().calls().waitingForPeers();
            Seen seen = entry.getValue();
            if (wait == 0 || wait != seen.wait) {
                seen.wait = wait;
                seen.sinceNanos = now;
            } else if (now - seen.sinceNanos > entry.getKey().config().timeout().toNanos()) {
                seen.sinceNanos = now;
                return entry.getKey();
            }
        }
        return null;
    }
}
