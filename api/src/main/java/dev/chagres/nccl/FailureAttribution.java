package dev.chagres.nccl;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;

/**
 * The ranks that keep others of one program waiting. A rank that itself waits for another one, on any communicator, is not at fault.
 *
 * <p>Threading: immutable.
 *
 * @param ranks as the communicator numbers them that all are split from
 * @param reason what is said of them beside that they did not come; empty for nothing
 */
record FailureAttribution(List<Integer> ranks, String reason) {
    /** Returns the value for ranks of which no more is known. */
    static FailureAttribution only(List<Integer> ranks) {
        return new FailureAttribution(ranks, "");
    }

    /**
     * Finds the ranks that {@code waiting} waits for in the end, as the communicator numbers them that all are split from. No meeting's
     * lock is held.
     *
     * @param missing those that have not come there
     */
    static FailureAttribution of(Endpoint waiting, ThreadRanks meeting, List<Integer> missing) {
        Set<Integer> seen = new HashSet<>();
        seen.add(meeting.number(waiting.rank));
        Set<Integer> blamed = new TreeSet<>();
        Deque<Endpoint> left = new ArrayDeque<>();
        left.add(waiting);
        while (!left.isEmpty()) {
            Endpoint next = left.remove();
            ThreadRanks where = Objects.requireNonNull(next.meeting);
            List<Integer> late = next == waiting ? missing : next.calls.behind();
            // If all have come, one of them may wait for others before it goes on.
            for (int rank : where.numbers(late.isEmpty() ? next.calls.peerWait.awaited() : late)) {
                Endpoint other = seen.add(rank) ? meeting.root().waiting(rank) : next;
                if (other == null && !late.isEmpty()) {
                    blamed.add(rank);
                } else if (other != null && other != next) {
                    left.add(other);
                }
            }
        }
        if (!blamed.isEmpty()) {
            return only(List.copyOf(blamed));
        }
        // Ranks that wait for each other in different orders are all at fault.
        List<Integer> late = meeting.numbers(missing);
        return new FailureAttribution(late, transfers(waiting, meeting.root(), late));
    }

    /** Says in which sends and receives ranks wait for each other. */
    private static String transfers(Endpoint waiting, ThreadRanks root, List<Integer> late) {
        if (!isInTransfer(waiting)) {
            return "";
        }
        List<String> others = new ArrayList<>();
        for (int rank : late) {
            Endpoint other = root.waiting(rank);
            if (other != null && isInTransfer(other)) {
                others.add("rank " + rank + " waits in " + other.calls.current
                        + (other.meeting == root ? "" : " of " + other));
            }
        }
        return others.isEmpty()
                ? ""
                : "; " + String.join(", ", others) + "; put a send and its opposite receive into Communicator.group";
    }

    private static boolean isInTransfer(Endpoint endpoint) {
        return endpoint.calls.peerWait.isUnderWay()
                && endpoint.calls.current.operation().isTransfer();
    }
}
