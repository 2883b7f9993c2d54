package dev.chagres.nccl;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;

/**
 * Finds the ranks that keep others of one program waiting. A rank that itself waits for another one, on any communicator, is not at fault.
 *
 * <p>Threading: thread-safe.
 */
final class Blame {
    private Blame() {}

    /**
     * Returns the ranks that {@code waiting} waits for in the end, as the communicator numbers them that all are split from. No meeting's
     * lock is held.
     *
     * @param missing those that have not come there
     */
    static List<Integer> of(Endpoint waiting, Meeting meeting, List<Integer> missing) {
        Set<Integer> seen = new HashSet<>();
        seen.add(meeting.number(waiting.rank()));
        Set<Integer> blamed = new TreeSet<>();
        Deque<Endpoint> left = new ArrayDeque<>();
        left.add(waiting);
        while (!left.isEmpty()) {
            Endpoint next = left.remove();
            Meeting where = Objects.requireNonNull(next.meeting());
            List<Integer> late = next == waiting ? missing : next.calls().behind();
            // If all have come, one of them may wait for others before it goes on.
            for (int rank :
                    where.numbers(late.isEmpty() ? next.calls().peerWait().awaited() : late)) {
                Endpoint other = seen.add(rank) ? meeting.root().waiting(rank) : next;
                if (other == null && !late.isEmpty()) {
                    blamed.add(rank);
                } else if (other != null && other != next) {
                    left.add(other);
                }
            }
        }
        // Ranks that wait for each other in different orders are all at fault.
        return blamed.isEmpty() ? meeting.numbers(missing) : List.copyOf(blamed);
    }
}
