package dev.chagres.nccl;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.nccl.Nccl;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * NCCL's collectives with {@code long} for device addresses: as segments they cost an object for each address. In a {@link Group} whose calls are
 * polled they are kept for its end.
 *
 * <p>Threading: as the functions themselves.
 *
 * <p>Source: {@code nccl.h}.
 */
final class NcclCalls {
    private static final MethodHandle ALL_REDUCE = AddressCalls.link(
            Nccl.ncclAllReduce$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle REDUCE_SCATTER = AddressCalls.link(
            Nccl.ncclReduceScatter$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle ALL_GATHER = AddressCalls.link(
            Nccl.ncclAllGather$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle ALL_TO_ALL =
            AddressCalls.link(Nccl.ncclAlltoAll$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle REDUCE = AddressCalls.link(
            Nccl.ncclReduce$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle BROADCAST = linkRooted(Nccl.ncclBroadcast$address());
    private static final MethodHandle GATHER = linkRooted(Nccl.ncclGather$address());
    private static final MethodHandle SCATTER = linkRooted(Nccl.ncclScatter$address());
    private static final MethodHandle SEND =
            AddressCalls.link(Nccl.ncclSend$address(), JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle RECEIVE =
            AddressCalls.link(Nccl.ncclRecv$address(), JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);

    private NcclCalls() {}

    private static MethodHandle linkRooted(MemorySegment function) {
        return AddressCalls.link(function, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    }

    /**
     * Calls the function of a collective or transfer.
     *
     * @param op NCCL's number of the reduction, of those that reduce
     * @param peer the root, or the other rank of a transfer
     */
    static int call(
            Operation called,
            long send,
            long receive,
            long count,
            int type,
            int op,
            int peer,
            MemorySegment comm,
            MemorySegment stream) {
        Group group = Group.ofThread();
        if (group.keeps()) {
            return group.keep(() -> call(called, send, receive, count, type, op, peer, comm, stream));
        }
        try {
            return switch (called) {
                case ALL_REDUCE -> (int) ALL_REDUCE.invokeExact(send, receive, count, type, op, comm, stream);
                case REDUCE_SCATTER -> (int) REDUCE_SCATTER.invokeExact(send, receive, count, type, op, comm, stream);
                case ALL_GATHER -> (int) ALL_GATHER.invokeExact(send, receive, count, type, comm, stream);
                case ALL_TO_ALL -> (int) ALL_TO_ALL.invokeExact(send, receive, count, type, comm, stream);
                case REDUCE -> (int) REDUCE.invokeExact(send, receive, count, type, op, peer, comm, stream);
                case BROADCAST -> (int) BROADCAST.invokeExact(send, receive, count, type, peer, comm, stream);
                case GATHER -> (int) GATHER.invokeExact(send, receive, count, type, peer, comm, stream);
                case SCATTER -> (int) SCATTER.invokeExact(send, receive, count, type, peer, comm, stream);
                case SEND -> (int) SEND.invokeExact(send, count, type, peer, comm, stream);
                case RECEIVE -> (int) RECEIVE.invokeExact(receive, count, type, peer, comm, stream);
                case SPLIT, REGISTER, LAUNCH -> throw new IllegalArgumentException("called: " + called);
            };
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }
}
