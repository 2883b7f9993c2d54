package dev.chagres.launch;

import dev.chagres.internal.Checks;
import dev.chagres.internal.RankNames;
import dev.chagres.launch.ShrinkDecision.Proposal;
import dev.chagres.nccl.UniqueId;
import java.net.InetSocketAddress;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
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
        try (var _ = server.lock.hold()) {
            addresses = List.copyOf(all);
        }
    }

    /** A rank will not go on. */
    void comesNoMore(int rank) {
        try (var _ = server.lock.hold()) {
            gone.add(rank);
            server.changed.signalAll();
        }
    }

    void close() {
        try (var _ = server.lock.hold()) {
            closed = true;
            server.changed.signalAll();
        }
    }

    /** Receives a rank's proposal; the rank repeats it, and the replies tell it that this rank lives. */
    void come(int rank, Proposal proposal) {
        try (var _ = server.lock.hold()) {
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
        try (var _ = server.lock.hold()) {
            all = addresses;
            absent = watched.absent(gone);
            missed = watched.missed();
            absent.removeIf(server::isConnected);
        }
        for (int rank : absent) {
            if (StoreClient.hasEnded(all.get(rank))) {
                comesNoMore(rank);
            } else if (!missed.contains(rank) && told.add(rank)) {
                StoreClient.tell(server.environment, all.get(rank), server.hello(), failure);
            }
        }
    }

    /**
     * One agreement of ranks that are processes on the remaining ranks, at the rank that keeps the store.
     *
     * <p>A rank whose process has ended does not remain. One that lives and does not come may be going on with others, behind a failed network:
     * those that came go on only if they are more than half of the living ranks, or half of them including the lowest rank. So two groups can
     * never both go on. Nor does the keeper go on that came after others had missed it, when these have left: it may have been stopped while they
     * went on and ended.
     */
    static final class ShrinkConsensus {
        private final int keeper;
        private long end;
        /** Of the communicators that failed. */
        private final Set<Integer> members = new TreeSet<>();

        private final SortedMap<Integer, Long> came = new TreeMap<>();
        private final Set<Integer> missed = new TreeSet<>();
        /** Ranks that have missed the keeper, and so go on with the store of another one unless they hear of this one. */
        private final Set<Integer> doubting = new TreeSet<>();

        /** Ranks that neither come nor end are waited for until {@code end}. */
        ShrinkConsensus(int keeper, long end) {
            this.keeper = keeper;
            this.end = end;
        }

        /** Waits for other ranks until then, where that is earlier than what other ranks have said. */
        void waitUntil(long time) {
            end = time - end < 0 ? time : end;
        }

        /** Takes what a rank says, unless another one that came before has missed it. */
        void come(int rank, Proposal proposal) {
            if (missed.contains(rank)) {
                return;
            }
            members.addAll(proposal.members());
            came.put(rank, proposal.value());
            if (proposal.missed().contains(keeper)) {
                doubting.add(rank);
            }
            proposal.missed().stream().filter(other -> !came.containsKey(other)).forEach(missed::add);
        }

        /** Returns the ranks that others have missed for the timeout. */
        Set<Integer> missed() {
            return new TreeSet<>(missed);
        }

        /** Returns the ranks that have not come, except those known not to go on. */
        Set<Integer> absent(Collection<Integer> gone) {
            Set<Integer> absent = new TreeSet<>(members);
            absent.removeAll(came.keySet());
            absent.removeAll(gone);
            return absent;
        }

        /** Returns whether there is no other rank to wait for, but the rank that keeps the store has not come itself. */
        boolean isAbandoned(Collection<Integer> gone, long now) {
            return (now - end > 0 || gone.contains(keeper)) && !came.containsKey(keeper);
        }

        /**
         * Decides, once no further rank will come.
         *
         * @param left those that were left before
         * @param gone who will not go on
         * @param shared what those that are left get
         * @return null while others are waited for
         */
        @Nullable
        ShrinkDecision decide(Collection<Integer> left, Collection<Integer> gone, long now, byte[] shared) {
            Set<Integer> awaited = absent(gone);
            awaited.removeAll(missed);
            awaited.retainAll(left);
            came.keySet().removeAll(gone);
            if (!came.containsKey(keeper) || (!awaited.isEmpty() && now - end < 0)) {
                return null;
            }
            Set<Integer> lost = new TreeSet<>(doubting);
            lost.retainAll(gone);
            if (!lost.isEmpty()) {
                return ShrinkDecision.refused(RankNames.of(lost) + " missed rank " + keeper
                        + " before it came, and may have gone on without it; start again from a saved state");
            }
            Set<Integer> silent = absent(gone);
            TreeSet<Integer> living = new TreeSet<>(silent);
            living.addAll(came.keySet());
            boolean isHalf = 2 * came.size() == living.size() && came.containsKey(living.first());
            if (silent.isEmpty() || 2 * came.size() > living.size() || isHalf) {
                return new ShrinkDecision(came, shared, "");
            }
            return ShrinkDecision.refused(RankNames.of(silent) + " neither came nor ended, and may go on without "
                    + RankNames.of(came.keySet())
                    + ": expected more than half of the ranks that live, or half of them with rank "
                    + living.first() + "; start again from a saved state");
        }
    }
}
