package dev.chagres.launch;

import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.ScopedLock;
import dev.chagres.internal.memory.Uninterruptibles;
import dev.chagres.nccl.PeerProgress;
import java.net.ProtocolException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;

/**
 * Asks all ranks where they are, and collects their answers. A stopped process does not answer.
 *
 * <p>Threading: thread-safe.
 */
final class HangQuery {
    /** How long ranks have to answer: hosts may be busy, but the answering threads have no other work. */
    private static final long PATIENCE_NANOS = TimeUnit.MILLISECONDS.toNanos(700);

    private final ScopedLock lock = new ScopedLock();
    private final Condition changed = lock.newCondition();
    private final List<Integer> asked;
    private final Map<Integer, PeerProgress> answers = new TreeMap<>();

    HangQuery(List<Integer> asked) {
        this.asked = asked;
    }

    void answer(int rank, PeerProgress progress) {
        try (var _ = lock.hold()) {
            answers.put(rank, progress);
            changed.signalAll();
        }
    }

    /** Waits for the answers, and returns the ranks at fault: those that do not answer or are late, else those that wait for others. */
    List<Integer> await() {
        try (var _ = lock.hold()) {
            // An interrupt does not end it: who has not answered yet is not to blame.
            var _ = Uninterruptibles.await(PATIENCE_NANOS, left -> {
                long rest = left;
                while (answers.size() < asked.size() && rest > 0) {
                    rest = changed.awaitNanos(rest);
                }
                return rest;
            });
        }
        List<Integer> late = with(PeerProgress.LATE);
        return late.isEmpty() ? with(PeerProgress.WAITS) : late;
    }

    private List<Integer> with(PeerProgress progress) {
        List<Integer> ranks = new ArrayList<>();
        try (var _ = lock.hold()) {
            for (int rank : asked) {
                if (answers.getOrDefault(rank, PeerProgress.LATE) == progress) {
                    ranks.add(rank);
                }
            }
        }
        return ranks;
    }

    static String text(List<Integer> ranks) {
        return String.join(",", ranks.stream().map(String::valueOf).toList());
    }

    /** Reads what {@link #text} wrote of {@code count} ranks. */
    static List<Integer> ranks(String text, int count) throws ProtocolException {
        List<Integer> ranks = new ArrayList<>();
        for (String number : text.split(",")) {
            if (!number.isEmpty()) {
                ranks.add(checked(number(number), count));
            }
        }
        return ranks;
    }

    private static int number(String text) throws ProtocolException {
        try {
            return Integer.parseInt(text);
        } catch (NumberFormatException _) {
            throw new ProtocolException("expected the number of a rank, got " + ForeignText.quoted(text));
        }
    }

    static int checked(int rank, int count) throws ProtocolException {
        if (rank < 0 || rank >= count) {
            throw new ProtocolException("expected a rank from 0 to " + (count - 1) + ", got " + rank);
        }
        return rank;
    }
}
