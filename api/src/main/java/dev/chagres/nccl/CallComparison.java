package dev.chagres.nccl;

import java.util.List;
import java.util.stream.IntStream;

/**
 * Compares a call of a communicator with what its peers call, before NCCL is given it.
 *
 * <p>Threading: the device's thread, but for what says otherwise.
 */
final class CallComparison implements Awaited {
    private final Endpoint endpoint;
    private final Meeting meeting;
    private final Operation operation;
    private final int peer;
    private final String said;
    private final String waiting;
    private final List<Integer> callers;
    private String key = "";

    /** Keeps what the endpoint is about to call. */
    CallComparison(Endpoint endpoint) {
        this.endpoint = endpoint;
        Meeting known = endpoint.meeting();
        if (known == null) {
            throw new IllegalStateException(
                    "checks: expected ranks that are threads of one program and share the UniqueId,"
                            + " as CollectiveChecks.FULL needs, got " + endpoint
                            + ", whose UniqueId came from or went to elsewhere");
        }
        meeting = known;
        CurrentCall call = endpoint.call();
        operation = call.operation();
        peer = call.peer();
        int rank = endpoint.rank();
        if (operation.isTransfer()) {
            said = call.elements();
            callers = List.of(Math.min(rank, peer), Math.max(rank, peer));
        } else {
            said = call.toString();
            callers = IntStream.range(0, endpoint.ranks()).boxed().toList();
        }
        waiting = endpoint + ", in " + call;
    }

    /** Tells the peers. */
    void announce() {
        int rank = endpoint.rank();
        if (operation.isTransfer()) {
            boolean sends = operation == Operation.SEND;
            int from = sends ? rank : peer;
            int to = sends ? peer : rank;
            key = "transfer " + meeting.comparisons().nextTransfer(from, to, sends) + " from rank " + from + " to rank "
                    + to;
        } else {
            key = "collective " + endpoint.counts().nextAnnounced() + " of \""
                    + endpoint.config().name() + "\"";
        }
        if (!isAlone()) {
            meeting.comparisons().announce(rank, key, callers.size(), said);
        }
    }

    /** Waits for what the peers say. */
    void compare() {
        if (isAlone()) {
            return;
        }
        endpoint.peerWait().compares(this);
        try {
            meeting.comparisons().compare(endpoint, key, waiting, callers);
        } finally {
            endpoint.peerWait().compares(null);
        }
    }

    @Override
    public List<Integer> awaited() {
        return callers;
    }

    @Override
    public List<Integer> missing() {
        return meeting.comparisons().missing(key, callers);
    }

    /** A rank that sends to itself says both things at once. */
    private boolean isAlone() {
        return callers.getFirst().equals(callers.getLast());
    }
}
