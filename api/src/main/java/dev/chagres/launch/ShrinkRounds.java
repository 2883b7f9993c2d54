package dev.chagres.launch;

import dev.chagres.internal.Checks;
import dev.chagres.launch.ShrinkDecision.Proposal;
import dev.chagres.nccl.UniqueId;
import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * The agreements of ranks that are processes, one after another, at the rank that keeps the store.
 *
 * <p>Threading: thread-safe, under the lock of the {@link StoreServer}.
 */
final class ShrinkRounds {
    private static final byte[] NOTHING = {};
    private static final long LOOK_MILLIS = 100;
    /** Later times could not be compared. */
    private static final long LONGEST_MILLIS = TimeUnit.DAYS.toMillis(1000);

    private final StoreServer server;
    /** Ranks whose process has ended, or that have finished or failed by themselves. */
    private final Set<Integer> gone = new TreeSet<>();

    /** By rank, its latest attempt, and the latest decided one: a rank may repeat an attempt while the decision is on its way. */
    private final Map<Integer, Integer> attempts = new HashMap<>();

    private final Map<Integer, Integer> settled = new HashMap<>();
    private List<InetSocketAddress> addresses = List.of();
    private @Nullable ShrinkConsensus accord;
    private boolean closed;

    ShrinkRounds(StoreServer server) {
        this.server = server;
    }

    void meetAt(List<InetSocketAddress> all) {
        server.lock.lock();
        try {
            addresses = List.copyOf(all);
        } finally {
            server.lock.unlock();
        }
    }

    /** A rank will not go on. */
    void comesNoMore(int rank) {
        server.lock.lock();
        try {
            gone.add(rank);
            server.changed.signalAll();
        } finally {
            server.lock.unlock();
        }
    }

    void close() {
        server.lock.lock();
        try {
            closed = true;
            server.changed.signalAll();
        } finally {
            server.lock.unlock();
        }
    }

    /** Receives a rank's proposal; the rank repeats it, and the replies tell it that this rank lives. */
    void come(int rank, Proposal proposal) {
        server.lock.lock();
        try {
            ShrinkDecision before = server.news.decision();
            if (before != null && !server.news.isMember(rank)) {
                server.tellRank(rank, StoreMessages.Kind.DECIDED, 0, before.toBytes());
                return;
            }
            if (proposal.attempt() <= settled.getOrDefault(rank, 0)) {
                return;
            }
            attempts.put(rank, proposal.attempt());
            ShrinkConsensus present = accord;
            long end = System.nanoTime()
                    + TimeUnit.MILLISECONDS.toNanos(Math.min(proposal.timeoutMillis(), LONGEST_MILLIS));
            if (present == null) {
                tellFailure(rank, proposal); // Before anything is decided.
                present = new ShrinkConsensus(server.environment.rank(), end);
                accord = present;
                ShrinkConsensus made = present;
                Thread.ofPlatform().daemon().name("chagres-store-accord").start(() -> watch(made, proposal.why()));
            }
            present.waitUntil(end);
            present.come(rank, proposal);
            if (!present.isAbandoned(gone, System.nanoTime())) {
                server.tellRank(rank, StoreMessages.Kind.WAIT, proposal.attempt(), NOTHING);
            }
            server.changed.signalAll();
        } finally {
            server.lock.unlock();
        }
    }

    /** Ends the waits of ranks that have not learned of the failure; the lock is held. */
    private void tellFailure(int rank, Proposal proposal) {
        int failed = proposal.missed().isEmpty() ? -1 : proposal.missed().getFirst();
        String text = "as rank " + rank + " says: " + proposal.why();
        if (rank != server.environment.rank()) {
            server.news.failed(failed, text);
        }
        server.tellOthers(failed, text);
    }

    /** Looks for ranks that have ended, until the remaining ranks are decided. */
    private void watch(ShrinkConsensus watched, String why) {
        byte[] id;
        String problem = "";
        try {
            id = UniqueId.create().toBytes();
        } catch (RuntimeException failed) {
            id = NOTHING;
            problem = Checks.describe(failed);
        }
        StoreMessages.Told failure = server.news.telling("as rank " + server.environment.rank() + " says: " + why);
        Set<Integer> told = new HashSet<>();
        while (true) {
            look(watched, failure, told);
            server.lock.lock();
            try {
                if (closed) {
                    return;
                }
                ShrinkDecision made = watched.decide(server.news.members(), gone, System.nanoTime(), id);
                if (made != null) {
                    accord = null;
                    decided(problem.isEmpty() ? made : ShrinkDecision.refused(problem));
                    return;
                }
                var _ = server.changed.await(LOOK_MILLIS, TimeUnit.MILLISECONDS);
            } catch (InterruptedException stopped) {
                return;
            } finally {
                server.lock.unlock();
            }
        }
    }

    private void decided(ShrinkDecision made) {
        settled.putAll(attempts);
        server.news.decided(made);
        server.tellAll(made);
    }

    /** Asks absent ranks without a connection here whether they live, and informs those that do and were not missed. */
    private void look(ShrinkConsensus watched, StoreMessages.Told failure, Set<Integer> told) {
        List<InetSocketAddress> all;
        Set<Integer> absent;
        Set<Integer> missed;
        server.lock.lock();
        try {
            all = addresses;
            absent = watched.absent(gone);
            missed = watched.missed();
            absent.removeIf(server::isConnected);
        } finally {
            server.lock.unlock();
        }
        for (int rank : absent) {
            if (StoreClient.hasEnded(all.get(rank))) {
                comesNoMore(rank);
            } else if (!missed.contains(rank) && told.add(rank)) {
                StoreClient.tell(server.environment, all.get(rank), server.hello(), failure);
            }
        }
    }
}
