package dev.chagres.nccl;

import java.util.Locale;

/**
 * The collectives and transfers, named as the methods of {@link Communicator}.
 *
 * <p>Threading: immutable.
 */
enum Operation {
    ALL_REDUCE("allReduce"),
    ALL_GATHER("allGather"),
    REDUCE_SCATTER("reduceScatter"),
    BROADCAST("broadcast"),
    REDUCE("reduce"),
    GATHER("gather"),
    SCATTER("scatter"),
    ALL_TO_ALL("allToAll"),
    SEND("send"),
    RECEIVE("receive"),
    SPLIT("split");

    private final String method;

    Operation(String method) {
        this.method = method;
    }

    boolean isTransfer() {
        return this == SEND || this == RECEIVE;
    }

    boolean hasRoot() {
        return this == BROADCAST || this == REDUCE || this == GATHER || this == SCATTER;
    }

    @Override
    public String toString() {
        return method;
    }

    /** Returns the name of NCCL's function. */
    String function() {
        return switch (this) {
            case ALL_TO_ALL -> "ncclAlltoAll";
            case RECEIVE -> "ncclRecv";
            case SPLIT -> "ncclCommSplit";
            default -> "nccl" + method.substring(0, 1).toUpperCase(Locale.ROOT) + method.substring(1);
        };
    }
}
