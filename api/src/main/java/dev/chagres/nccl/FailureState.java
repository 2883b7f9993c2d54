package dev.chagres.nccl;

import dev.chagres.bindings.NcclException;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.concurrent.locks.ReentrantLock;
import org.jspecify.annotations.Nullable;

/**
 * The failure of one rank of a communicator, if it has failed, and the revocation that ends its calls of NCCL.
 *
 * <p>Threading: any thread, but for {@link #settle}.
 */
final class FailureState {
    private final Endpoint endpoint;
    private final @Nullable ThreadRanks meeting;
    private final @Nullable PeerPlace elsewhere;
    private final Revocation revocation;
    /** Why this rank cannot go on, if ranks have no meeting. */
    private volatile @Nullable RankFailure failure;

    /** {@code endpoint} knows its rank, and where its ranks meet; {@code handle} is NCCL's. */
    FailureState(Endpoint endpoint, MemorySegment handle) {
        this.endpoint = endpoint;
        meeting = endpoint.meeting;
        elsewhere = endpoint.elsewhere;
        revocation = new Revocation(handle, endpoint.rank);
    }

    /** Returns why the rank cannot go on, or null. */
    @Nullable
    RankFailure failure() {
        return meeting == null ? failure : meeting.failure();
    }

    /**
     * Throws what a status of NCCL other than success says. The device's thread.
     *
     * @param during the call that the rank was in
     */
    void settle(int status, String function, @Nullable Called during) {
        RankFailure present = failure();
        if (present != null) {
            throw present.exception(during);
        }
        try {
            Status.nccl(status, function);
        } catch (NcclException refused) {
            if (elsewhere == null || !mayComeFromPeers(status)) {
                throw refused;
            }
            elsewhere.peers().awaitWord(endpoint);
            RankFailure told = failure();
            if (told != null) {
                throw told.exception(during);
            }
            if (status != Nccl.ncclRemoteError()) {
                throw refused;
            }
            throw new RankFailure(List.of(), String.valueOf(refused.getMessage()), refused)
                    .recorded(List.of(endpoint))
                    .exception(during);
        }
    }

    /**
     * Returns whether NCCL may give this status to a rank because a rank in another process has ended. A rank that is setting up its
     * connections then gets an error of its own socket, or of CUDA, and not {@code ncclRemoteError}.
     */
    static boolean mayComeFromPeers(int status) {
        return status == Nccl.ncclRemoteError()
                || status == Nccl.ncclSystemError()
                || status == Nccl.ncclInternalError()
                || status == Nccl.ncclUnhandledCudaError();
    }

    /** Records that a process has failed; -1 if it is not known which. */
    void peerFailed(int process, Throwable cause) {
        int other = elsewhere == null ? process : elsewhere.rank(process);
        if (process < 0) {
            fail(new RankFailure(List.of(), String.valueOf(cause.getMessage()), cause));
        } else if (other >= 0) {
            fail(RankFailure.thrown(other, cause));
        }
    }

    /** Ends the waits of this rank, and of its known peers, for good. */
    void fail(RankFailure first) {
        if (meeting != null) {
            meeting.fail(first);
        } else {
            synchronized (revocation) { // The first failure is kept.
                failure = failure == null ? first.recorded(List.of(endpoint)) : failure;
            }
            revoke();
        }
    }

    /** Makes NCCL end running collectives, on a separate thread, since it waits for their end; the handle stays. */
    void revoke() {
        revocation.begin();
    }

    /** Enters NCCL on the device's thread, unless it is revoking; returns whether it has. For calls that are polled. */
    boolean enter() {
        return revocation.enter();
    }

    /** Leaves NCCL, if this thread is inside. */
    void leave() {
        revocation.leave();
    }

    /**
     * Waits a while for NCCL to return from {@link #revoke}, which begins a moment after a failure is told; returns whether NCCL has, or there
     * is no failure.
     */
    boolean awaitRevoked() {
        if (failure() != null) {
            revoke();
        }
        return revocation.await();
    }

    /** Disables {@link #revoke}, since the communicator is closed; returns whether NCCL has returned from it. */
    boolean preventRevoking() {
        return revocation.prevent();
    }

    /**
     * The revocation of one communicator. NCCL tells the kernels of that communicator to end, and waits for them. They may be in a stream
     * behind kernels of another communicator, which end only when that one is revoked. So each communicator is revoked on its own thread, and a
     * thread that must revoke several waits for none.
     *
     * <p>A communicator must not be used while NCCL begins to revoke it: it joins the thread of the call that is in progress, and frees what that call
     * has. The thread that polls a call could do the same at that moment. So that thread is {@linkplain #enter inside} NCCL for no longer than a look, and
     * the revocation begins when it is not.
     *
     * <p>Source: {@code ncclCommRevoke} and {@code commRevokeAsync} of NCCL's {@code init.cc}.
     */
    private static final class Revocation {
        private static final long PATIENCE_MILLIS = 5_000;

        private enum Progress {
            NONE,
            UNDER_WAY,
            DONE
        }

        private final ConditionLock lock = new ConditionLock();
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
            try (var _ = lock.hold()) {
                if (progress == Progress.NONE) {
                    progress = Progress.UNDER_WAY;
                    Thread.ofPlatform()
                            .daemon()
                            .name("chagres-revoke-rank-" + rank)
                            .start(this::revoke);
                }
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
            try (var _ = lock.hold()) {
                progress = Progress.DONE;
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
            try (var _ = lock.hold()) {
                return lock.waitUntil(() -> progress != Progress.UNDER_WAY, PATIENCE_MILLIS);
            }
        }

        /** Prevents later revocation, since the communicator is closed; returns whether none is running. */
        boolean prevent() {
            try (var _ = lock.hold()) {
                progress = progress == Progress.NONE ? Progress.DONE : progress;
                return await();
            }
        }
    }
}
