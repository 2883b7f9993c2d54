package dev.chagres.ops;

import dev.chagres.bindings.NativeLibraries;
import dev.chagres.bindings.OpsException;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsActivity;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.Leaks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * A kernel, copy or fill that a GPU ran, or a {@link Range} of host time. {@code dev.chagres.estimate.KernelTrace} makes tables of them.
 *
 * <p>Threading: immutable; a recording is one of the whole process.
 *
 * <p>Source: {@code ops_activity_begin}, {@code ops_activity_end} and {@code ops_activity_read} in {@code ops.h}.
 *
 * @param name of the kernel or the range; of copies and fills their kind
 * @param kind what it is
 * @param begin nanoseconds of the recording's clock
 * @param end likewise; 0 of a range that was open still
 * @param range the number of the range that enqueued it, or that it was begun in; 0 for none
 * @param number of a range, from 1 on
 * @param device its index; of a range 0
 * @param stream CUPTI's number of the stream; of a range that of its thread
 */
public record ActivityRecord(
        String name, Kind kind, long begin, long end, long range, long number, int device, long stream) {
    /** What a record is of. */
    public enum Kind {
        /** A kernel. */
        KERNEL,
        /** A copy. */
        COPY,
        /** A fill. */
        FILL,
        /** A range of host time. */
        RANGE
    }

    /**
     * What was recorded.
     *
     * @param records in the order in which they were told
     * @param dropped how many there was no room for
     */
    public record Recording(List<ActivityRecord> records, long dropped) {
        /** Copies the list. */
        public Recording {
            records = List.copyOf(Checks.givenAll("records", records));
        }
    }

    /** Checks that name and kind are there. */
    public ActivityRecord {
        Checks.given("name", name, "kind", kind);
    }

    /** Returns its time in nanoseconds. */
    public long nanos() {
        return Math.max(0, end - begin);
    }

    /**
     * The recording that this process makes, one at a time.
     *
     * <p>Threading: it records all threads; one thread at a time calls it.
     */
    public static final class Recorder implements AutoCloseable {
        private final long began;
        private final Leaks.@Nullable Trace trace = Leaks.opened("recording of kernels");
        private @Nullable Recording ended;

        private Recorder(long began) {
            this.began = began;
        }

        /**
         * Begins to record, on all threads.
         *
         * @param cupti the path of CUPTI's library; an empty text for ranges alone
         * @throws IllegalStateException when another recording runs, or the process has opened another CUPTI
         * @throws OpsException when the library cannot be opened, or refuses, as it does where another profiler of the process listens
         * @throws dev.chagres.bindings.MissingLibraryException when the provider's libraries cannot be opened
         */
        public static Recorder begin(String cupti) {
            Checks.given("cupti", cupti);
            NativeLibraries.ensureLoaded();
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment now = arena.allocate(ValueLayout.JAVA_LONG);
                int status = Ops.ops_activity_begin(arena.allocateFrom(cupti), now);
                try {
                    Status.ops(status, "ops_activity_begin");
                } catch (OpsException refused) {
                    throw status == Ops.OPS_INVALID_ARGUMENT()
                            ? new IllegalStateException("recording of kernels: " + refused.libraryText(), refused)
                            : refused;
                }
                return new Recorder(now.get(ValueLayout.JAVA_LONG, 0));
            }
        }

        /** Returns when it began, in nanoseconds of its clock. */
        public long began() {
            return began;
        }

        /** Ends the recording. What devices have not done by now is not recorded. A second call returns the same. */
        public Recording end() {
            Recording present = ended;
            if (present != null) {
                return present;
            }
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment counts = arena.allocate(ValueLayout.JAVA_LONG, 2);
                MemorySegment dropped = counts.asSlice(ValueLayout.JAVA_LONG.byteSize());
                Status.ops(Ops.ops_activity_end(counts, dropped), "ops_activity_end");
                long count = counts.getAtIndex(ValueLayout.JAVA_LONG, 0);
                MemorySegment structs = arena.allocate(OpsActivity.layout(), count);
                Status.ops(Ops.ops_activity_read(structs, count), "ops_activity_read");
                Recording made = new Recording(records(structs, count), dropped.get(ValueLayout.JAVA_LONG, 0));
                Leaks.closed(trace);
                ended = made;
                return made;
            }
        }

        /** Ends the recording. A second call does nothing. */
        @Override
        public void close() {
            end();
        }

        @Override
        public String toString() {
            return "Recorder(" + (ended == null ? "recording" : "ended") + ")";
        }
    }

    private static List<ActivityRecord> records(MemorySegment structs, long count) {
        Kind[] kinds = Kind.values();
        Map<Long, String> names = new HashMap<>();
        List<ActivityRecord> records = new ArrayList<>();
        for (long i = 0; i < count; i++) {
            MemorySegment one = OpsActivity.asSlice(structs, i);
            String name = names.computeIfAbsent(
                    OpsActivity.name(one).address(),
                    address -> MemorySegment.ofAddress(address)
                            .reinterpret(Long.MAX_VALUE)
                            .getString(0));
            records.add(new ActivityRecord(
                    name,
                    kinds[OpsActivity.kind(one)],
                    OpsActivity.begin(one),
                    OpsActivity.end(one),
                    OpsActivity.range(one),
                    OpsActivity.number(one),
                    OpsActivity.device(one),
                    OpsActivity.stream(one)));
        }
        return records;
    }
}
