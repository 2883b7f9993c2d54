package dev.chagres.nccl;

import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Through which the ranks of a communicator announce their next calls to each other.
 *
 * <p>Threading: the device's thread, but for what says otherwise.
 */
interface CallExchange {
    /** Returns the exchange of ranks in this program or in other processes; null if those cannot be reached. */
    static @Nullable CallExchange of(@Nullable ThreadRanks meeting, @Nullable PeerPlace elsewhere, int rank) {
        if (meeting != null) {
            return meeting.comparisons;
        }
        return elsewhere == null || !elsewhere.peers().calls.areTold() ? null : new PeerComparisons(elsewhere, rank);
    }

    /** Returns the number of a transfer, the same on both ends: their own counts of them. */
    long nextTransfer(int from, int to, boolean sends);

    /** Announces the call of {@code rank}. */
    void announce(int rank, ComparedCall call);

    /** Waits until all callers have announced their calls, and compares; {@code waiting} is the rank's own call. */
    void compare(Endpoint endpoint, ComparedCall call, Called waiting);

    /** Returns which of the callers have not announced their call. Any thread. */
    List<Integer> missing(ComparedCall call);

    /**
     * One rank's announcement of a call, which ranks compare.
     *
     * @param key the same on each rank that calls it, and that of no other call of the communicator
     * @param title stands in the error
     * @param said what this rank calls
     * @param callers ranks that call it, in the order of the error
     */
    record ComparedCall(String key, String title, String said, List<Integer> callers) {
        /** Throws if the callers' announcements differ; {@code all} is in their order. */
        void refuseDifference(List<@Nullable String> all) {
            boolean differs = false;
            StringBuilder text = new StringBuilder(title).append(": expected the same call on every rank, got ");
            for (int i = 0; i < all.size(); i++) {
                String one = all.get(i);
                differs |= one == null || !one.equals(all.getFirst());
                text.append(i == 0 ? "" : "; ")
                        .append("rank ")
                        .append(callers.get(i))
                        .append(": ")
                        .append(one);
            }
            if (differs) {
                throw new IllegalStateException(text.toString());
            }
        }
    }
}
