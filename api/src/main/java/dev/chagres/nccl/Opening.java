package dev.chagres.nccl;

import dev.chagres.bindings.NcclException;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.nccl.Nccl;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.List;
import java.util.function.BooleanSupplier;
import org.jspecify.annotations.Nullable;

/**
 * One rank's opening of a communicator. NCCL waits in it for all ranks without an end, so where ranks of other processes may not come it
 * runs on a thread of its own, which can be left behind.
 *
 * <p>Threading: made and called on the device's thread, once.
 */
final class Opening {
    /** The call of a rank that opens a communicator. */
    static final String OPEN = "open";

    private final int device;
    private final UniqueId id;
    private final int ranks;
    private final int rank;
    private final CommunicatorConfig config;

    private final ConditionLock lock = new ConditionLock();
    private @Nullable MemorySegment opened;
    private @Nullable Throwable thrown;
    /** Whether the caller has given up waiting. */
    private boolean abandoned;

    Opening(int device, UniqueId id, int ranks, int rank, CommunicatorConfig config) {
        this.device = device;
        this.id = id;
        this.ranks = ranks;
        this.rank = rank;
        this.config = config;
    }

    /**
     * Opens it on the calling thread: all ranks have come.
     *
     * @param ends says that another rank has failed, if calls are polled
     * @throws RankFailedException when that takes longer than the timeout, or another rank has failed, if calls are polled
     * @throws NcclException when NCCL refuses
     */
    MemorySegment call(BooleanSupplier ends) {
        if (config.callMode() == CallMode.NON_BLOCKING) {
            return polled(config.timeout(), ends);
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.ADDRESS);
            MemorySegment struct = Membership.write(config, arena);
            int status = Nccl.ncclCommInitRankConfig(out, ranks, id.copyTo(arena), rank, struct);
            // On this thread, since NCCL keeps error texts by thread.
            Status.nccl(status, "ncclCommInitRankConfig");
            return out.get(ValueLayout.ADDRESS, 0);
        }
    }

    /**
     * Opens it on another thread, or, if NCCL's calls return before they are done, on this one.
     *
     * @throws RankFailedException when that takes longer
     * @throws NcclException when NCCL refuses
     */
    MemorySegment within(Duration timeout) {
        if (config.callMode() == CallMode.NON_BLOCKING) {
            return polled(timeout, () -> peerFailure() != null);
        }
        Thread.ofPlatform().daemon().name("chagres-open-rank-" + rank).start(this::runOnItsThread);
        try (var _ = lock.hold()) {
            lock.waitUntil(this::isDecided, timeout.toMillis());
            return result(timeout);
        }
    }

    /** Opens it and asks until NCCL has done so, the timeout is over or {@code ends} says to stop. */
    private MemorySegment polled(Duration timeout, BooleanSupplier ends) {
        int status;
        MemorySegment made;
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.ADDRESS);
            MemorySegment struct = Membership.write(config, arena);
            status = Nccl.ncclCommInitRankConfig(out, ranks, id.copyTo(arena), rank, struct);
            // NCCL has written it, unlike that of a split, before the communicator is ready.
            made = out.get(ValueLayout.ADDRESS, 0);
        }
        if (status == Nccl.ncclInProgress()) {
            status = Polling.await(made, timeout, ends);
        }
        if (status == Nccl.ncclSuccess()) {
            return made;
        }
        if (made.address() != 0) {
            // NCCL waits in it for its thread that joins the ranks.
            Thread.ofPlatform().daemon().name("chagres-abort-rank-" + rank).start(() -> {
                var _ = Nccl.ncclCommAbort(made);
            });
        }
        if (status != Nccl.ncclInProgress()) {
            try {
                Status.nccl(status, "ncclCommInitRankConfig");
            } catch (NcclException refused) {
                if (!comesFromPeer(refused)) {
                    throw refused;
                }
            }
        }
        return result(timeout);
    }

    private boolean isDecided() {
        return opened != null || thrown != null || peerFailure() != null;
    }

    private ProcessRanks.@Nullable Failed peerFailure() {
        ProcessRanks peers = id.peers();
        return peers == null ? null : peers.failed();
    }

    private MemorySegment result(Duration timeout) {
        MemorySegment present = opened;
        if (present != null) {
            return present;
        }
        Throwable failure = thrown;
        if (failure instanceof Error error) {
            throw error;
        }
        if (failure instanceof RuntimeException refused) {
            throw refused;
        }
        abandoned = true;
        ProcessRanks.Failed peer = peerFailure();
        if (peer != null) {
            throw RankFailure.thrown(id.rank(peer.process()), peer.cause())
                    .exception(Called.in(Called.caller(config, rank, ranks), OPEN));
        }
        throw new RankFailedException(
                Called.in(Called.caller(config, rank, ranks), OPEN).waited(timeout)
                        + ": not all ranks called; which did not is unknown, for ranks may be in other processes",
                List.of(),
                OPEN,
                timeout,
                null);
    }

    /** Waits a moment where a rank in another process may be the reason, and returns whether one has failed. */
    private boolean comesFromPeer(Throwable caught) {
        ProcessRanks peers = id.peers();
        return peers != null
                && caught instanceof NcclException refused
                && FailureState.mayComeFromPeers(refused.code())
                && peers.awaitFailed();
    }

    private void runOnItsThread() {
        MemorySegment done = null;
        Throwable failure = null;
        try {
            Status.cuda(CudaRuntime.cudaSetDevice(device), "cudaSetDevice");
            done = call(() -> false);
        } catch (RuntimeException | Error caught) { // Whoever waits throws it.
            failure = comesFromPeer(caught) ? null : caught;
        }
        try (var _ = lock.hold()) {
            opened = done;
            thrown = failure;
            if (abandoned && done != null) {
                // The rank has given up: the others, which have joined after all, learn of it in their next call.
                var _ = Nccl.ncclCommAbort(done);
            }
        }
    }
}
