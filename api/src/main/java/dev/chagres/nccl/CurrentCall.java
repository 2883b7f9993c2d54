package dev.chagres.nccl;

import dev.chagres.DType;
import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.EventType;
import jdk.jfr.FlightRecorder;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import org.jspecify.annotations.Nullable;

/**
 * The latest collective or transfer of a communicator.
 *
 * <p>Threading: written on the device's thread before {@link PeerWait#begin} publishes it; read by any thread after that.
 */
final class CurrentCall {
    private static final String PREMULTIPLIED = "pre-multiplied sum";
    private static final int BYTE = 0xff;
    private static final long CAPTURED = 1L << 3 * Byte.SIZE;
    private static final Operation[] OPERATIONS = Operation.values();
    private static final DType[] DTYPES = DType.values();
    private static final StandardReduction[] REDUCTIONS = StandardReduction.values();

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

    /** Writes an event of JDK Flight Recorder, where a recording wants it; otherwise makes no object, and opens no recorder. */
    void emit(String communicator) {
        if (FlightRecorder.isInitialized() && CollectiveEvent.TYPE.isEnabled()) {
            var event = new CollectiveEvent();
            event.operation = operation.toString();
            event.communicator = communicator;
            event.bytes = count * dtype.byteSize();
            event.commit();
        }
    }

    /**
     * A collective or transfer that a rank enqueued.
     *
     * <p>Threading: one thread at a time.
     */
    @Name("dev.chagres.Collective")
    @Label("Collective")
    @Description("A collective or transfer was enqueued, or a graph of some")
    @Category("Chagres")
    @StackTrace(false)
    static final class CollectiveEvent extends Event {
        private static final EventType TYPE = EventType.getEventType(CollectiveEvent.class);

        @Label("Operation")
        String operation = "";

        @Label("Communicator")
        String communicator = "";

        @Label("Bytes of this rank's tensor")
        @DataAmount
        long bytes;
    }

    Operation operation() {
        return operation;
    }

    long count() {
        return count;
    }

    /** Returns all but the count as one number; the static methods below read it. */
    long words(boolean captured) {
        boolean named = operation.hasRoot() || operation.isTransfer();
        int code = reduction == null ? 0 : reduction instanceof StandardReduction known ? known.ordinal() + 2 : 1;
        return (long) (named ? peer : -1) << Integer.SIZE
                | (captured ? CAPTURED : 0)
                | (long) code << 2 * Byte.SIZE
                | (long) dtype.ordinal() << Byte.SIZE
                | operation.ordinal();
    }

    static Operation operation(long words) {
        return OPERATIONS[(int) words & BYTE];
    }

    static DType dtype(long words) {
        return DTYPES[(int) (words >> Byte.SIZE) & BYTE];
    }

    static @Nullable String reduction(long words) {
        int code = (int) (words >> 2 * Byte.SIZE) & BYTE;
        return switch (code) {
            case 0 -> null;
            case 1 -> PREMULTIPLIED;
            default -> REDUCTIONS[code - 2].toString();
        };
    }

    static boolean isCaptured(long words) {
        return (words & CAPTURED) != 0;
    }

    /** Returns the root or the peer, -1 where there is none. */
    static int other(long words) {
        return (int) (words >> Integer.SIZE);
    }

    /** Returns the root of the collective, or the other end of the transfer. */
    int peer() {
        return peer;
    }

    /** Returns the properties that must be equal on both ends of a transfer. */
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
            text.append(", ").append(reduction instanceof PremultipliedSum ? PREMULTIPLIED : reduction);
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
