package dev.chagres.nccl;

import dev.chagres.DType;
import org.jspecify.annotations.Nullable;

/**
 * The collective or transfer that a communicator was called for last.
 *
 * <p>Threading: written on the device's thread before {@link Endpoint#enter} publishes it; read by any thread after that.
 */
final class CurrentCall {
    private Operation operation = Operation.ALL_REDUCE;
    private DType dtype = DType.BYTE;
    private @Nullable Reduction reduction;
    private long count;
    private int peer;

    void set(Operation called, long elements, DType type, @Nullable Reduction by, int other) {
        operation = called;
        count = elements;
        dtype = type;
        reduction = by;
        peer = other;
    }

    Operation operation() {
        return operation;
    }

    /** Returns the root of the collective, or the other end of the transfer. */
    int peer() {
        return peer;
    }

    /** Returns what both ends of a transfer must say alike. */
    String elements() {
        return count + " " + dtype;
    }

    @Override
    public String toString() {
        if (operation == Operation.SPLIT) {
            return operation.toString();
        }
        StringBuilder text = new StringBuilder(operation + " of " + elements());
        if (reduction != null) {
            text.append(", ").append(reduction instanceof PremultipliedSum ? "pre-multiplied sum" : reduction);
        }
        if (operation.hasRoot()) {
            text.append(", root ").append(peer);
        } else if (operation.isTransfer()) {
            text.append(operation == Operation.SEND ? " to rank " : " from rank ")
                    .append(peer);
        }
        return text.toString();
    }
}
