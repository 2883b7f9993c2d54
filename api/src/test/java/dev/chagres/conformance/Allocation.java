package dev.chagres.conformance;

import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;

/** Measures what a thread allocates on the Java heap. */
public final class Allocation {
    private static final ThreadMXBean THREADS = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    private static final int ROUNDS = 20;

    /** How long the compiler may take to get round to the code, on a machine that has much else to do. */
    private static final long PATIENCE_NANOS = 60_000_000_000L;

    private Allocation() {}

    /** Checks that {@code call}, once warm, allocates nothing on this thread's heap. */
    public static void assertNone(String what, Runnable call) {
        assertNone(what, call, 500);
    }

    /**
     * Checks that there is a round of {@code calls} calls that allocates nothing: until the code is compiled some do, and what
     * allocates in every call never has one.
     */
    public static void assertNone(String what, Runnable call, int calls) {
        long least = Long.MAX_VALUE;
        long begin = System.nanoTime();
        for (int round = 0; least > 0 && goesOn(round, least, calls, begin); round++) {
            long before = THREADS.getCurrentThreadAllocatedBytes();
            for (int i = 0; i < calls; i++) {
                call.run();
            }
            least = Math.min(least, THREADS.getCurrentThreadAllocatedBytes() - before);
        }
        if (isSome(least, calls)) {
            throw new AssertionError(what + ": allocated at least " + least + " bytes in " + calls + " calls");
        }
    }

    private static boolean goesOn(int round, long least, int calls, long begin) {
        return round < ROUNDS || (isSome(least, calls) && System.nanoTime() - begin < PATIENCE_NANOS);
    }

    /** Half an object a call is none: the measurement, or a method that is compiled meanwhile. */
    private static boolean isSome(long bytes, int calls) {
        return bytes > 8L * calls;
    }
}
