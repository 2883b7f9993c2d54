package dev.chagres.nccl;

import dev.chagres.bindings.NcclException;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import java.lang.foreign.MemorySegment;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * What made one rank of a communicator fail, if it has failed, and what ends its calls of NCCL then.
 *
 * <p>Threading: any thread, but for {@link #settle}.
 */
final class FailureState {
    private final Endpoint endpoint;
    private final @Nullable Meeting meeting;
    private final @Nullable PeerPlace elsewhere;
    private final Revocation revocation;
    /** Why this rank cannot go on, where ranks do not know of each other. */
    private volatile @Nullable RankFailure failure;

    /** {@code endpoint} knows its rank, and where its ranks meet; {@code handle} is NCCL's. */
    FailureState(Endpoint endpoint, MemorySegment handle) {
        this.endpoint = endpoint;
        meeting = endpoint.meeting();
        elsewhere = endpoint.elsewhere();
        revocation = new Revocation(handle, endpoint.rank());
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

    /** Says that a process has failed; -1 when nobody knows which. */
    void peerFailed(int process, Throwable cause) {
        int other = elsewhere == null ? process : elsewhere.rank(process);
        if (process < 0) {
            fail(new RankFailure(List.of(), String.valueOf(cause.getMessage()), cause));
        } else if (other >= 0) {
            fail(RankFailure.thrown(other, cause));
        }
    }

    /** Ends what this rank waits for, and its peers where they are known, for good. */
    void fail(RankFailure first) {
        if (meeting != null) {
            meeting.fail(first);
        } else {
            synchronized (revocation) { // The first one stays.
                failure = failure == null ? first.recorded(List.of(endpoint)) : failure;
            }
            revoke();
        }
    }

    /** Lets NCCL end what is under way, on a thread of its own, for it waits until that has ended; the handle stays. */
    void revoke() {
        revocation.begin();
    }

    /** Waits a while for NCCL to come back from {@link #revoke}; returns whether it has. */
    boolean awaitRevoked() {
        return revocation.await();
    }

    /** Lets {@link #revoke} do nothing any more, for the communicator is closed; returns whether NCCL has come back from it. */
    boolean preventRevoking() {
        return revocation.prevent();
    }
}
