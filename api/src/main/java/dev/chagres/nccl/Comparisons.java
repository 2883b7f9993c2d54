package dev.chagres.nccl;

import dev.chagres.nccl.CallExchange.ComparedCall;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The announced calls of ranks that are threads of one program, until all of them have compared them.
 *
 * <p>Threading: thread-safe, under the {@link ConditionLock} of the {@link ThreadRanks}.
 */
final class Comparisons implements CallExchange {
    private final ThreadRanks meeting;
    private final ConditionLock lock;
    private final Barrier arrivals;
    private final Map<String, Comparison> open = new HashMap<>();
    private final Map<String, Long> transfers = new HashMap<>();

    /** The announcements of one call. */
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

    Comparisons(ThreadRanks meeting) {
        this.meeting = meeting;
        lock = meeting.lock;
        arrivals = meeting.arrivals;
    }

    @Override
    public long nextTransfer(int from, int to, boolean sends) {
        try (var _ = lock.hold()) {
            return transfers.merge((sends ? "send " : "receive ") + from + " " + to, 1L, Long::sum);
        }
    }

    @Override
    public void announce(int rank, ComparedCall call) {
        int callers = call.callers().size();
        try (var _ = lock.hold()) {
            Comparison comparison = open.computeIfAbsent(call.key(), _ -> new Comparison(meeting.ranks, callers));
            comparison.said[rank] = call.said();
            comparison.waiting--;
        }
    }

    @Override
    public void compare(Endpoint endpoint, ComparedCall call, Called waiting) {
        String key = call.key();
        List<Integer> callers = call.callers();
        long begin = System.nanoTime();
        try (var _ = lock.hold()) {
            Comparison comparison = open.get(key);
            if (comparison == null) {
                throw new IllegalStateException(call.title() + " was not announced by rank " + endpoint.rank);
            }
            meeting.await(
                    endpoint.rank,
                    () -> comparison.waiting == 0
                            || missing(comparison, callers).stream().anyMatch(arrivals::isLeft),
                    endpoint.config.timeout().toMillis(),
                    waiting,
                    () -> missing(comparison, callers),
                    late -> FailureAttribution.of(endpoint, meeting, late));
            if (comparison.waiting != 0) {
                int gone = missing(comparison, callers).stream()
                        .filter(arrivals::isLeft)
                        .findFirst()
                        .orElseThrow();
                throw meeting.closed(gone, waiting.waited(Duration.ofNanos(System.nanoTime() - begin)));
            }
            if (--comparison.left == 0) {
                open.remove(key);
            }
            List<@Nullable String> said = new ArrayList<>();
            callers.forEach(caller -> said.add(comparison.said[caller]));
            call.refuseDifference(said);
        }
    }

    @Override
    public List<Integer> missing(ComparedCall call) {
        try (var _ = lock.hold()) {
            Comparison comparison = open.get(call.key());
            return comparison == null ? List.of() : missing(comparison, call.callers());
        }
    }

    private static List<Integer> missing(Comparison comparison, List<Integer> callers) {
        return callers.stream()
                .filter(caller -> comparison.said[caller] == null)
                .toList();
    }
}
