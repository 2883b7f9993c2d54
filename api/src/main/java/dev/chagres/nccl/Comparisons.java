package dev.chagres.nccl;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * What ranks, as threads of one program, are about to call, until all of them have compared it.
 *
 * <p>Threading: thread-safe, under the {@link Monitor} of the {@link Meeting}.
 */
final class Comparisons {
    private final Meeting meeting;
    private final Monitor monitor;
    private final Arrivals arrivals;
    private final Map<String, Comparison> open = new HashMap<>();
    private final Map<String, Long> transfers = new HashMap<>();

    /** What ranks said of one call of theirs. */
    private static final class Comparison {
        private final @Nullable String[] said;
        private int waiting;
        private int left;

        private Comparison(int ranks, int callers) {
            said = new String[ranks];
            waiting = callers;
            left = callers;
        }
    }

    Comparisons(Meeting meeting) {
        this.meeting = meeting;
        monitor = meeting.monitor();
        arrivals = meeting.arrivals();
    }

    /** Returns the number of a transfer, the same on both ends: their own counts of them. */
    long nextTransfer(int from, int to, boolean sends) {
        monitor.lock();
        try {
            return transfers.merge((sends ? "send " : "receive ") + from + " " + to, 1L, Long::sum);
        } finally {
            monitor.unlock();
        }
    }

    /** Says what {@code rank} calls; {@code key} is the same on each of the {@code callers} that call it. */
    void announce(int rank, String key, int callers, String call) {
        monitor.lock();
        try {
            Comparison comparison = open.computeIfAbsent(key, _ -> new Comparison(meeting.ranks(), callers));
            comparison.said[rank] = call;
            comparison.waiting--;
        } finally {
            monitor.unlock();
        }
    }

    /** Waits until all callers have said what they call, and compares. */
    void compare(Endpoint endpoint, String key, String waiting, List<Integer> callers) {
        monitor.lock();
        try {
            Comparison comparison = open.get(key);
            if (comparison == null) {
                throw new IllegalStateException(key + " was not announced by rank " + endpoint.rank());
            }
            meeting.await(
                    () -> comparison.waiting == 0
                            || missing(comparison, callers).stream().anyMatch(arrivals::isLeft),
                    endpoint.config().timeout().toMillis(),
                    waiting,
                    () -> missing(comparison, callers),
                    late -> Blame.of(endpoint, meeting, late));
            if (comparison.waiting != 0) {
                int gone = missing(comparison, callers).stream()
                        .filter(arrivals::isLeft)
                        .findFirst()
                        .orElseThrow();
                throw meeting.closed(gone, waiting);
            }
            if (--comparison.left == 0) {
                open.remove(key);
            }
            throwDifference(key, comparison, callers);
        } finally {
            monitor.unlock();
        }
    }

    /** Returns which of the callers have not said what they call. */
    List<Integer> missing(String key, List<Integer> callers) {
        monitor.lock();
        try {
            Comparison comparison = open.get(key);
            return comparison == null ? List.of() : missing(comparison, callers);
        } finally {
            monitor.unlock();
        }
    }

    private static List<Integer> missing(Comparison comparison, List<Integer> callers) {
        return callers.stream()
                .filter(caller -> comparison.said[caller] == null)
                .toList();
    }

    private static void throwDifference(String key, Comparison comparison, List<Integer> callers) {
        String first = comparison.said[callers.getFirst()];
        boolean differs = false;
        StringBuilder text = new StringBuilder(key).append(": expected the same call on every rank, got ");
        for (int caller : callers) {
            String said = comparison.said[caller];
            differs |= said == null || !said.equals(first);
            text.append(caller == callers.getFirst() ? "" : "; ")
                    .append("rank ")
                    .append(caller)
                    .append(": ")
                    .append(said);
        }
        if (differs) {
            throw new IllegalStateException(text.toString());
        }
    }
}
