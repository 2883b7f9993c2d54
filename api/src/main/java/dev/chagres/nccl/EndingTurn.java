package dev.chagres.nccl;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The turn of a thread that ends a communicator, or what is under way in one. When NCCL has revoked a communicator it clears the
 * abort flags of those that were split from it: one that is aborted meanwhile would wait for its own threads without an end.
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: {@code commRevokeAsync} and {@code commReclaim} of NCCL's {@code init.cc}.
 */
final class EndingTurn {
    private static final ReentrantLock TURN = new ReentrantLock();
    private static final long SOON_SECONDS = 5;

    private EndingTurn() {}

    /** Waits for the turn; {@link #give()} follows. */
    static void take() {
        TURN.lock();
    }

    /** Waits for it for a few seconds; returns whether the thread has it. */
    static boolean takeSoon() {
        try {
            return TURN.tryLock(SOON_SECONDS, TimeUnit.SECONDS);
        } catch (InterruptedException _) {
            Thread.currentThread().interrupt();
            return TURN.tryLock();
        }
    }

    /** Ends the turn. */
    static void give() {
        TURN.unlock();
    }
}
