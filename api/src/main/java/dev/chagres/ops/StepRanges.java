package dev.chagres.ops;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.bindings.ops.OpsStepRange;
import dev.chagres.internal.Checks;
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
public final class StepRanges extends RangeTable<StepRange> {
    private StepRanges(List<StepRange> ranges, Scope scope) {
        super(ranges, scope, ranges.size() * OpsStepRange.sizeof());
    }

    /**
     * Allocates the table and enqueues a copy into it. The tensors of the ranges must keep their memory as long as steps use this.
     *
     * @param ranges at least one; gradients, weights, states and masters of the same types in all
     * @param scope allocates the table; its stream writes it
     * @throws IllegalArgumentException when there is no range, shapes, types or devices do not fit, or what is written shares memory
     */
    public static StepRanges of(List<StepRange> ranges, Scope scope) {
        return new StepRanges(Checks.given("ranges", ranges), scope);
    }

    @Override
    void check(StepRange range, Stream on) {
        range.check(on);
    }

    @Override
    String types(StepRange range) {
        return range.types();
    }

    @Override
    void addParts(int index, StepRange range) {
        add("gradient", index, range.gradient(), false);
        add("weight", index, range.weight(), true);
        add("master", index, range.master(), true);
        addState("first", index, range.first());
        addState("second", index, range.second());
        add("rate", index, range.rate(), false);
        add("share", index, range.share(), false);
    }

    private void addState(String name, int index, @Nullable StepState state) {
        if (state != null) {
            add(name, index, state.values(), true);
            add("scales of " + name, index, state.scales(), true);
        }
    }

    @Override
    long describe(StepRange range, MemorySegment structs, int index, long firstBlock) {
        MemorySegment struct = OpsStepRange.asSlice(structs, index);
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
        OpsStepRange.first_block(struct, firstBlock);
        OpsStepRange.weight_decay(struct, range.weightDecay());
        return range.gradient().count();
    }
}
