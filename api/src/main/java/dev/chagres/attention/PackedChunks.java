package dev.chagres.attention;

import static dev.chagres.attention.PackedChunks.HostRegions.INT;

import dev.chagres.Device;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * For layers: makes the sequences of {@link PackedChunk} for one range of tokens after another, without garbage from the second one on.
 *
 * <p>Threading: the device's thread.
 */
public final class PackedChunks implements AutoCloseable {
    /** Offsets and starts of the range; offsets of queries and keys, starts and numbers of its prefix. */
    private static final int REGIONS = 6;

    private final HostRegions regions;
    private final Side own = new Side();
    private final Side prefix = new Side();
    private final CuSeqlens prefixKeys = new CuSeqlens();
    private @Nullable StartPositions numbers;
    private @Nullable Sequences whole;
    private int version;
    private boolean isSet;
    private @Nullable Sequences part;

    /** Queries, and the positions within their sequences at which they begin. */
    private static final class Side {
        private final CuSeqlens offsets = new CuSeqlens();
        private @Nullable StartPositions starts;

        /** Enqueues copies of the numbers that the host has written. */
        private void set(Scope scope, MemorySegment ends, MemorySegment firsts, int count, int longest) {
            offsets.set(scope, ends, count);
            starts = StartPositions.taken(starts, scope, firsts, count, longest);
        }

        private Sequences sequences() {
            return Sequences.packed(offsets).startingAt(Checks.given("starts", starts));
        }
    }

    /** Makes one for sequences of {@code device}. */
    public PackedChunks(Device device) {
        regions = new HostRegions(Checks.given("device", device));
    }

    /** Returns whether this was set for these sequences as they are. */
    public boolean isOf(Sequences sequences) {
        return isLive()
                && whole == sequences
                && version == sequences.cuSeqlens().version();
    }

    /** Returns whether it was set and its offsets are still valid. */
    public boolean isLive() {
        return isSet && own.offsets.isLive();
    }

    /** Makes {@link #isOf} and {@link #isLive} false until the next {@link #set}. */
    public void forget() {
        isSet = false;
    }

    /** Returns the sequences of the range, as {@link PackedChunk} does. */
    public Sequences part() {
        return Checks.given("part", part);
    }

    /**
     * Enqueues the numbers of a range of tokens.
     *
     * @param sequences of all tokens
     * @param begin first token of the range
     * @param end token after the last one
     * @param scope holds the numbers on the device
     * @throws IllegalArgumentException when sequences are not packed, there are gaps between them, or the range is empty or exceeds the
     *     tokens; {@link #isLive} is then false
     */
    public void set(Sequences sequences, long begin, long end, Scope scope) {
        isSet = false;
        PackedChunk.checkPacked(sequences, "ranks gather keys for their own queries");
        if (begin < 0 || begin >= end || end > sequences.tokens()) {
            throw new IllegalArgumentException("begin, end: expected a stretch of the " + sequences.tokens()
                    + " tokens that the sequences have, got " + begin + " and " + end);
        }
        if (Inside.capture(Checks.given("scope", scope).stream()) != null) {
            throw new CaptureException(
                    "gathered keys: expected a stream that does not capture, for each rank copies offsets"
                            + " of its part of the sequences from the host, got " + scope.stream()
                            + "; give the pass sequences of PackedChunk.of");
        }
        CuSeqlens offsets = sequences.cuSeqlens();
        int count = offsets.sequences();
        regions.reserve(count + 1L, REGIONS);
        MemorySegment ends = regions.get(0);
        MemorySegment firsts = regions.get(1);
        ends.setAtIndex(INT, 0, 0);
        int first = count;
        int last = 0;
        for (int i = 0; i < count; i++) {
            long from = Math.max(begin, offsets.offset(i));
            int tokens = (int) Math.max(0, Math.min(end, offsets.offset(i + 1)) - from);
            ends.setAtIndex(INT, i + 1L, ends.getAtIndex(INT, i) + tokens);
            firsts.setAtIndex(INT, i, tokens == 0 ? 0 : (int) (from - offsets.offset(i)));
            first = tokens == 0 ? first : Math.min(first, i);
            last = tokens == 0 ? last : i;
        }
        own.set(scope, ends, firsts, count, offsets.longest());
        setPrefix(offsets, first, last + 1, scope);
        describe(sequences, begin, offsets.offset(first));
    }

    /** Sets the sequences that have queries in the range, with keys up to its end. */
    private void setPrefix(CuSeqlens offsets, int first, int end, Scope scope) {
        int count = end - first;
        MemorySegment queries = regions.get(2);
        MemorySegment keys = regions.get(3);
        MemorySegment firsts = regions.get(4);
        MemorySegment names = regions.get(5);
        queries.setAtIndex(INT, 0, 0);
        keys.setAtIndex(INT, 0, 0);
        for (int i = 0; i < count; i++) {
            int before = regions.get(1).getAtIndex(INT, first + i);
            queries.setAtIndex(INT, i + 1L, regions.get(0).getAtIndex(INT, first + i + 1L));
            int tokens = queries.getAtIndex(INT, i + 1L) - queries.getAtIndex(INT, i);
            keys.setAtIndex(INT, i + 1L, keys.getAtIndex(INT, i) + before + tokens);
            firsts.setAtIndex(INT, i, before);
            names.setAtIndex(INT, i, first + i);
        }
        prefix.set(scope, queries, firsts, count, offsets.longest());
        prefixKeys.set(scope, keys, count);
        numbers = StartPositions.taken(numbers, scope, names, count, end);
    }

    private void describe(Sequences sequences, long begin, long firstKey) {
        Sequences present = part;
        if (present == null || present.keys() != sequences) {
            PackedPrefix made = new PackedPrefix(prefix.sequences()
                    .withKeys(Sequences.packed(prefixKeys))
                    .numbered(Checks.given("numbers", numbers)));
            present = own.sequences().withKeys(sequences).from(begin, made);
            part = present;
        }
        present.from(begin, present.prefix().from(firstKey));
        whole = sequences;
        version = sequences.cuSeqlens().version();
        isSet = true;
    }

    /** Frees the host's memory. */
    @Override
    public void close() {
        regions.close();
    }

    /**
     * Host memory in equal parts, each with room for the INT32 numbers of one tensor, from which they are copied to the device.
     */
    static final class HostRegions implements AutoCloseable {
        static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;

        private final Device device;
        private final List<MemorySegment> regions = new ArrayList<>();
        private @Nullable HostBuffer host;
        /** Numbers that each region has room for. */
        private long room;

        HostRegions(Device device) {
            this.device = device;
        }

        /**
         * Makes sure that there are at least {@code count} regions with room for {@code numbers} each; if it allocates, old contents are lost.
         */
        void reserve(long numbers, int count) {
            if (room >= numbers && regions.size() >= count) {
                return;
            }
            close();
            room = 2 * numbers;
            long bytes = Integer.BYTES * room;
            HostBuffer made = HostBuffer.pageable(device, bytes * count);
            host = made;
            for (int i = 0; i < count; i++) {
                regions.add(made.segment().asSlice(i * bytes, bytes));
            }
        }

        MemorySegment get(int region) {
            return regions.get(region);
        }

        @Override
        public void close() {
            HostBuffer present = host;
            if (present != null) {
                present.close();
                host = null;
            }
            regions.clear();
            room = 0;
        }
    }
}
