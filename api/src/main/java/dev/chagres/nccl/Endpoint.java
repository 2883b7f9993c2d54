package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.NcclException;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Leaks;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * One rank's end of a communicator: NCCL's handle, the call that is under way, and the way out when others do not come.
 *
 * <p>Threading: the device's thread, but for what says otherwise.
 */
final class Endpoint implements AutoCloseable {
    private final Device device;
    private final DeviceState state;
    private final CommunicatorConfig config;
    private final @Nullable Meeting meeting;
    private final @Nullable PeerPlace elsewhere;
    /** Null where ranks cannot tell each other what they call. */
    private final @Nullable CallExchange exchange;

    private final int ranks;
    private final int rank;
    private final Leaks.@Nullable Trace trace;

    private MemorySegment handle;
    /** Why this rank cannot go on, where ranks do not know of each other. */
    private volatile @Nullable RankFailure failure;

    private final Revocation revocation;
    private final CurrentCall call = new CurrentCall();
    private final CallCounts counts;
    private final PeerWait peerWait;
    private final CaptureMode captureMode;
    private final CallRecords records;
    private final OwnMemory ownMemory = new OwnMemory();
    private final OpenEndpoints open;
    private int shrinks;
    /** Graphs that have recorded calls of this communicator. */
    private int graphs;

    /** {@code meeting} is where its ranks meet that are threads of this program, {@code elsewhere} what is known of those that are not. */
    Endpoint(
            Device device,
            CommunicatorConfig config,
            @Nullable Meeting meeting,
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
        revocation = new Revocation(handle, rank);
        counts = new CallCounts(meeting == null ? null : meeting.arrivals(), MovedBytes.of(state), ranks, rank);
        peerWait = new PeerWait(counts);
        captureMode = new CaptureMode(state);
        records = new CallRecords(device, config.name(), rank, ranks);
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
        Watch.add(this);
    }

    /** Returns where its ranks tell each other what they call, or null. */
    @Nullable
    CallExchange exchange() {
        return exchange;
    }

    /** Returns whether this rank has come to what another one in another process waits for. Any thread. */
    boolean answers(String question) {
        return question.startsWith(PeerComparisons.SAID)
                ? !(exchange instanceof PeerComparisons others) || others.answers(question)
                : counts.answers(question);
    }

    Device device() {
        return device;
    }

    DeviceState state() {
        return state;
    }

    CommunicatorConfig config() {
        return config;
    }

    @Nullable
    Meeting meeting() {
        return meeting;
    }

    /** Returns what is known of ranks that are in other processes; null where they are threads of this one. */
    @Nullable
    PeerPlace elsewhere() {
        return elsewhere;
    }

    int ranks() {
        return ranks;
    }

