package dev.chagres.ops;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsStepRange;
import dev.chagres.internal.Checks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Ranges that an {@link OptimizerStep} updates in one kernel; their addresses lie in a table on the device, which is written once.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsStepRange} in {@code ops.h}.
 */
public final class StepRanges {
    private final StepRange first;
    private final int count;
    private final RangeTable table;
    private long blocks;

    private StepRanges(List<StepRange> ranges, Scope scope) {
        first = ranges.getFirst();
        count = ranges.size();
        table = new RangeTable("StepRanges.of", scope, count * OpsStepRange.sizeof());
        for (int i = 0; i < count; i++) {
            check(i, ranges.get(i), scope.stream());
            addParts(i, ranges.get(i));
        }
        table.ensureApart();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = OpsStepRange.allocateArray(count, arena);
            for (int i = 0; i < count; i++) {
                describe(ranges.get(i), OpsStepRange.asSlice(host, i));
            }
            table.write(host);
        }
    }

    /**
     * Allocates the table and enqueues a copy into it. The tensors of the ranges must keep their memory as long as steps use this.
     *
     * @param ranges at least one; weights, states and masters of the same types in all
     * @param scope allocates the table; its stream writes it
     * @throws IllegalArgumentException when there is no range, shapes, types or devices do not fit, or what is written shares memory
     */
    public static StepRanges of(List<StepRange> ranges, Scope scope) {
        List<StepRange> given = Checks.givenAll("ranges", ranges);
        Checks.given("scope", scope);
        if (given.isEmpty()) {
            throw new IllegalArgumentException("ranges: expected at least one, got none");
        }
        return new StepRanges(given, scope);
    }

    private void check(int index, StepRange range, Stream stream) {
        try {
            range.check(stream);
        } catch (IllegalArgumentException refused) {
            throw new IllegalArgumentException("ranges: in range " + index + " " + refused.getMessage(), refused);
        }
        if (!range.types().equals(first.types()) || (range.share() == null) != (first.share() == null)) {
            throw new IllegalArgumentException("ranges: expected the same types in all, got " + range.types()
                    + " in range " + index + " and " + first.types() + " in range 0; make StepRanges of each");
        }
    }

    private void addParts(int index, StepRange range) {
        table.add("gradient", index, range.gradient(), false);
        table.add("weight", index, range.weight(), true);
        table.add("master", index, range.master(), true);
        addState("first", index, range.first());
        addState("second", index, range.second());
        table.add("rate", index, range.rate(), false);
        table.add("share", index, range.share(), false);
    }

    private void addState(String name, int index, @Nullable StepState state) {
        if (state != null) {
            table.add(name, index, state.values(), true);
            table.add("scales of " + name, index, state.scales(), true);
        }
    }

    private void describe(StepRange range, MemorySegment struct) {
        StepState second = range.second();
        OpsStepRange.gradient(struct, range.gradient().address());
        OpsStepRange.weight(struct, range.weight().address());
        OpsStepRange.master(struct, Checks.addressOrNull(range.master()));
        OpsStepRange.first(struct, range.first().values().address());
        OpsStepRange.second(struct, second == null ? 0 : second.values().address());
        OpsStepRange.first_scale(struct, Checks.addressOrNull(range.first().scales()));
        OpsStepRange.second_scale(struct, second == null ? 0 : Checks.addressOrNull(second.scales()));
        OpsStepRange.rate(struct, range.rate().address());
        OpsStepRange.share(struct, Checks.addressOrNull(range.share()));
        OpsStepRange.count(struct, range.gradient().count());
        OpsStepRange.first_block(struct, blocks);
        OpsStepRange.weight_decay(struct, range.weightDecay());
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
    StepRange first() {
        return first;
    }

    /** Checks that the table still holds, and that a step's numbers overlap no range, and returns its address. */
    long address(Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        return table.address(step, gradientScale, skip, stream);
    }

    @Override
    public String toString() {
        return "StepRanges of " + count + (count == 1 ? " range, " : " ranges, ") + first.types();
    }
}
