package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.DeviceState;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * What one rank does before and after each call of NCCL: it compares the call with those of its peers, counts it, waits until the peers
 * have reached it, and throws the error that NCCL returns.
 *
 * <p>Threading: the device's thread, but for what says otherwise.
 */
final class RankCalls {
    final Endpoint endpoint;
    private final DeviceState state;
    private final @Nullable ThreadRanks meeting;
    private final int ranks;
    private final int rank;
    /** The last call. */
    final CurrentCall current = new CurrentCall();

    final CallCounts counts;
    /** The thread's waiting for its peers. Any thread. */
    final PeerWait peerWait;

    private final CaptureMode captureMode;
    private final CallRecords records;
    private final OpenEndpoints open;
    /** Graphs that have recorded calls of this communicator. */
    private int graphs;

    /** {@code endpoint} has its device, its ranks and their meeting. */
    RankCalls(Endpoint endpoint) {
        this.endpoint = endpoint;
        state = endpoint.state;
        meeting = endpoint.meeting;
        ranks = endpoint.ranks;
        rank = endpoint.rank;
        counts = new CallCounts(meeting == null ? null : meeting.arrivals, MovedBytes.of(state), ranks, rank);
        peerWait = new PeerWait(counts);
        captureMode = new CaptureMode(state);
        records = new CallRecords(endpoint.device, endpoint.config.name(), rank, ranks);
        open = state.get(OpenEndpoints.OF_DEVICE);
    }

    /**
     * Announces a collective or transfer, after all checks of arguments, and passes it to NCCL.
     *
     * @param tensor for a collective one that has the same shape on all ranks; for a transfer the one that is sent or received
     * @param send address of what is sent, or 0
     * @param receive address of what is received, or 0
     * @param by null where values are only moved
     * @param other the root, or the other rank of a transfer
     */
    void call(
            Operation called,
            Tensor tensor,
            long send,
            long receive,
            long elements,
            @Nullable Reduction by,
            int other,
            Stream stream) {
        DType dtype = tensor.dtype();
        int op = called.reduces() ? CollectiveArguments.operation(endpoint, by, dtype) : 0;
        int type = called.reduces() ? CollectiveArguments.type(dtype) : CollectiveArguments.movedType(dtype);
        begin(called, tensor, elements, dtype, by, other, stream);
        end(NcclCalls.call(called, send, receive, elements, type, op, other, endpoint.handle(), stream.handle()));
    }

