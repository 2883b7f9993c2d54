package dev.chagres.nccl;

import dev.chagres.Device;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Leaks;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * One rank's end of a communicator: NCCL's handle, and the rank's connections with the other ranks.
 *
 * <p>Threading: the device's thread, but for what says otherwise.
 */
final class Endpoint implements AutoCloseable {
    final Device device;
    final DeviceState state;
    final CommunicatorConfig config;
    final @Nullable ThreadRanks meeting;
    /** The peers in other processes; null if ranks are threads of this one. */
    final @Nullable PeerPlace elsewhere;
    /** Null if ranks cannot announce calls to each other. */
    final @Nullable CallExchange exchange;

    final int ranks;
    final int rank;
    private final Leaks.@Nullable Trace trace;

    private MemorySegment handle;
    /** The failure state, which ends this rank's calls if others do not come. */
    final FailureState failures;
    /** The object that runs before and after each call of NCCL. */
    final RankCalls calls;
    /** A key that is equal for communicators that fail together: those that were split from the same one, directly or not. */
    final Object family;
    /** The memory of NCCL's own that it knows. */
    final RegisteredMemory ownMemory = new RegisteredMemory();

    private final OpenEndpoints open;
    private int shrinks;

    /** {@code meeting}: of ranks that are threads of this program; {@code elsewhere}: of ranks in other processes. */
    Endpoint(
            Device device,
            CommunicatorConfig config,
            @Nullable ThreadRanks meeting,
            @Nullable PeerPlace elsewhere,
            MemorySegment handle) {
        this.device = device;
        this.config = config;
        this.meeting = meeting;
        this.elsewhere = elsewhere;
        this.handle = handle;
        state = Inside.state(device);
        MemorySegment out = state.out();
        Status.nccl(Nccl.ncclCommCount(handle, out), "ncclCommCount");
        ranks = out.get(ValueLayout.JAVA_INT, 0);
        Status.nccl(Nccl.ncclCommUserRank(handle, out), "ncclCommUserRank");
        rank = out.get(ValueLayout.JAVA_INT, 0);
        family = meeting != null ? meeting.root() : elsewhere != null ? elsewhere.family() : this;
        failures = new FailureState(this, handle);
        calls = new RankCalls(this);
        trace = Leaks.opened(toString());
        if (meeting != null) {
            meeting.add(this);
        }
        if (elsewhere != null) {
            elsewhere.peers().add(this);
        }
        exchange = CallExchange.of(meeting, elsewhere, rank);
        open = state.get(OpenEndpoints.OF_DEVICE);
        open.add(this);
        Watchdog.add(this);
    }

    /** Fails the rank, and its peers in this program, because its thread was interrupted in a wait for others. Any thread; no lock is held. */
    void failInterrupted() {
        ThreadRanks present = meeting;
        if (present == null) {
            failures.fail(RankFailure.interrupted(rank));
        } else {
            present.failInterrupted(rank);
        }
    }

    boolean isOpen() {
        return handle.address() != 0;
    }

    /** Returns NCCL's handle. */
    MemorySegment handle() {
        state.ensureCurrent();
        if (!isOpen()) {
            throw new IllegalStateException(this + " is closed");
        }
        return handle;
    }

    /** Returns why this rank cannot go on, or null. Any thread. */
    @Nullable
    RankFailure failure() {
        return meeting == null ? failures.failure() : meeting.failure();
    }

    /** Checks that collectives can be called. */
    void ensureUsable() {
        handle();
        RankFailure present = failure();
        if (present != null) {
            throw present.exception(calls.called());
        }
    }

    /** Returns the number of a shrink, the same on each rank that stays. */
    int nextShrink() {
        return ++shrinks;
    }

    /**
     * Returns whether closing must not wait for other ranks. NCCL may do so in {@code ncclCommDestroy} without an end where a process is
     * stopped, also in a communicator that has called nothing since another one of its family failed.
     */
    boolean endsByAbort() {
        return failure() != null || open.hasFailed(family);
    }

    /** Destroys the handle, without waiting for ranks that failed. */
    @Override
    public void close() {
        if (!isOpen()) {
            return;
        }
        state.ensureCurrent();
        state.ensureNotCapturing("close");
        Group.refuse("close");
        calls.ensureInNoGraph();
        boolean aborts = endsByAbort();
        int status = Nccl.ncclSuccess();
        // If NCCL does not return from revoking it, the handle is leaked rather than waited for.
        boolean ends = failures.preventRevoking();
        try {
            MemorySegment old = handle;
            handle = MemorySegment.NULL;
            if (ends) {
                aborts |= !isFinalized(old, aborts);
                status = aborts ? Nccl.ncclCommAbort(old) : Nccl.ncclCommDestroy(old);
                // The handle is gone either way, and nothing waits for the rest.
                status = status == Nccl.ncclInProgress() ? Nccl.ncclSuccess() : status;
            }
        } finally {
            if (!ends) {
                Watchdog.leaked();
            }
            Watchdog.remove(this);
            if (meeting != null) {
                meeting.remove(this);
            }
            if (elsewhere != null) {
                elsewhere.peers().remove(this);
            }
            open.remove(this);
            Leaks.closed(trace);
        }
        Status.nccl(status, aborts ? "ncclCommAbort" : "ncclCommDestroy");
    }

    /**
     * Finalizes the handle of a non-blocking communicator; false if that fails or lasts too long. Such a handle must be aborted: NCCL 2.28.9
     * refuses to destroy it, and then leaves a group of the thread open.
     */
    private boolean isFinalized(MemorySegment old, boolean aborts) {
        if (aborts || config.callMode() == CallMode.BLOCKING) {
            return true;
        }
        int status = Nccl.ncclCommFinalize(old);
        if (status == Nccl.ncclInProgress()) {
            status = Polling.await(old, config.timeout(), () -> failure() != null);
        }
        return status == Nccl.ncclSuccess();
    }

    @Override
    public String toString() {
        return Called.caller(config, rank, ranks);
    }
}
