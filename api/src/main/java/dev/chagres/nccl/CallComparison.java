package dev.chagres.nccl;

import dev.chagres.Tensor;
import dev.chagres.bindings.ForeignText;
import dev.chagres.nccl.CallExchange.ComparedCall;
import dev.chagres.nccl.PeerWait.Awaited;
import java.util.List;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Compares a call of a communicator with those of its peers, before it is passed to NCCL.
 *
 * <p>Threading: the device's thread, but for what says otherwise.
 */
final class CallComparison implements Awaited {
    private final Endpoint endpoint;
    private final CallExchange exchange;
    private final Operation operation;
    private final int peer;
    private final String said;
    private final Called waiting;
    private final List<Integer> callers;
    private @Nullable ComparedCall call;

    /** Records the endpoint's next call; {@code tensor} is the one whose shape is equal on all ranks of the collective. */
    CallComparison(Endpoint endpoint, @Nullable Tensor tensor) {
        this.endpoint = endpoint;
        CallExchange known = endpoint.exchange;
        if (known == null) {
            throw new IllegalStateException(
                    "checks: expected ranks that are threads of one program and share the UniqueId, or"
                            + " processes that Ranks has joined, as CollectiveChecks.FULL needs, got " + endpoint
                            + ", whose UniqueId came from, or was sent to, another program");
        }
        exchange = known;
        CurrentCall current = endpoint.calls.current;
        operation = current.operation();
        peer = current.peer();
        int rank = endpoint.rank;
        if (operation.isTransfer()) {
            said = current.elements();
            callers = List.of(Math.min(rank, peer), Math.max(rank, peer));
        } else {
            said = current + shape(tensor);
            callers = IntStream.range(0, endpoint.ranks).boxed().toList();
        }
        waiting = Called.in(endpoint.toString(), current.toString());
    }

    /** A vector's shape is its count. */
    private static String shape(@Nullable Tensor tensor) {
        return tensor == null || tensor.rank() == 1 ? "" : ", shape " + tensor.shape();
    }

    /** Sends the call to the peers. */
    void announce() {
        ComparedCall announced = operation.isTransfer() ? nextTransfer() : nextCollective();
        call = announced;
        if (!isAlone()) {
            exchange.announce(endpoint.rank, announced);
        }
    }

    private ComparedCall nextTransfer() {
        boolean sends = operation == Operation.SEND;
        int from = sends ? endpoint.rank : peer;
        int to = sends ? peer : endpoint.rank;
        long number = exchange.nextTransfer(from, to, sends);
        String title = "transfer " + number + " from rank " + from + " to rank " + to;
        return new ComparedCall("transfer-" + number + "-" + from + "-" + to, title, said, callers);
    }

    private ComparedCall nextCollective() {
        long number = endpoint.calls.counts.nextAnnounced();
        String title = "collective " + number + " of " + ForeignText.quoted(endpoint.config.name());
        return new ComparedCall("collective-" + number, title, said, callers);
    }

    /** Waits for the calls of the peers. */
    void compare() {
        ComparedCall announced = call;
        if (isAlone() || announced == null) {
            return;
        }
        endpoint.calls.peerWait.compares(this);
        try {
            exchange.compare(endpoint, announced, waiting);
        } finally {
            endpoint.calls.peerWait.compares(null);
        }
    }

    @Override
    public List<Integer> awaited() {
        return callers;
    }

    @Override
    public List<Integer> missing() {
        ComparedCall announced = call;
        return announced == null ? List.of() : exchange.missing(announced);
    }

    /** A rank that sends to itself announces both calls at once. */
    private boolean isAlone() {
        return callers.getFirst().equals(callers.getLast());
    }
}