    int rank() {
        return rank;
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

    @Nullable
    RankFailure failure() {
        return meeting == null ? failure : meeting.failure();
    }

    /** Checks that collectives can be called. */
    void ensureUsable() {
        handle();
        RankFailure present = failure();
        if (present != null) {
            throw present.exception(called());
        }
    }

    /**
     * Says what is about to be given to NCCL, after all checks of arguments. When NCCL has returned, {@link #end} is called.
     *
     * @param tensor of a collective one whose shape is alike on all ranks, of a transfer the one that is moved
     */
    void begin(Operation called, Tensor tensor, long elements, @Nullable Reduction by, int other, Stream stream) {
        begin(called, tensor, elements, tensor.dtype(), by, other, stream);
    }

    /** Says what is about to be given to NCCL without a tensor. */
    void begin(Operation called, long elements, DType type) {
        begin(called, null, elements, type, null, 0, null);
    }

    private void begin(
            Operation called,
            @Nullable Tensor tensor,
            long elements,
            DType type,
            @Nullable Reduction by,
            int other,
            @Nullable Stream stream) {
        call.set(called, elements, type, by, other);
        records.enter(call, counts.count(called, other), stream, state.capture() != null);
        Group group = Group.ofThread();
        CallComparison comparison = config.checks() == CollectiveChecks.FULL ? new CallComparison(this, tensor) : null;
        if (comparison != null && !group.isOpen()) {
            comparison.announce();
            comparison.compare();
        }
        if (!called.isTransfer() || other != rank) {
            counts.moves(called, MovedBytes.ofCall(called, elements, type, ranks));
        }
        if (group.isOpen()) {
            group.add(this, comparison);
            return;
        }
        publish();
        meet();
    }

    /** Says that the call that {@link #begin} announced has returned. */
    void end(int status) {
        Called during = status == 0 ? null : called();
        if (!Group.ofThread().isOpen()) {
            leave();
            given(status);
        }
        settle(status, call.operation(), during);
    }

    /** Says what NCCL has returned for the call, or for the group of calls. */
    void given(int status) {
        records.given(status);
        if (status == 0) {
            counts.given();
        }
    }

    /** Says that a graph is about to run calls that it has recorded. */
    void launches(CallCounts.Together calls) {
        counts.count(calls);
        records.launches(calls, counts.collectives());
        counts.publish();
    }

    /** Returns the memory of NCCL's own that it knows. */
    OwnMemory ownMemory() {
        return ownMemory;
    }

    FlightRecorder recorder() {
        return records.recorder();
    }

    /** Tells the peers what is about to be given to NCCL, or keeps it for the launches of the graph that is captured. */
    void publish() {
        Capture capture = state.capture();
        if (capture == null) {
            counts.publish();
        } else {
            CapturedCalls.add(capture, this);
        }
    }

    /** Waits until the peers have come to what was published. The wait that {@link Watch} ends begins here, and goes on in NCCL. */
    void meet() {
        peerWait.begin();
        open.begins(this);
        if (state.capture() != null) {
            captureMode.relax();
            return;
        }
        counts.meet();
        RankFailure present = meeting == null ? null : meeting.failure();
        if (present != null) {
            Called during = called();
            leave();
            throw present.exception(during);
        }
    }

    /** Says that the thread waits for no other rank any more. */
    void leave() {
        peerWait.end();
        captureMode.restore();
    }

    void keepForGraph() {
        graphs++;
    }

    void releaseFromGraph() {
        graphs--;
    }

    CallCounts counts() {
        return counts;
    }

    /** Throws what a status says; {@code during} is the call that the rank was in. */
    void settle(int status, Object function, @Nullable Called during) {
        if (status == 0) {
            return;
        }
        RankFailure present = failure();
        if (present != null) {
            throw present.exception(during);
        }
        try {
            Status.nccl(status, function instanceof Operation named ? named.function() : function.toString());
        } catch (NcclException refused) {
            throw elsewhere == null || status != Nccl.ncclRemoteError()
                    ? refused
                    : lost(elsewhere.peers(), refused, during);
        }
    }

    /** What a rank throws whose peers in other processes are gone: NCCL does not say which. */
    private RankFailedException lost(Peers others, NcclException refused, @Nullable Called during) {
        others.awaitWord(this);
        RankFailure told = failure();
        return (told != null
                        ? told
                        : new RankFailure(List.of(), String.valueOf(refused.getMessage()), refused)
                                .recorded(List.of(this)))
                .exception(during);
    }

    /** Says that a process has failed; -1 when nobody knows which. Any thread. */
    void peerFailed(int process, Throwable cause) {
        int other = elsewhere == null ? process : elsewhere.rank(process);
        if (process < 0) {
            fail(new RankFailure(List.of(), String.valueOf(cause.getMessage()), cause));
        } else if (other >= 0) {
            fail(RankFailure.thrown(other, cause));
        }
    }

    /**
     * Returns what the rank is in, or was in last, and how long it has waited; where it has called nothing of this communicator, what it
     * called last of another one.
     */
    Called called() {
        Endpoint latest = peerWait.hasBegun() ? this : open.latest();
        return latest == null ? Called.nothing(toString()) : latest.peerWait.describe(latest.toString(), latest.call);
    }

    /** Returns the thread's waiting for its peers. Any thread. */
    PeerWait peerWait() {
        return peerWait;
    }

    /**
     * Returns the number of the wait that other ranks may keep from ending, 0 outside of one. Below 0 it is a wait for work of the device:
     * ranks in other processes may keep that from ending, but threads of one program, which give their calls to NCCL when all have come,
     * do not. Any thread.
     */
    long waitingForPeers() {
        long inside = peerWait.number();
        return inside != 0 || elsewhere == null ? inside : -state.waits().present();
    }

    /** Ends what this rank waits for, and its peers where they are known, for good. Any thread. */
    void fail(RankFailure first) {
        if (meeting != null) {
            meeting.fail(first);
        } else {
            synchronized (call) { // The first one stays.
                failure = failure == null ? first.recorded(List.of(this)) : failure;
            }
            revokeFromOutside();
        }
    }

    /** Returns what was called last. */
    CurrentCall call() {
        return call;
    }

    /** Returns the number of a shrink, the same on each rank that stays. */
    int nextShrink() {
        return ++shrinks;
    }

    /** Lets NCCL end what is under way, on a thread of its own, for it waits until that has ended; the handle stays. Any thread. */
    void revokeFromOutside() {
        revocation.begin();
    }

    /** Waits a while for NCCL to come back from {@link #revokeFromOutside}; returns whether it has. */
    boolean awaitRevoked() {
        return revocation.await();
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
        if (graphs > 0) {
            throw new IllegalStateException("close: expected no open graph with calls of " + this + ", got " + graphs
                    + "; close graphs before the communicators whose calls they have recorded");
        }
        boolean failed = failure() != null;
        int status = Nccl.ncclSuccess();
        // Where NCCL does not come back from revoking it, it is left to itself: no memory is worth that wait.
        boolean ends = revocation.prevent();
        try {
            MemorySegment old = handle;
            handle = MemorySegment.NULL;
            if (ends) {
                status = failed ? Nccl.ncclCommAbort(old) : Nccl.ncclCommDestroy(old);
            }
        } finally {
            Watch.remove(this);
            if (meeting != null) {
                meeting.remove(this);
            }
            if (elsewhere != null) {
                elsewhere.peers().remove(this);
            }
            open.remove(this);
            Leaks.closed(trace);
        }
        Status.nccl(status, failed ? "ncclCommAbort" : "ncclCommDestroy");
    }

    @Override
    public String toString() {
        return Called.caller(config, rank, ranks);
    }
}
