package dev.chagres.nccl;

import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Where the ranks of a communicator tell each other what they are about to call.
 *
 * <p>Threading: the device's thread, but for what says otherwise.
 */
interface CallExchange {
    /** Returns that of ranks that meet in this program, or are elsewhere; null where those cannot be told anything. */
    static @Nullable CallExchange of(@Nullable Meeting meeting, @Nullable PeerPlace elsewhere, int rank) {
        if (meeting != null) {
            return meeting.comparisons();
        }
        return elsewhere == null || !elsewhere.peers().calls().areTold() ? null : new PeerComparisons(elsewhere, rank);
    }

    /** Returns the number of a transfer, the same on both ends: their own counts of them. */
    long nextTransfer(int from, int to, boolean sends);

    /** Says what {@code rank} calls. */
    void announce(int rank, ComparedCall call);

    /** Waits until all callers have said what they call, and compares; {@code waiting} is what the rank is in. */
    void compare(Endpoint endpoint, ComparedCall call, Called waiting);

    /** Returns which of the callers have not said what they call. Any thread. */
    List<Integer> missing(ComparedCall call);
}
