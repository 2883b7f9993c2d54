package dev.chagres.nccl;

import java.util.Arrays;

/**
 * Whether a thread stays inside one and the same call, as far as a look at its stack now and then can tell. CUDA lets a launch wait while
 * a stream's queue is full, and the queue of a stream on which NCCL waits for another rank stays full.
 *
 * <p>Threading: one thread, which is not the one that is looked at.
 */
final class Stall {
    private static final int LOOKS = 8;

    private StackTraceElement[] stack = {};
    private long nextNanos = System.nanoTime();

    /** Returns whether the thread has gone on since the look before, some of which there are in {@code timeoutNanos}. */
    boolean hasEnded(Thread thread, long nowNanos, long timeoutNanos) {
        if (nowNanos - nextNanos < 0) {
            return false;
        }
        nextNanos = nowNanos + timeoutNanos / LOOKS;
        StackTraceElement[] present = thread.getStackTrace();
        boolean ended = !Arrays.equals(present, stack);
        stack = present;
        return ended;
    }
}
