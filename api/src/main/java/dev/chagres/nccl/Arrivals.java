package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.concurrent.locks.LockSupport;

/**
 * How far ranks that are threads of one program have come, and their waiting for each other before a call. A wait makes no garbage.
 *
 * <p>Threading: thread-safe; a rank's own number is written by one thread.
 */
final class Arrivals {
    /** Every rank, in {@link #await}. */
    static final int ALL = -1;

    private static final int NONE = -1;

    /** Ranks' numbers lie apart, so that counting them does not move one cache line between cores. */
    private static final int STRIDE = 16;
    /** Looks before a thread sleeps: some tens of microseconds, in which a peer that does the same work comes. */
    private static final int LOOKS = 1000;

    private final Meeting meeting;
    private final int ranks;
    private final int looks;
    private final AtomicLongArray collectives;
    private final AtomicLongArray transfers;
    private final AtomicReferenceArray<Thread> sleeping;
    private final AtomicIntegerArray left;

    Arrivals(Meeting meeting, int ranks) {
        this.meeting = meeting;
        this.ranks = ranks;
        looks = ranks <= Runtime.getRuntime().availableProcessors() ? LOOKS : 0;
        collectives = new AtomicLongArray(ranks * STRIDE);
        transfers = new AtomicLongArray(ranks * ranks);
        sleeping = new AtomicReferenceArray<>(ranks);
        left = new AtomicIntegerArray(ranks);
    }

    void entered(int rank, long number) {
        collectives.set(rank * STRIDE, number);
    }

    void transferred(int rank, int peer, long number) {
        transfers.set(rank * ranks + peer, number);
    }

    /** Lets the peers of {@code rank} look again. */
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

    /** Lets all ranks look again. */
    void wakeAll() {
        wake(ALL);
    }

    /** Says that {@code rank} has closed its communicator: it will not come any more. */
    void left(int rank) {
        left.set(rank, 1);
        wake(rank);
    }

    /** Returns a rank that this call waits for and that will not come any more, or NONE. */
    private int gone(int rank, int peer, long number) {
        for (int other = 0; other < ranks; other++) {
            boolean awaited = peer == ALL ? collectives.get(other * STRIDE) < number : other == peer;
            if (other != rank && awaited && left.get(other) != 0 && !haveCome(rank, peer, number)) {
                return other;
            }
        }
        return NONE;
    }

    /** Returns whether {@code rank} has closed its communicator. */
    boolean isLeft(int rank) {
        return left.get(rank) != 0;
    }

    /**
     * Waits until {@code peer} has come to the transfer of that number with {@code rank}, or all ranks to the collective of that number;
     * or until the ranks have failed.
     */
    void await(int rank, int peer, long number) {
        for (int look = 0; look < looks; look++) {
            if (haveCome(rank, peer, number)) {
                return;
            }
            Thread.onSpinWait();
        }
        boolean interrupted = false;
        sleeping.set(rank, Thread.currentThread());
        try {
            while (meeting.failure() == null && !haveCome(rank, peer, number)) {
                int gone = gone(rank, peer, number);
                if (gone != NONE) {
                    meeting.failAfterWord(gone);
                    break;
                }
                LockSupport.park(this);
                // The wait has an end of its own; the thread finds the interrupt after it.
                interrupted |= Thread.interrupted();
            }
        } finally {
            sleeping.set(rank, null);
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Returns whether that peer, or all ranks, have come. Any thread. */
    boolean haveCome(int rank, int peer, long number) {
        if (peer != ALL) {
            return peer == rank || transfers.get(peer * ranks + rank) >= number;
        }
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
