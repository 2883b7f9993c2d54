package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.DeviceState;
import java.util.StringJoiner;

/**
 * The bytes that the collectives and transfers of a rank have moved, on all communicators of its device, since the device was opened.
 *
 * <p>A call counts the bytes of the whole tensor that it gathers, reduces or sends: with {@code N} ranks and {@code C} elements of {@code
 * b} bytes, {@code allReduce, reduce, broadcast, send, receive} count {@code C b}; {@code allGather, reduceScatter, gather, scatter,
 * allToAll} count {@code N C b}, where C is one rank's part. The bytes between devices follow from that and NCCL's algorithm: in a ring
 * each rank sends {@code (N - 1) / N} of it, twice for {@code allReduce}. A call counts once NCCL has accepted it, so not if it failed
 * while it waited for the other ranks; a call in a graph counts at each launch. Calls of a communicator with one rank, and transfers to
 * oneself, move nothing.
 *
 * {@snippet file="dev/chagres/nccl/MovedBytesTest.java" region="moved"}
 *
 * <p>Threading: the device's thread.
 */
public final class MovedBytes {
    private static final DeviceState.Attachment<OfDevice> OF_DEVICE = new DeviceState.Attachment<>(_ -> new OfDevice());

    /** A device has one. */
    private static final class OfDevice {
        private final MovedBytes moved = new MovedBytes();
    }

    /** Indexed by the operation's ordinal, as all arrays here. */
    private final long[] bytes = emptySums();

    private MovedBytes() {}

    static long[] emptySums() {
        return new long[Operation.values().length];
    }

    static MovedBytes of(DeviceState device) {
        return device.get(OF_DEVICE).moved;
    }

    /** Returns the counters of the rank that {@code communicator} belongs to, also after it was closed. */
    public static MovedBytes of(Communicator communicator) {
        return of(Checks.given("communicator", communicator).endpoint().state);
    }

    /** Returns the bytes of all calls of {@code operation}; 0 for {@code SPLIT}, {@code REGISTER} and {@code LAUNCH}, which move none. */
    public long by(Operation operation) {
        return bytes[Checks.given("operation", operation).ordinal()];
    }

    /** Returns the bytes of each operation that has moved some. */
    @Override
    public String toString() {
        StringJoiner text = new StringJoiner(", ", "MovedBytes[", "]");
        for (Operation operation : Operation.values()) {
            if (by(operation) != 0) {
                text.add(operation + "=" + by(operation));
            }
        }
        return text.toString();
    }

    /** Adds {@code more} to {@code sums}. */
    static void add(long[] sums, long[] more) {
        for (int i = 0; i < sums.length; i++) {
            sums[i] += more[i];
        }
    }

    void add(long[] more) {
        add(bytes, more);
    }

    /** Returns the bytes that a call counts in which each rank has {@code elements}. */
    static long ofCall(Operation operation, long elements, DType type, int ranks) {
        long part = elements * type.byteSize();
        return switch (operation) {
            case ALL_REDUCE, REDUCE, BROADCAST, SEND, RECEIVE -> ranks == 1 ? 0 : part;
            case ALL_GATHER, REDUCE_SCATTER, GATHER, SCATTER, ALL_TO_ALL -> ranks == 1 ? 0 : ranks * part;
            case SPLIT, REGISTER, LAUNCH -> 0;
        };
    }
}
