package dev.chagres.nccl;

import java.util.List;

/**
 * Where the ranks of a communicator tell each other what they are about to call.
 *
 * <p>Threading: the device's thread, but for what says otherwise.
 */
interface CallExchange {
    /** Returns the number of a transfer, the same on both ends: their own counts of them. */
    long nextTransfer(int from, int to, boolean sends);

    /** Says what {@code rank} calls. */
    void announce(int rank, ComparedCall call);

    /** Waits until all callers have said what they call, and compares; {@code waiting} is what the rank is in. */
    void compare(Endpoint endpoint, ComparedCall call, String waiting);

    /** Returns which of the callers have not said what they call. Any thread. */
    List<Integer> missing(ComparedCall call);
}