    /** Announces another call of NCCL, without a tensor; when NCCL has returned, {@link #end} is called. */
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
        if (state.capture() != null && isPolled()) {
            throw new CaptureException("callMode: expected BLOCKING for " + called.function()
                    + " while a stream captures, got NON_BLOCKING in " + endpoint
                    + "; open the communicator with CommunicatorConfig.withCallMode(CallMode.BLOCKING)");
        }
        current.set(called, elements, type, by, other);
        records.enter(current, counts.count(called, other), stream, state.capture() != null);
        Group group = Group.ofThread();
        boolean compares = endpoint.config.checks() == CollectiveChecks.FULL;
        CallComparison comparison = compares ? new CallComparison(endpoint, tensor) : null;
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
        enter();
    }

    /** Records that the call that {@link #begin} announced has returned. */
    void end(int returned) {
        int status = Group.ofThread().isOpen() ? returned : await(returned);
        Called during = status == 0 ? null : called();
        if (!Group.ofThread().isOpen()) {
            leave();
            given(status);
        }
        if (status != 0) {
            endpoint.failures.settle(status, current.operation().function(), during);
        }
    }

    /** Enters NCCL, if calls are polled, until {@link #await}. */
    void enter() {
        if (!isPolled() || endpoint.failures.enter()) {
            return;
        }
        Called during = called();
        leave();
        // It is told before the communicator is revoked.
        throw Objects.requireNonNull(endpoint.failure()).exception(during);
    }

    /** Returns the status of a call when it is no longer in progress, or the ranks have failed. */
    int await(int returned) {
        if (!isPolled()) {
            return returned;
        }
        endpoint.failures.leave();
        int status = Polling.await(endpoint, endpoint.handle(), returned);
        if (status == Nccl.ncclInProgress()) {
            // Until NCCL has ended the call, it may read and write memory that the program frees after a failure.
            endpoint.failures.awaitRevoked();
        }
        return status;
    }

    /** Returns whether NCCL's calls return before they are done. */
    boolean isPolled() {
        return endpoint.config.callMode() == CallMode.NON_BLOCKING;
    }

    /** Handles NCCL's status for the call, or for the group of calls. */
    void given(int status) {
        records.given(status);
        if (status == 0) {
            counts.given();
        }
    }

    /** Announces that a graph is about to run its recorded calls. */
    void launches(CallCounts.Together calls) {
        counts.count(calls);
        records.launches(calls, counts.collectives());
        counts.publish();
    }

    /** Publishes the next calls of NCCL to the peers, or keeps them for the launches of the captured graph. */
    void publish() {
        Capture capture = state.capture();
        if (capture == null) {
            counts.publish();
        } else {
            CapturedCalls.add(capture, this);
        }
    }

    /** Waits until the peers have reached the published calls. The wait that {@link Watchdog} ends begins here, and continues in NCCL. */
    void meet() {
        peerWait.begin();
        open.begins(endpoint);
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

    /** Records that the thread no longer waits for another rank. */
    void leave() {
        peerWait.end();
        captureMode.restore();
    }

    /** Records that a graph has calls of this communicator, which stays open until {@link #releaseFromGraph}. */
    void keepForGraph() {
        graphs++;
    }

    void releaseFromGraph() {
        graphs--;
    }

    /** Checks that no open graph has recorded calls of this communicator. */
    void ensureInNoGraph() {
        if (graphs > 0) {
            throw new IllegalStateException("close: expected no open graph with calls of " + endpoint + ", got "
                    + graphs + "; close graphs before the communicators whose calls they have recorded");
        }
    }

    /**
     * Returns the rank's current or last call, and how long it has waited; if it has called nothing on this communicator, its last call on
     * another one.
     */
    Called called() {
        Endpoint latest = peerWait.hasBegun() ? endpoint : open.latest();
        return latest == null ? Called.nothing(endpoint.toString()) : latest.calls.describe();
    }

    /** Returns the rank's current or last call on this communicator, and how long it has waited. */
    Called describe() {
        return peerWait.describe(endpoint.toString(), current);
    }

    FlightRecorder recorder() {
        return records.recorder;
    }

    /**
     * Returns a number that stays the same as long as other ranks may keep this one from going on, 0 where they do not. Any thread.
     *
     * <p>Above 0 the thread waits for its peers, here or in NCCL. Below 0 it waits for work of the device, in which NCCL's kernels wait for
     * those of ranks that are {@link #behind}; or, where ranks are processes, it has called nothing since its last call of this communicator:
     * a launch of a kernel waits while the stream's queue is full, and cannot be told from the program's own work on the host.
     */
    long waitingForPeers() {
        long inside = peerWait.number();
        if (inside != 0) {
            return inside;
        }
        long device = state.waits().present();
        if (device != 0) {
            return -device;
        }
        boolean mayBeLaunching = meeting == null && open.latest() == endpoint && peerWait.count() != 0;
        return mayBeLaunching ? Long.MIN_VALUE + peerWait.count() : 0;
    }

    /** Returns whether the thread was interrupted while it waits for its peers, or for work of the device. Any thread. */
    boolean isInterrupted() {
        return peerWait.isInterrupted()
                || (peerWait.number() == 0 && state.waits().isInterrupted());
    }

    /**
     * Returns the ranks of this program that keep this one waiting: those that are missed where it is to call NCCL, or those behind it
     * while it waits for work of the device. Any thread.
     */
    List<Integer> behind() {
        if (peerWait.isUnderWay()) {
            return peerWait.missing();
        }
        return state.waits().present() == 0 ? List.of() : counts.behind();
    }

    /** Returns whether the thread waits for other ranks of this program, here or by way of the device. Any thread. */
    boolean isKeptWaiting() {
        return peerWait.isUnderWay() || !behind().isEmpty();
    }

    /** Returns whether this rank has come to what another one in another process waits for. Any thread. */
    boolean answers(String question) {
        return question.startsWith(PeerComparisons.SAID)
                ? !(endpoint.exchange instanceof PeerComparisons others) || others.answers(question)
                : counts.answers(question);
    }

    /**
     * The calls of communicators that a graph has recorded: at each launch a rank waits for its peers before the first of them. The
     * communicators stay open as long as the graph, since destroying one would wait for the graph's end.
     */
    private static final class CapturedCalls implements Runnable {
        private final List<RankCalls> members = new ArrayList<>();
        private final List<CallCounts.Together> calls = new ArrayList<>();

        private CapturedCalls(Capture capture) {
            capture.onEnd(() -> members.forEach(RankCalls::releaseFromGraph));
        }

        /** Records the calls that {@code member} has counted and not passed to NCCL. */
        static void add(Capture capture, RankCalls member) {
            capture.beforeLaunch(CapturedCalls.class, () -> new CapturedCalls(capture))
                    .add(member);
        }

        private void add(RankCalls member) {
            int index = members.indexOf(member);
            if (index < 0) {
                members.add(member);
                member.keepForGraph();
                calls.add(member.counts.take(null));
            } else {
                member.counts.take(calls.get(index));
            }
        }

        @Override
        public void run() {
            for (int i = 0; i < members.size(); i++) {
                members.get(i).endpoint.ensureUsable();
            }
            for (int i = 0; i < members.size(); i++) {
                members.get(i).launches(calls.get(i));
            }
            // A peer that calls one by one reaches the other communicators only after the launch.
            RankCalls first = members.getFirst();
            try {
                first.meet();
                first.recorder().enqueued();
                for (int i = 0; i < members.size(); i++) {
                    members.get(i).counts.given(calls.get(i));
                }
            } finally {
                first.leave();
            }
        }
    }
}
