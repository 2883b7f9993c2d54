package dev.chagres.nccl;

import java.util.Locale;

/**
 * The collectives and transfers, named as the methods of {@link Communicator}, and the other calls in which ranks wait for each other.
 *
 * <p>Threading: immutable.
 */
public enum Operation {
    /** {@link Communicator#allReduce}. */
    ALL_REDUCE("allReduce"),
    /** {@link Communicator#allGather}. */
    ALL_GATHER("allGather"),
    /** {@link Communicator#reduceScatter}. */
    REDUCE_SCATTER("reduceScatter"),
    /** {@link Communicator#broadcast}. */
    BROADCAST("broadcast"),
    /** {@link Communicator#reduce}. */
    REDUCE("reduce"),
    /** {@link Communicator#gather}. */
    GATHER("gather"),
    /** {@link Communicator#scatter}. */
    SCATTER("scatter"),
    /** {@link Communicator#allToAll}. */
    ALL_TO_ALL("allToAll"),
    /** {@link Communicator#send}. */
    SEND("send"),
    /** {@link Communicator#receive}. */
    RECEIVE("receive"),
    /** {@link Communicator#split}. */
    SPLIT("split"),
    /** {@link Communicator#register}, and the registration in {@link Communicator#allocate}. */
    REGISTER("register"),
    /** {@link dev.chagres.Graph#launch} of a graph that has recorded calls. */
    LAUNCH("launch");

    private final String method;

    Operation(String method) {
        this.method = method;
    }

    boolean isTransfer() {
        return this == SEND || this == RECEIVE;
    }

    /** Returns whether values are combined, not only moved. */
    boolean reduces() {
        return this == ALL_REDUCE || this == REDUCE_SCATTER || this == REDUCE;
    }

    boolean hasRoot() {
        return this == BROADCAST || this == REDUCE || this == GATHER || this == SCATTER;
    }

    /** Returns the method's name. */
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
            case REGISTER -> "ncclCommWindowRegister";
            case LAUNCH -> "cudaGraphLaunch";
            default -> "nccl" + method.substring(0, 1).toUpperCase(Locale.ROOT) + method.substring(1);
        };
    }
}
