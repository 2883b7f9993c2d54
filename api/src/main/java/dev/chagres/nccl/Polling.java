package dev.chagres.nccl;

import dev.chagres.bindings.nccl.Nccl;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import org.jspecify.annotations.Nullable;

/**
 * Asks NCCL whether a call of a non-blocking communicator is done.
 *
 * <p>Threading: the device's thread, or the one that revokes.
 *
 * <p>Source: {@code ncclCommGetAsyncError} of {@code nccl.h}.
 */
final class Polling {
    /** Waiting begins without pauses, since most calls are enqueued within microseconds. */
    private static final int EAGER_LOOKS = 1000;

    private static final long PAUSE_NANOS = 50_000;

    /** For the answer of NCCL: the device's own place may be where the call that is in progress writes its result. */
    private static final ThreadLocal<MemorySegment> ANSWER =
            ThreadLocal.withInitial(() -> Arena.ofAuto().allocate(ValueLayout.JAVA_INT));

    private Polling() {}

    /**
     * Returns the status of the endpoint's call when it is done; still in progress if the ranks have failed, as {@link Watchdog} says they have
     * after the timeout.
     *
     * @param returned what the call has returned. Success may mean in progress: NCCL 2.28.9 returns it from {@code ncclCommSplit}, {@code
     *     ncclCommShrink} and {@code ncclCommWindowRegister} before they are done
     */
    static int await(Endpoint endpoint, MemorySegment handle, int returned) {
        if (returned != Nccl.ncclSuccess() && returned != Nccl.ncclInProgress()) {
            return returned;
        }
        FailureState failures = endpoint.failures;
        // Without an object for the condition, since this runs in every call.
        for (int look = 0; failures.enter(); look++) {
            int state;
            try {
                if (endpoint.failure() != null) {
                    break;
                }
                state = state(handle);
            } finally {
                failures.leave();
            }
            if (state != Nccl.ncclInProgress()) {
                return state;
            }
            pause(look);
        }
        return Nccl.ncclInProgress();
    }

    /**
     * Returns the status of a call that the endpoint makes to be left by ranks that have failed; still in progress when the timeout is over,
     * or the endpoint fails otherwise than {@code before}.
     */
    static int await(Endpoint endpoint, Duration timeout, @Nullable RankFailure before) {
        FailureState failures = endpoint.failures;
        RunningClock clock = new RunningClock();
        for (int look = 0; failures.enter(); look++) {
            int state;
            try {
                if (endpoint.failure() != before) {
                    break;
                }
                state = state(endpoint.handle());
            } finally {
                failures.leave();
            }
            if (state != Nccl.ncclInProgress() || clock.look() > timeout.toNanos()) {
                return state;
            }
            pause(look);
        }
        return Nccl.ncclInProgress();
    }

    /**
     * Returns the state of a communicator that nothing can revoke as soon as it is no longer in progress, the timeout is over or {@code ends}
     * says to stop.
     */
    static int await(MemorySegment handle, Duration timeout, BooleanSupplier ends) {
        RunningClock clock = new RunningClock();
        for (int look = 0; ; look++) {
            int state = state(handle);
            if (state != Nccl.ncclInProgress() || ends.getAsBoolean() || clock.look() > timeout.toNanos()) {
                return state;
            }
            pause(look);
        }
    }

    /** Waits until the communicator is no longer in progress. */
    static void awaitEnd(MemorySegment handle) {
        for (int look = 0; state(handle) == Nccl.ncclInProgress(); look++) {
            pause(look);
        }
    }

    private static void pause(int look) {
        if (look < EAGER_LOOKS) {
            Thread.onSpinWait();
        } else {
            LockSupport.parkNanos(PAUSE_NANOS);
        }
    }

    private static int state(MemorySegment handle) {
        MemorySegment answer = ANSWER.get();
        int status = Nccl.ncclCommGetAsyncError(handle, answer);
        return status == Nccl.ncclSuccess() ? answer.get(ValueLayout.JAVA_INT, 0) : status;
    }
}
