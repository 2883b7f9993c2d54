package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.te.HostToDevice;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Ranges that an optimizer's step updates in one kernel, and a table on the device that has their addresses.
 *
 * <p>Threading: the device's thread.
 *
 * @param <R> a range
 */
abstract class RangeTable<R> {
    /** A tensor of a range, and which issue of its object the table has the address of. */
    private record Part(String name, int range, Tensor tensor, boolean isWritten, int issue) {
        long begin() {
            return Inside.address(tensor);
        }

        long end() {
            return begin() + tensor.byteSize();
        }

        String text() {
            return name + " of range " + range;
        }
    }

    private final List<R> ranges;
    private final List<Part> parts = new ArrayList<>();
    private final Stream stream;
    private final Part table;
    private long blocks;

    /**
     * Allocates the table and enqueues a copy into it.
     *
     * @param given at least one, of the same types
     * @param bytes of the table
     */
    RangeTable(List<R> given, Scope scope, long bytes) {
        ranges = Checks.givenAll("ranges", given);
        stream = Checks.given("scope", scope).stream();
        if (ranges.isEmpty()) {
            throw new IllegalArgumentException("ranges: expected at least one, got none");
        }
        Tensor memory = scope.tensor(DType.BYTE, bytes);
        table = new Part("table", 0, memory, false, Inside.issue(memory));
        for (int i = 0; i < ranges.size(); i++) {
            check(i);
            addParts(i, ranges.get(i));
        }
        ensureApart();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(bytes, Long.BYTES);
            for (int i = 0; i < ranges.size(); i++) {
                blocks += Math.ceilDiv(describe(ranges.get(i), host, i, blocks), (long) Ops.OPS_ADAM_BLOCK());
            }
            HostToDevice.copyHostToDeviceViaKernel(host, memory, stream);
        }
    }

    private void check(int index) {
        R range = ranges.get(index);
        try {
            check(range, stream);
        } catch (IllegalArgumentException refused) {
            throw new IllegalArgumentException("ranges: in range " + index + " " + refused.getMessage(), refused);
        }
        if (!types(range).equals(types(first()))) {
            throw new IllegalArgumentException("ranges: expected the same types in all, got " + types(range)
                    + " in range " + index + " and " + types(first()) + " in range 0; make "
                    + getClass().getSimpleName() + " of each");
        }
    }

    /** Checks the tensors of a range. */
    abstract void check(R range, Stream on);

    /** Returns the types, in words. */
    abstract String types(R range);

    /** Adds the tensors of a range by {@link #add}. */
    abstract void addParts(int index, R range);

    /** Writes the struct of a range, whose first block of threads is given, and returns the number of its elements. */
    abstract long describe(R range, MemorySegment structs, int index, long firstBlock);

    /** Returns the number of ranges. */
    public int count() {
        return ranges.size();
    }

    long blocks() {
        return blocks;
    }

    /** Returns one of the ranges, which all have the same types. */
    R first() {
        return ranges.getFirst();
    }

    @Override
    public String toString() {
        return getClass().getSimpleName() + " of " + count() + (count() == 1 ? " range, " : " ranges, ")
                + types(first());
    }

    /** Checks a master, which is null, or FLOAT32 or, for remainders, two bytes for each of {@code count} elements. */
    static void checkMaster(@Nullable Tensor master, long count, Stream stream) {
        if (master != null) {
            boolean remainder = Checks.on(stream, "master", master).dtype() == DType.BYTE;
            Checks.vector(
                    stream, "master", master, remainder ? DType.BYTE : DType.FLOAT32, remainder ? 2 * count : count);
            Checks.writable("master", master);
        }
    }

    /** Returns the kind of a master as {@code ops.h} numbers it. */
    static int masters(@Nullable Tensor master) {
        if (master == null) {
            return Ops.OPS_MASTER_NONE();
        }
        return master.dtype() == DType.FLOAT32 ? Ops.OPS_MASTER_FLOAT32() : Ops.OPS_MASTER_REMAINDER();
    }

    /** Adds a tensor of a range, if there is one. */
    void add(String name, int index, @Nullable Tensor tensor, boolean isWritten) {
        if (tensor != null) {
            parts.add(new Part(name, index, tensor, isWritten, Inside.issue(tensor)));
        }
    }

    /** Goes by address: before a written tensor begins, all earlier ones must have ended; before a read one, all earlier written ones. */
    private void ensureApart() {
        List<Part> sorted = parts.stream()
                .filter(part -> part.tensor().count() > 0)
                .sorted(Comparator.comparingLong(Part::begin))
                .toList();
        Part farthest = null;
        Part written = null;
        for (Part part : sorted) {
            Part other = part.isWritten() ? farthest : written;
            if (other != null && other.end() > part.begin()) {
                throw new IllegalArgumentException("ranges: expected memory of its own for " + part.text()
                        + ", got some of " + other.text() + "'s; one is written to while the other is read or written");
            }
            farthest = farthest == null || part.end() > farthest.end() ? part : farthest;
            if (part.isWritten() && (written == null || part.end() > written.end())) {
                written = part;
            }
        }
    }

    /** Checks that the table still holds, and that a step's numbers overlap no range, and returns its address. */
    long address(Tensor step, Tensor gradientScale, Tensor skip, Stream runs) {
        ensureSame(table, runs);
        for (int i = 0; i < parts.size(); i++) {
            Part part = parts.get(i);
            ensureSame(part, runs);
            if (part.isWritten()) {
                Checks.apart(part.name(), part.tensor(), "step", step, "gradientScale", gradientScale, "skip", skip);
            }
        }
        return table.tensor().address();
    }

    private void ensureSame(Part part, Stream runs) {
        if (Inside.isTakenBack(part.tensor(), part.issue())) {
            throw new IllegalStateException("ranges: expected the tensors that they were made of, got " + part.text()
                    + " handed out anew, for its scope was restarted; make them again with "
                    + getClass().getSimpleName() + ".of");
        }
        Checks.on(runs, part.name(), part.tensor());
    }
}
