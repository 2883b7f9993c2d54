package dev.chagres.conformance;

import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;

/** Measures what a thread allocates on the Java heap. */
public final class Allocation {
    private static final ThreadMXBean THREADS = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    private static final int ROUNDS = 20;

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
        for (int round = 0; round < ROUNDS && least > 0; round++) {
            long before = THREADS.getCurrentThreadAllocatedBytes();
            for (int i = 0; i < calls; i++) {
                call.run();
            }
            least = Math.min(least, THREADS.getCurrentThreadAllocatedBytes() - before);
        }
        // Half an object a call is none: the measurement, or a method that is compiled meanwhile.
        if (least > 8L * calls) {
            throw new AssertionError(what + ": allocated at least " + least + " bytes in " + calls + " calls");
        }
    }
}
