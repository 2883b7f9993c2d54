package dev.chagres.nccl;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import dev.chagres.bindings.nccl.Nccl;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * NCCL's collectives with {@code long} for device addresses: as segments they cost an object for each address.
 *
 * <p>Threading: as the functions themselves.
 *
 * <p>Source: {@code nccl.h}.
 */
final class NcclCalls {
    private static final MethodHandle ALL_REDUCE =
            link(Nccl.ncclAllReduce$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle REDUCE_SCATTER = link(
            Nccl.ncclReduceScatter$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle ALL_GATHER =
            link(Nccl.ncclAllGather$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle ALL_TO_ALL =
            link(Nccl.ncclAlltoAll$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle REDUCE = link(
            Nccl.ncclReduce$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle BROADCAST = linkRooted(Nccl.ncclBroadcast$address());
    private static final MethodHandle GATHER = linkRooted(Nccl.ncclGather$address());
    private static final MethodHandle SCATTER = linkRooted(Nccl.ncclScatter$address());
    private static final MethodHandle SEND =
            link(Nccl.ncclSend$address(), JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle RECEIVE =
            link(Nccl.ncclRecv$address(), JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);

    private NcclCalls() {}

    private static MethodHandle linkRooted(MemorySegment function) {
        return link(function, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    }

    private static MethodHandle link(MemorySegment function, MemoryLayout... arguments) {
        return Linker.nativeLinker().downcallHandle(function, FunctionDescriptor.of(JAVA_INT, arguments));
    }

    private static RuntimeException unchecked(Throwable thrown) {
        return switch (thrown) {
            case RuntimeException exception -> exception;
            case Error error -> throw error;
            default -> new IllegalStateException("a call into C threw a checked exception", thrown);
        };
    }

    static int allReduce(
            long send, long receive, long count, int type, int op, MemorySegment comm, MemorySegment stream) {
        try {
            return (int) ALL_REDUCE.invokeExact(send, receive, count, type, op, comm, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    static int reduceScatter(
            long send, long receive, long count, int type, int op, MemorySegment comm, MemorySegment stream) {
        try {
            return (int) REDUCE_SCATTER.invokeExact(send, receive, count, type, op, comm, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    static int allGather(long send, long receive, long count, int type, MemorySegment comm, MemorySegment stream) {
        try {
            return (int) ALL_GATHER.invokeExact(send, receive, count, type, comm, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    static int allToAll(long send, long receive, long count, int type, MemorySegment comm, MemorySegment stream) {
        try {
            return (int) ALL_TO_ALL.invokeExact(send, receive, count, type, comm, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    static int reduce(
            long send, long receive, long count, int type, int op, int root, MemorySegment comm, MemorySegment stream) {
        try {
            return (int) REDUCE.invokeExact(send, receive, count, type, op, root, comm, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    static int broadcast(
            long send, long receive, long count, int type, int root, MemorySegment comm, MemorySegment stream) {
        try {
            return (int) BROADCAST.invokeExact(send, receive, count, type, root, comm, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    static int gather(
            long send, long receive, long count, int type, int root, MemorySegment comm, MemorySegment stream) {
        try {
            return (int) GATHER.invokeExact(send, receive, count, type, root, comm, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    static int scatter(
            long send, long receive, long count, int type, int root, MemorySegment comm, MemorySegment stream) {
        try {
            return (int) SCATTER.invokeExact(send, receive, count, type, root, comm, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    static int send(long send, long count, int type, int peer, MemorySegment comm, MemorySegment stream) {
        try {
            return (int) SEND.invokeExact(send, count, type, peer, comm, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    static int receive(long receive, long count, int type, int peer, MemorySegment comm, MemorySegment stream) {
        try {
            return (int) RECEIVE.invokeExact(receive, count, type, peer, comm, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }
}
