package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsAdamRange;
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
 * Ranges that a step of {@link Adam} updates in one kernel; their addresses lie in a table on the device, which is written once.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsAdamRange} in {@code ops.h}; TE's {@code multi_tensor_apply}.
 */
public final class AdamRanges {
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

    private final List<Part> parts = new ArrayList<>();
    private final AdamRange first;
    private final int count;
    private final Part table;
    private long blocks;

    private AdamRanges(List<AdamRange> ranges, Scope scope) {
        first = ranges.getFirst();
        count = ranges.size();
        for (int i = 0; i < count; i++) {
            check(i, ranges.get(i), scope.stream());
            addParts(i, ranges.get(i));
        }
        ensureApart();
        Tensor memory = scope.tensor(DType.BYTE, count * OpsAdamRange.sizeof());
        table = new Part("table", 0, memory, false, Inside.issue(memory));
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = OpsAdamRange.allocateArray(count, arena);
            for (int i = 0; i < count; i++) {
                describe(ranges.get(i), OpsAdamRange.asSlice(host, i));
            }
            HostToDevice.copyHostToDeviceViaKernel(host, memory, scope.stream());
        }
    }

    /**
     * Allocates the table and enqueues a copy into it. The tensors of the ranges must keep their memory as long as steps use this.
     *
     * @param ranges at least one; weights, moments and masters of the same types in all
     * @param scope allocates the table; its stream writes it
     * @throws IllegalArgumentException when there is no range, shapes, types or devices do not fit, or what is written shares memory
     */
    public static AdamRanges of(List<AdamRange> ranges, Scope scope) {
        List<AdamRange> given = Checks.givenAll("ranges", ranges);
        Checks.given("scope", scope);
        if (given.isEmpty()) {
            throw new IllegalArgumentException("ranges: expected at least one, got none");
        }
        return new AdamRanges(given, scope);
    }

    private void check(int index, AdamRange range, Stream stream) {
        try {
            range.check(stream);
        } catch (IllegalArgumentException refused) {
            throw new IllegalArgumentException("ranges: in range " + index + " " + refused.getMessage(), refused);
        }
        if (!types(range).equals(types(first))) {
            throw new IllegalArgumentException("ranges: expected the same types in all, got " + types(range)
                    + " in range " + index + " and " + types(first) + " in range 0; make AdamRanges of each");
        }
    }

    private static String types(AdamRange range) {
        Tensor master = range.master();
        return "weights of " + range.weight().dtype() + ", moments of "
                + range.mean().dtype() + (master == null ? "" : ", masters of " + master.dtype());
    }

    private void addParts(int index, AdamRange range) {
        add("gradient", index, range.gradient(), false);
        add("weight", index, range.weight(), true);
        add("mean", index, range.mean(), true);
        add("square", index, range.square(), true);
        add("master", index, range.master(), true);
        add("rate", index, range.rate(), false);
    }

    private void add(String name, int index, @Nullable Tensor tensor, boolean isWritten) {
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

    private void describe(AdamRange range, MemorySegment struct) {
        OpsAdamRange.gradient(struct, range.gradient().address());
        OpsAdamRange.weight(struct, range.weight().address());
        OpsAdamRange.mean(struct, range.mean().address());
        OpsAdamRange.square(struct, range.square().address());
        OpsAdamRange.master(struct, Checks.addressOrNull(range.master()));
        OpsAdamRange.rate(struct, range.rate().address());
        OpsAdamRange.count(struct, range.gradient().count());
        OpsAdamRange.first_block(struct, blocks);
        OpsAdamRange.weight_decay(struct, range.weightDecay());
        blocks += Math.ceilDiv(range.gradient().count(), (long) Ops.OPS_ADAM_BLOCK());
    }

    /** Returns the number of ranges. */
    public int count() {
        return count;
    }

    long blocks() {
        return blocks;
    }

    /** Returns one of the ranges, which all have the same types. */
    AdamRange first() {
        return first;
    }

    /** Checks that the table still holds, and that a step's numbers overlap no range, and returns its address. */
    long address(Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        ensureSame(table, stream);
        for (int i = 0; i < parts.size(); i++) {
            Part part = parts.get(i);
            ensureSame(part, stream);
            if (part.isWritten()) {
                Checks.apart(part.name(), part.tensor(), "step", step);
                Checks.apart(part.name(), part.tensor(), "gradientScale", gradientScale);
                Checks.apart(part.name(), part.tensor(), "skip", skip);
            }
        }
        return table.tensor().address();
    }

    private static void ensureSame(Part part, Stream stream) {
        if (Inside.isTakenBack(part.tensor(), part.issue())) {
            throw new IllegalStateException("ranges: expected the tensors that they were made of, got " + part.text()
                    + " handed out anew, for its scope was restarted; make them again with AdamRanges.of");
        }
        Checks.on(stream, part.name(), part.tensor());
    }

    @Override
    public String toString() {
        return "AdamRanges of " + count + (count == 1 ? " range, " : " ranges, ") + types(first);
    }
}
