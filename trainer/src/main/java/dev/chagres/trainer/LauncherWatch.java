package dev.chagres.trainer;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * Ends a rank whose launcher has gone without a word, as SIGKILL does it: after the step under way where that is quick, else at once.
 *
 * <p>Threading: thread-safe.
 */
final class LauncherWatch {
    /** The variable with the launcher's process. */
    static final String LAUNCHER = "CHAGRES_LAUNCHER";

    private static final long LOOK_NANOS = TimeUnit.MILLISECONDS.toNanos(200);
    private static final long GRACE_NANOS = TimeUnit.SECONDS.toNanos(1);
    /** As after SIGTERM. */
    private static final int STATUS = 143;

    private LauncherWatch() {}

    /** Begins, where {@code ./chagres launch} has started this process. */
    static void begin() {
        String launcher = System.getenv(LAUNCHER);
        if (launcher != null) {
            long expected = Long.parseLong(launcher.strip());
            Thread.ofPlatform().daemon().name("chagres-launcher-watch").start(() -> watch(expected));
        }
    }

    private static void watch(long launcher) {
        // A process whose parent has ended gets another one.
        while (parent() == launcher) {
            LockSupport.parkNanos(LOOK_NANOS);
        }
        System.err.println("train: the launcher, process " + launcher + ", has ended; this rank ends");
        Thread.ofPlatform().daemon().name("chagres-exit").start(() -> System.exit(STATUS));
        LockSupport.parkNanos(GRACE_NANOS);
        Runtime.getRuntime().halt(STATUS);
    }

    private static long parent() {
        return ProcessHandle.current().parent().map(ProcessHandle::pid).orElse(0L);
    }
}
