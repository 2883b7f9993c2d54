package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.concurrent.locks.LockSupport;

/**
 * The progress of ranks that are threads of one program, by which they wait for each other before a call. A wait makes no garbage.
 *
 * <p>Threading: thread-safe; a rank's own number is written by one thread.
 */
final class Barrier {
    /** Stands for all ranks as the peer that a rank waits for. */
    private static final int ALL = -1;

    private static final int NONE = -1;

    /** Ranks' counters are padded to separate cache lines. */
    private static final int STRIDE = 16;
    /** Polls before a thread sleeps: some tens of microseconds, in which a peer with the same work usually arrives. */
    private static final int LOOKS = 1000;

    private final ThreadRanks meeting;
    private final int ranks;
    private final int looks;
    private final AtomicLongArray collectives;
    /** By rank: its sends to each peer, then its receives from each peer. */
    private final AtomicLongArray transfers;

    private final AtomicReferenceArray<Thread> sleeping;
    private final AtomicIntegerArray left;

    Barrier(ThreadRanks meeting, int ranks) {
        this.meeting = meeting;
        this.ranks = ranks;
        looks = ranks <= Runtime.getRuntime().availableProcessors() ? LOOKS : 0;
        collectives = new AtomicLongArray(ranks * STRIDE);
        transfers = new AtomicLongArray(ranks * 2 * ranks);
        sleeping = new AtomicReferenceArray<>(ranks);
        left = new AtomicIntegerArray(ranks);
    }

    void entered(int rank, long number) {
        collectives.set(rank * STRIDE, number);
    }

    /**
     * Sets how many sends {@code rank} has reached; {@code slot} is the receiver's number. For receives it is the sender's plus the number
     * of ranks.
     */
    void transferred(int rank, int slot, long number) {
        transfers.set(rank * 2 * ranks + slot, number);
    }

    private long sends(int rank, int to) {
        return transfers.get(rank * 2 * ranks + to);
    }

    private long receives(int rank, int from) {
        return transfers.get(rank * 2 * ranks + ranks + from);
    }

    /** Wakes the peers of {@code rank}. */
    void wake(int rank) {
        for (int other = 0; other < ranks; other++) {
            if (other != rank) {
                Thread thread = sleeping.get(other);
                if (thread != null) {
                    LockSupport.unpark(thread);
                }
            }
        }
    }

    /** Wakes all ranks. */
    void wakeAll() {
        wake(ALL);
    }

    /** Records that {@code rank} has closed its communicator, and makes no further calls. */
    void left(int rank) {
        left.set(rank, 1);
        wake(rank);
    }

    /** Returns a rank that this call waits for and that will not come any more, or NONE. */
    private int gone(int rank, int peer, long first, long second) {
        for (int other = 0; other < ranks; other++) {
            boolean awaited = peer == ALL ? collectives.get(other * STRIDE) < first : other == peer;
            if (other != rank && awaited && left.get(other) != 0 && !hasCome(rank, peer, first, second)) {
                return other;
            }
        }
        return NONE;
    }

    /** Returns whether {@code rank} has closed its communicator. */
    boolean isLeft(int rank) {
        return left.get(rank) != 0;
    }

    /** Waits until all ranks have reached the collective of that number, or the ranks have failed. */
    void await(int rank, long number) {
        await(rank, ALL, number, 0);
    }

    /**
     * Waits until {@code peer} receives the send of that number from {@code rank}, or sends what the receive of that number takes, 0 where
     * there is none; or until the ranks have failed. One of both is enough, for a peer may call its own one by one.
     */
    void await(int rank, int peer, long send, long receive) {
        for (int look = 0; look < looks; look++) {
            if (hasCome(rank, peer, send, receive)) {
                return;
            }
            Thread.onSpinWait();
        }
        sleeping.set(rank, Thread.currentThread());
        try {
            while (meeting.failure() == null && !hasCome(rank, peer, send, receive)) {
                int gone = gone(rank, peer, send, receive);
                if (gone != NONE) {
                    meeting.failAfterWord(gone);
                    break;
                }
                LockSupport.park(this);
                if (Thread.currentThread().isInterrupted() && !hasCome(rank, peer, send, receive)) {
                    meeting.failInterrupted(rank);
                }
            }
        } finally {
            sleeping.set(rank, null);
        }
    }

    private boolean hasCome(int rank, int peer, long first, long second) {
        return peer == ALL ? haveCome(first) : haveCome(rank, peer, first, second);
    }

    /** Returns whether that peer has come to the send or the receive of {@link #await(int, int, long, long)}. Any thread. */
    boolean haveCome(int rank, int peer, long send, long receive) {
        return peer == rank
                || (send == 0 && receive == 0)
                || (send > 0 && receives(peer, rank) >= send)
                || (receive > 0 && sends(peer, rank) >= receive);
    }

    private boolean haveCome(long number) {
        for (int other = 0; other < ranks; other++) {
            if (collectives.get(other * STRIDE) < number) {
                return false;
            }
        }
        return true;
    }

    /** Returns the ranks beside {@code rank} that have not come to the collective of that number. */
    List<Integer> behind(int rank, long number) {
        List<Integer> behind = new ArrayList<>();
        for (int other = 0; other < ranks; other++) {
            if (other != rank && collectives.get(other * STRIDE) < number) {
                behind.add(other);
            }
        }
        return behind;
    }
}
