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
            return meeting.comparisons();
        }
        return elsewhere == null || !elsewhere.peers().calls().areTold() ? null : new PeerComparisons(elsewhere, rank);
    }

    /** Returns the number of a transfer, the same on both ends: their own counts of them. */
    long nextTransfer(int from, int to, boolean sends);

    /** Announces the call of {@code rank}. */
    void announce(int rank, ComparedCall call);

    /** Waits until all callers have announced their calls, and compares; {@code waiting} is the rank's own call. */
    void compare(Endpoint endpoint, ComparedCall call, Called waiting);

    /** Returns which of the callers have not announced their call. Any thread. */
    List<Integer> missing(ComparedCall call);
}
