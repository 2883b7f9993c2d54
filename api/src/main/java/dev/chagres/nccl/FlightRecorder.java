package dev.chagres.nccl;

import dev.chagres.Device;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.nccl.RankFailure.RecorderFile;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The last collectives and transfers that a rank has called, on all its communicators, to find the call that a rank has missed.
 *
 * <p>It always records, in memory that is allocated once: 10,000 calls, or as many as {@code -Dchagres.collective.recorder.calls=N} says; 0
 * turns it off. With {@code -Dchagres.collective.recorder.directory=DIR} a failure of a rank writes {@code DIR/rank-R.jsonl} for each rank
 * of the program, and the {@link RankFailedException} names it.
 *
 * {@snippet file="dev/chagres/nccl/FlightRecorderTest.java" region="recorder"}
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: PyTorch's Flight Recorder, {@code TORCH_NCCL_TRACE_BUFFER_SIZE} and {@code TORCH_NCCL_DEBUG_INFO_TEMP_FILE}.
 */
public final class FlightRecorder {
    private static final String CALLS = "chagres.collective.recorder.calls";
    private static final int STANDARD_CALLS = 10_000;
    private static final int MOST_CALLS = 1_000_000;

    private static final DeviceState.Attachment<OfDevice> OF_DEVICE = new DeviceState.Attachment<>(_ -> new OfDevice());

    // The longs that a call takes.
    private static final int ENTERED = 0;
    private static final int ENQUEUED = 1;
    private static final int COMPLETED = 2;
    private static final int COUNT = 3;
    private static final int STREAM = 4;
    private static final int SEQUENCE = 5;
    private static final int WORDS = 6;
    private static final int LONGS = 8;

    private static final VarHandle NEXT;

    static {
        try {
            NEXT = MethodHandles.lookup().findVarHandle(FlightRecorder.class, "next", long.class);
        } catch (ReflectiveOperationException impossible) {
            throw new ExceptionInInitializerError(impossible);
        }
    }

    /** The communicator of calls. */
    record Member(String name, int rank, int ranks) {}

    /** A device has one. */
    private static final class OfDevice {
        private @Nullable FlightRecorder recorder;
    }

    private final int rank;
    private final int capacity;
    /** One more than the capacity, since the slot that may be written at present is not read. */
    private final int slots;
    /** Whether work is done when a call returns, as on the reference. */
    private final boolean immediate;

    private final long[] longs;
    private final @Nullable Member[] members;
    private final Instant began = Instant.now();
    private final long beganNanos = System.nanoTime();

    /** The number of the next call; every earlier one is written. */
    @SuppressWarnings("unused") // through NEXT
    private long next;
    /** Calls before this were passed to NCCL, or never will be. */
    private long given;
    /** Calls before this have completed, or were never passed to NCCL. */
    private long settled;

    FlightRecorder(int rank, int capacity, boolean immediate) {
        this.rank = rank;
        this.capacity = capacity;
        this.immediate = immediate;
        slots = capacity + 1;
        longs = new long[slots * LONGS];
        members = new Member[slots];
    }

    /** Returns the recorder of {@code device}, and makes it for {@code rank} at the first call. */
    static FlightRecorder of(Device device, int rank) {
        OfDevice present = Inside.state(device).get(OF_DEVICE);
        FlightRecorder recorder = present.recorder;
        if (recorder == null) {
            recorder = new FlightRecorder(rank, capacity(), device.provider() == Provider.REFERENCE);
            present.recorder = recorder;
        }
        return recorder;
    }

    /**
     * Returns how many calls a recorder keeps.
     *
     * @throws IllegalArgumentException when the property is not such a number
     */
    static int capacity() {
        String value = System.getProperty(CALLS, Integer.toString(STANDARD_CALLS));
        try {
            int calls = Integer.parseInt(value.strip());
            if (calls >= 0 && calls <= MOST_CALLS) {
                return calls;
            }
        } catch (NumberFormatException _) {
            // Reported below, like a number out of range.
        }
        throw new IllegalArgumentException(
                "-D" + CALLS + ": expected a number from 0 to " + MOST_CALLS + ", got " + ForeignText.quoted(value));
    }

    /** Returns the recorder of the rank that {@code communicator} belongs to, also after it was closed. */
    public static FlightRecorder of(Communicator communicator) {
        return Checks.given("communicator", communicator).endpoint().calls.recorder();
    }

