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

    static int allReduce(
            long send, long receive, long count, int type, int op, MemorySegment comm, MemorySegment stream) {
        Group group = Group.ofThread();
        if (group.keeps()) {
            return group.keep(() -> allReduce(send, receive, count, type, op, comm, stream));
        }
        try {
            return (int) ALL_REDUCE.invokeExact(send, receive, count, type, op, comm, stream);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    static int reduceScatter(
            long send, long receive, long count, int type, int op, MemorySegment comm, MemorySegment stream) {
        Group group = Group.ofThread();
        if (group.keeps()) {
            return group.keep(() -> reduceScatter(send, receive, count, type, op, comm, stream));
        }
        try {
            return (int) REDUCE_SCATTER.invokeExact(send, receive, count, type, op, comm, stream);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    static int allGather(long send, long receive, long count, int type, MemorySegment comm, MemorySegment stream) {
        Group group = Group.ofThread();
        if (group.keeps()) {
            return group.keep(() -> allGather(send, receive, count, type, comm, stream));
        }
        try {
            return (int) ALL_GATHER.invokeExact(send, receive, count, type, comm, stream);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    static int allToAll(long send, long receive, long count, int type, MemorySegment comm, MemorySegment stream) {
        Group group = Group.ofThread();
        if (group.keeps()) {
            return group.keep(() -> allToAll(send, receive, count, type, comm, stream));
        }
        try {
            return (int) ALL_TO_ALL.invokeExact(send, receive, count, type, comm, stream);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    static int reduce(
            long send, long receive, long count, int type, int op, int root, MemorySegment comm, MemorySegment stream) {
        Group group = Group.ofThread();
        if (group.keeps()) {
            return group.keep(() -> reduce(send, receive, count, type, op, root, comm, stream));
        }
        try {
            return (int) REDUCE.invokeExact(send, receive, count, type, op, root, comm, stream);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    static int broadcast(
            long send, long receive, long count, int type, int root, MemorySegment comm, MemorySegment stream) {
        Group group = Group.ofThread();
        if (group.keeps()) {
            return group.keep(() -> broadcast(send, receive, count, type, root, comm, stream));
        }
        try {
            return (int) BROADCAST.invokeExact(send, receive, count, type, root, comm, stream);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    static int gather(
            long send, long receive, long count, int type, int root, MemorySegment comm, MemorySegment stream) {
        Group group = Group.ofThread();
        if (group.keeps()) {
            return group.keep(() -> gather(send, receive, count, type, root, comm, stream));
        }
        try {
            return (int) GATHER.invokeExact(send, receive, count, type, root, comm, stream);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    static int scatter(
            long send, long receive, long count, int type, int root, MemorySegment comm, MemorySegment stream) {
        Group group = Group.ofThread();
        if (group.keeps()) {
            return group.keep(() -> scatter(send, receive, count, type, root, comm, stream));
        }
        try {
            return (int) SCATTER.invokeExact(send, receive, count, type, root, comm, stream);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    static int send(long send, long count, int type, int peer, MemorySegment comm, MemorySegment stream) {
        Group group = Group.ofThread();
        if (group.keeps()) {
            return group.keep(() -> send(send, count, type, peer, comm, stream));
        }
        try {
            return (int) SEND.invokeExact(send, count, type, peer, comm, stream);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    static int receive(long receive, long count, int type, int peer, MemorySegment comm, MemorySegment stream) {
        Group group = Group.ofThread();
        if (group.keeps()) {
            return group.keep(() -> receive(receive, count, type, peer, comm, stream));
        }
        try {
            return (int) RECEIVE.invokeExact(receive, count, type, peer, comm, stream);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }
}
