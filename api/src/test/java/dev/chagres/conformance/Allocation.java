package dev.chagres.conformance;

import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;

/** Measures what a thread allocates on the Java heap. */
public final class Allocation {
    private static final ThreadMXBean THREADS = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    private static final int WARM_UP = 3_000;
    private static final int MEASURED = 1_000;

    /** Below one object a call; the measurement itself and a compiler thread's hand-over take a little. */
    private static final double LIMIT = 8;

    private Allocation() {}

    /** Checks that {@code call}, once warm, allocates nothing on this thread's heap. */
    public static void assertNone(String what, Runnable call) {
        assertNone(what, call, WARM_UP, MEASURED);
    }

    /** Checks the same with fewer calls, for those that take long. */
    public static void assertNone(String what, Runnable call, int warmUp, int measured) {
        run(call, warmUp);
        long before = THREADS.getCurrentThreadAllocatedBytes();
        run(call, measured);
        long allocated = THREADS.getCurrentThreadAllocatedBytes() - before;
        if (allocated > LIMIT * measured) {
            throw new AssertionError(what + ": allocated " + allocated + " bytes in " + measured + " calls");
        }
    }

    private static void run(Runnable call, int times) {
        for (int i = 0; i < times; i++) {
            call.run();
        }
    }
}
