package dev.chagres.io;

import dev.chagres.ops.StepState;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parameter.CodedState;
import dev.chagres.parameter.State;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/**
 * A state of eight bits as ranks have it that perhaps have other parts than those that wrote it, block by block: as {@link CodedState} says.
 *
 * <p>Threading: thread-safe.
 */
final class RecodedState {
    private static final State.Values SCALES = State.Values.FINITE_NOT_NEGATIVE;

    private final SafetensorsEntry codes;
    private final SafetensorsEntry scales;
    private final CodedState state;
    private final long count;
    /** How many neighbours share a scale in the file. */
    private final int unit;
    /** Of each rank. */
    private final List<ParameterSplit> parts;
    /** Of each rank the block that was read last, for {@link #reads}. */
    private final @Nullable Block[] last;

    private @Nullable SafetensorsEntry reads;
    /** Codes of a block, and scales of as many and one more. */
    private final MemorySegment room =
            Arena.ofAuto().allocate(StepState.BLOCK + (StepState.BLOCK + 1L) * Float.BYTES, Float.BYTES);

    private RecodedState(SafetensorsEntry codes, SafetensorsEntry scales, CodedState state, int unit) {
        this.codes = codes;
        this.scales = scales;
        this.state = state;
        this.unit = unit;
        count = state.split().whole().count();
        int ranks = state.split().ranks();
        parts = IntStream.range(0, ranks).mapToObj(state.split()::of).toList();
        last = new Block[ranks];
    }

    /**
     * Replaces codes and scales in {@code entries}, unless all blocks are whole ones of the whole, or the shapes are of no such state.
     *
     * @throws SafetensorsException when there are scales without codes, whose number tells nothing
     */
    static void replace(SafetensorsFile file, CodedState state, Map<String, SafetensorsEntry> entries) {
        SafetensorsEntry codes = entries.get(state.codes());
        SafetensorsEntry scales = entries.get(state.scales());
        long count = state.split().whole().count();
        if (codes == null && scales != null) {
            throw SafetensorsException.of(
                    file.path(),
                    state.codes(),
                    "expected " + count + " codes of eight bits beside their scales, \"" + state.scales()
                            + "\", got none",
                    null);
        }
        if (codes == null
                || scales == null
                || codes.type() != SafetensorsType.U8
                || codes.byteSize() != count
                || scales.type() != SafetensorsType.F32
                || scales.sizes().length != 1) {
            return;
        }
        int unit = unit(count, scales.sizes()[0]);
        if (unit > 0 && (unit < StepState.BLOCK || state.unit() < StepState.BLOCK)) {
            RecodedState recoded = new RecodedState(codes, scales, state, unit);
            entries.put(state.codes(), new Entry(file, recoded, codes, codes.sizes()));
            entries.put(state.scales(), new Entry(file, recoded, scales, state.units()));
        }
    }

    /** Returns how many of {@code count} neighbours share one of so many scales; 0 if that cannot be. */
    private static int unit(long count, long scales) {
        if (scales == Math.ceilDiv(count, (long) StepState.BLOCK)) {
            return StepState.BLOCK;
        }
        long unit = scales == 0 || count % scales != 0 ? 0 : count / scales;
        return unit > 0 && StepState.BLOCK % unit == 0 ? (int) unit : 0;
    }

    /** Neighbours in a rank's part; where scales are read codes stay as they are in the file. */
    private record Block(long number, float scale, byte... codes) {}

    /** Of codes or of scales, which fills {@code target} from a byte on. */
    private synchronized void copyTo(SafetensorsEntry which, long offset, MemorySegment target) {
        if (reads != which) {
            reads = which;
            Arrays.fill(last, null);
        }
        int size = which == codes ? Byte.BYTES : Float.BYTES;
        long before = offset % size;
        if (before != 0 || target.byteSize() % size != 0) { // parts of scales
            long bytes = (before + target.byteSize() + size - 1) / size * size;
            MemorySegment whole = Arena.ofAuto().allocate(bytes, Float.BYTES);
            copyTo(which, offset - before, whole);
            target.copyFrom(whole.asSlice(before, target.byteSize()));
            return;
        }
        long of = which == codes ? 1 : state.unit(); // elements for each
        long end = Math.min(count, (offset + target.byteSize()) / size * of);
        long next;
        for (long element = offset / size * of; element < end; element = next) {
            next = Math.min(end, (element / state.unit() + 1) * state.unit()); // lie together in a block
            int rank = 0;
            long local = parts.getFirst().local(element);
            while (local < 0) {
                local = parts.get(++rank).local(element);
            }
            Block block = block(rank, local / StepState.BLOCK);
            long place = element / of * size - offset;
            if (which == scales) {
                target.set(ValueLayout.JAVA_FLOAT_UNALIGNED, place, block.scale);
            } else {
                MemorySegment.copy(
                        block.codes, (int) (local % StepState.BLOCK), target, ValueLayout.JAVA_BYTE, place, (int)
                                (next - element));
            }
        }
    }