    /** Returns the rank: its number in the first communicator that was opened on the device. */
    public int rank() {
        return rank;
    }

    /** Returns how many calls were recorded, including those that were overwritten. */
    public long count() {
        return (long) NEXT.getAcquire(this);
    }

    /** Records a call that was checked and is made next. Called on the device's thread. */
    void enter(Member member, CurrentCall call, long sequence, long stream, boolean captured) {
        if (capacity == 0) {
            return;
        }
        long number = next;
        int slot = (int) (number % slots);
        int at = slot * LONGS;
        longs[at + ENTERED] = now();
        longs[at + ENQUEUED] = 0;
        longs[at + COMPLETED] = 0;
        longs[at + COUNT] = call.count();
        longs[at + STREAM] = stream;
        longs[at + SEQUENCE] = sequence;
        longs[at + WORDS] = call.words(captured);
        members[slot] = member;
        NEXT.setRelease(this, number + 1);
    }

    /** Marks all calls so far as passed to NCCL. Called on the device's thread. */
    void enqueued() {
        if (capacity == 0 || given == next) {
            return;
        }
        long now = now();
        for (long number = Math.max(given, next - capacity); number < next; number++) {
            int at = (int) (number % slots) * LONGS;
            longs[at + ENQUEUED] = now;
            if (immediate && !CurrentCall.isCaptured(longs[at + WORDS])) {
                longs[at + COMPLETED] = now;
            }
        }
        given = next;
        if (immediate) {
            settled = next;
        }
    }

    /** Marks the calls that were not passed to NCCL as abandoned. Called on the device's thread. */
    void abandoned() {
        given = next;
    }

    /** Marks all work of {@code stream} as done. Called on the device's thread. */
    void completed(long stream) {
        if (capacity == 0 || settled == next) {
            return;
        }
        long now = now();
        boolean all = true;
        for (long number = Math.max(settled, next - capacity); number < next; number++) {
            int at = (int) (number % slots) * LONGS;
            if (longs[at + ENQUEUED] != 0 && !CurrentCall.isCaptured(longs[at + WORDS])) {
                if (longs[at + STREAM] == stream && longs[at + COMPLETED] == 0) {
                    longs[at + COMPLETED] = now;
                }
                all &= longs[at + COMPLETED] != 0;
            }
            settled = all ? number + 1 : settled;
        }
    }

    /** Returns the time, which is never 0. */
    private long now() {
        return System.nanoTime() - beganNanos + 1;
    }

    /** Returns the calls, oldest first. */
    public List<RecordedCall> calls() {
        long end = count();
        List<RecordedCall> calls = new ArrayList<>();
        for (long number = Math.max(0, end - capacity); number < end; number++) {
            RecordedCall call = read(number);
            VarHandle.acquireFence();
            // Skips calls that the device's thread has overwritten meanwhile, or is about to.
            if (call != null && number >= count() - capacity) {
                calls.add(call);
            }
        }
        return List.copyOf(calls);
    }

    private @Nullable RecordedCall read(long number) {
        int slot = (int) (number % slots);
        int at = slot * LONGS;
        Member member = members[slot];
        if (member == null) {
            return null;
        }
        long words = longs[at + WORDS];
        Operation operation = CurrentCall.operation(words);
        return new RecordedCall(
                number,
                member.name,
                member.rank,
                member.ranks,
                longs[at + SEQUENCE],
                operation,
                longs[at + COUNT],
                CurrentCall.dtype(words),
                CurrentCall.reduction(words),
                CurrentCall.other(words),
                longs[at + STREAM],
                CurrentCall.isCaptured(words),
                began.plusNanos(longs[at + ENTERED] - 1),
                instant(longs[at + ENQUEUED]),
                instant(longs[at + COMPLETED]));
    }

    private @Nullable Instant instant(long time) {
        return time == 0 ? null : began.plusNanos(time - 1);
    }

    /**
     * Writes the calls as JSON Lines, oldest first, after a line that names the rank. The file appears when it is complete and replaces an
     * older one; of a symbolic link the file that it points to is replaced.
     *
     * @throws java.io.UncheckedIOException when it cannot be written, or the path leads to a folder, a device or a pipe; an older file is
     *     then unchanged, and no temporary file remains
     */
    public void write(Path file) {
        RecorderFile.write(this, Checks.given("file", file), "");
    }

    @Override
    public String toString() {
        return "flight recorder of rank " + rank + ", " + Math.min(count(), capacity) + " calls";
    }
}
