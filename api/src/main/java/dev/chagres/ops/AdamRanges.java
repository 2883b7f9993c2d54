package dev.chagres.ops;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsAdamRange;
import dev.chagres.internal.Checks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * Ranges that a step of {@link Adam} updates in one kernel; their addresses lie in a table on the device, which is written once.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsAdamRange} in {@code ops.h}; TE's {@code multi_tensor_apply}.
 */
public final class AdamRanges {
    private final RangeTable table;
    private final AdamRange first;
    private final int count;
    private long blocks;

    private AdamRanges(List<AdamRange> ranges, Scope scope) {
        first = ranges.getFirst();
        count = ranges.size();
        table = new RangeTable("AdamRanges.of", scope, count * OpsAdamRange.sizeof());
        for (int i = 0; i < count; i++) {
            check(i, ranges.get(i), scope.stream());
            addParts(i, ranges.get(i));
        }
        table.ensureApart();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = OpsAdamRange.allocateArray(count, arena);
            for (int i = 0; i < count; i++) {
                describe(ranges.get(i), OpsAdamRange.asSlice(host, i));
            }
            table.write(host);
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
        table.add("gradient", index, range.gradient(), false);
        table.add("weight", index, range.weight(), true);
        table.add("mean", index, range.mean(), true);
        table.add("square", index, range.square(), true);
        table.add("master", index, range.master(), true);
        table.add("rate", index, range.rate(), false);
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
        return table.address(step, gradientScale, skip, stream);
    }

    @Override
    public String toString() {
        return "AdamRanges of " + count + (count == 1 ? " range, " : " ranges, ") + types(first);
    }
}