    private Block block(int rank, long number) {
        Block present = last[rank];
        if (present == null || present.number != number) {
            present = read(parts.get(rank), number);
            last[rank] = present;
        }
        return present;
    }

    private Block read(ParameterSplit part, long number) {
        long first = number * StepState.BLOCK;
        int length = (int) Math.min(StepState.BLOCK, part.shape().count() - first);
        byte[] bytes = new byte[length];
        float[] factors = new float[length];
        long run = part.run();
        int together;
        for (int i = 0; i < length; i += together) {
            together = (int) Math.min(length - i, run - (first + i) % run);
            long element = part.element(first + i);
            codes.copyTo(element, room.asSlice(0, together));
            MemorySegment.copy(room, ValueLayout.JAVA_BYTE, 0, bytes, i, together);
            long firstScale = element / unit;
            long most = (element + together - 1) / unit - firstScale + 1;
            MemorySegment found = room.asSlice(StepState.BLOCK, most * Float.BYTES);
            scales.copyTo(firstScale * Float.BYTES, found);
            for (int j = 0; j < together; j++) {
                factors[i + j] = found.getAtIndex(ValueLayout.JAVA_FLOAT, (element + j) / unit - firstScale);
            }
        }
        return block(number, factors, bytes);
    }

    private Block block(long number, float[] factors, byte... bytes) {
        boolean alike = true;
        float largest = 0;
        for (int i = 0; i < bytes.length; i++) {
            if (!SCALES.takes(factors[i])) {
                throw scales.refused("expected " + SCALES.inWords() + ", got " + factors[i]);
            }
            alike &= factors[i] == factors[0];
            float magnitude = Math.abs(factors[i] * state.kind().number(bytes[i]));
            largest = magnitude > largest ? magnitude : largest; // passes over NaN, as a step does
        }
        if (alike) {
            return new Block(number, factors[0], bytes);
        }
        for (int i = 0; reads == codes && i < bytes.length; i++) {
            float value = factors[i] * state.kind().number(bytes[i]);
            bytes[i] = state.kind().nearest(largest > 0 ? value / largest : 0);
        }
        return new Block(number, largest, bytes);
    }

    /** Codes or scales as these ranks have them. */
    static final class Entry extends SafetensorsEntry {
        private final RecodedState recoded;
        private final SafetensorsEntry stored;

        private Entry(SafetensorsFile file, RecodedState recoded, SafetensorsEntry stored, long... sizes) {
            long bytes = Arrays.stream(sizes)
                    .reduce(stored.type().dtype().orElseThrow().byteSize(), (a, b) -> a * b);
            super(file, new Header.Entry(stored.name(), stored.type(), sizes, 0, bytes), null);
            this.recoded = recoded;
            this.stored = stored;
        }

        @Override
        public MemorySegment bytes() {
            MemorySegment all = Arena.ofAuto().allocate(byteSize(), Long.BYTES);
            read(0, all, null);
            return all.asReadOnly();
        }

        @Override
        void read(long offset, MemorySegment target, @Nullable CRC32C checked) {
            recoded.copyTo(stored, offset, target);
        }

        @Override
        Optional<SafetensorsException> damage() {
            return stored.damage();
        }

        @Override
        Optional<SafetensorsException> damage(long offset, long bytes) {
            if (stored == recoded.codes) {
                return stored.damage(offset, bytes);
            }
            int own = recoded.state.unit();
            long first = offset / Float.BYTES * own / recoded.unit;
            long end = Math.min(recoded.count, (offset + bytes) / Float.BYTES * own);
            return stored.damage(first * Float.BYTES, (Math.ceilDiv(end, (long) recoded.unit) - first) * Float.BYTES);
        }
    }
}
