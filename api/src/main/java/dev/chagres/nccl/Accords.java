package dev.chagres.nccl;

import dev.chagres.internal.RankNames;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.function.IntPredicate;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * The agreements of ranks that are threads of one program, one after another.
 *
 * <p>Threading: thread-safe, under the {@link ConditionLock} of the {@link ThreadRanks}.
 */
final class Accords {
    private final ThreadRanks meeting;
    private final ConditionLock lock;
    private final Barrier arrivals;
    private final List<Accord> accords = new ArrayList<>();
    /** By rank, in how many accords it has taken part. */
    private final int[] taken;

    Accords(ThreadRanks meeting) {
        this.meeting = meeting;
        lock = meeting.lock;
        arrivals = meeting.arrivals;
        taken = new int[meeting.ranks];
    }

    /** Waits until the remaining ranks are decided; returns the proposals of each of them. */
    SortedMap<Integer, Long> agree(int rank, long value, String waiting, long timeoutMillis) {
        try (var _ = lock.hold()) {
            Accord accord = next(rank);
            if (!meeting.isMissed(rank)) {
                accord.come(rank, value);
            }
            lock.changed();
            // Ranks that have not come within the timeout do not remain.
            var _ = lock.waitUntil(() -> accord.decide(meeting::isGone), timeoutMillis);
            SortedMap<Integer, Long> decided = accord.decideNow();
            if (!decided.containsKey(rank)) {
                throw tooLate(rank, waiting, List.copyOf(decided.keySet()));
            }
            return decided;
        }
    }

    private Accord next(int rank) {
        int number = taken[rank]++;
        while (accords.size() <= number) {
            accords.add(new Accord(
                    accords.isEmpty()
                            ? IntStream.range(0, meeting.ranks).boxed().toList()
                            : accords.getLast().decideNow().keySet()));
        }
        return accords.get(number);
    }

    private RankFailedException tooLate(int rank, String waiting, List<Integer> left) {
        int number = meeting.number(rank);
        return new RankFailedException(
                waiting + ": rank " + number + " came too late, " + RankNames.of(meeting.numbers(left))
                        + " went on without it",
                List.of(number),
                null);
    }

    /**
     * Returns whether {@code rank} takes part in an agreement, or goes on after it, here or where ranks went on before. It may have closed the
     * communicators that it went on with since.
     */
    boolean goesOn(int rank) {
        return !arrivals.isLeft(rank) && remains(rank);
    }

    private boolean remains(int rank) {
        try (var _ = lock.hold()) {
            if (accords.isEmpty() || !accords.getLast().has(rank)) {
                return false;
            }
        }
        for (ThreadRanks rest : meeting.descendants.shrunk()) {
            int place = rest.place(meeting.number(rank));
            // Where not all have joined the others agree again here.
            if (place >= 0 && rest.failure() != null && rest.haveJoined()) {
                return rest.accords.remains(place);
            }
        }
        return true;
    }

    /** One agreement of ranks that are threads of one program. The remaining ranks are decided once. */
    private static final class Accord {
        /** Ranks that may take part: all, or those of the previous accord. */
        private final Collection<Integer> expected;

        private final SortedMap<Integer, Long> came = new TreeMap<>();
        private @Nullable SortedMap<Integer, Long> decided;

        Accord(Collection<Integer> expected) {
            this.expected = expected;
        }

        void come(int rank, long value) {
            if (decided == null && expected.contains(rank)) {
                came.put(rank, value);
            }
        }

        /** Returns whether {@code rank} has come, or is one of those that are left. */
        boolean has(int rank) {
            return came.containsKey(rank);
        }

        /** Decides when no further rank will come; returns whether it is decided. */
        boolean decide(IntPredicate isGone) {
            if (decided == null && expected.stream().allMatch(rank -> came.containsKey(rank) || isGone.test(rank))) {
                decideNow();
            }
            return decided != null;
        }

        /** Decides that the ranks that have come remain. */
        SortedMap<Integer, Long> decideNow() {
            SortedMap<Integer, Long> present = decided;
            if (present == null) {
                present = Collections.unmodifiableSortedMap(new TreeMap<>(came));
                decided = present;
            }
            return present;
        }
    }
}
