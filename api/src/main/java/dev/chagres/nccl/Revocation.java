package dev.chagres.nccl;

import dev.chagres.bindings.nccl.Nccl;
import java.lang.foreign.MemorySegment;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The revocation of one communicator. NCCL tells the kernels of that communicator to end, and waits for them. They may be in a stream
 * behind kernels of another communicator, which end only when that one is revoked. So each communicator is revoked on its own thread, and a
 * thread that must revoke several waits for none.
 *
 * <p>A communicator must not be used while NCCL begins to revoke it: it joins the thread of the call that is in progress, and frees what that call
 * has. The thread that polls a call could do the same at that moment. So that thread is {@linkplain #enter inside} NCCL for no longer than a look, and
 * the revocation begins when it is not.
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: {@code ncclCommRevoke} and {@code commRevokeAsync} of NCCL's {@code init.cc}.
 */
final class Revocation {
    private static final long PATIENCE_MILLIS = 5_000;

    private enum Progress {
        NONE,
        UNDER_WAY,
        DONE
    }

    private final Monitor monitor = new Monitor();
    private final MemorySegment handle;
    private final int rank;
    private volatile Progress progress = Progress.NONE;
    /** Held by the device's thread while it is inside NCCL, if calls are polled. */
    private final ReentrantLock inside = new ReentrantLock();

    /** Makes the revocation of the communicator with this handle. */
    Revocation(MemorySegment handle, int rank) {
        this.handle = handle;
        this.rank = rank;
    }

    /** Begins it, once, unless that was {@link #prevent}ed. */
    void begin() {
        monitor.lock();
        try {
            if (progress == Progress.NONE) {
                progress = Progress.UNDER_WAY;
                Thread.ofPlatform().daemon().name("chagres-revoke-rank-" + rank).start(this::revoke);
            }
        } finally {
            monitor.unlock();
        }
    }

    private void revoke() {
        try {
            inside.lock(); // From now on enter refuses.
            inside.unlock();
            // Its status is not needed: the thread that is in a call of the communicator sees the failure.
            int status = Nccl.ncclCommRevoke(handle, Nccl.NCCL_REVOKE_DEFAULT());
            if (status == Nccl.ncclInProgress()) {
                Polling.awaitEnd(handle);
            }
        } finally {
            end();
        }
    }

    private void end() {
        monitor.lock();
        try {
            progress = Progress.DONE;
        } finally {
            monitor.unlock();
        }
    }

    /** Enters NCCL, until {@link #leave}, unless NCCL is revoking; returns whether it has. The device's thread. */
    boolean enter() {
        inside.lock();
        if (progress == Progress.UNDER_WAY) {
            inside.unlock();
            return false;
        }
        return true;
    }

    /** Leaves NCCL, if this thread is inside. */
    void leave() {
        if (inside.isHeldByCurrentThread()) {
            inside.unlock();
        }
    }

    /** Waits a while for NCCL to return from a revocation that has begun; returns whether it has. */
    boolean await() {
        monitor.lock();
        try {
            return monitor.waitUntil(() -> progress != Progress.UNDER_WAY, PATIENCE_MILLIS);
        } finally {
            monitor.unlock();
        }
    }

    /** Prevents later revocation, since the communicator is closed; returns whether none is running. */
    boolean prevent() {
        monitor.lock();
        try {
            progress = progress == Progress.NONE ? Progress.DONE : progress;
            return await();
        } finally {
            monitor.unlock();
        }
    }
}
