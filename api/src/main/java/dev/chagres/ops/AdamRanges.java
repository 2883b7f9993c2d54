package dev.chagres.ops;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.OpsAdamRange;
import dev.chagres.internal.Checks;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * Ranges that a step of {@link Adam} updates in one kernel; their addresses lie in a table on the device, which is written once.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsAdamRange} in {@code ops.h}; TE's {@code multi_tensor_apply}.
 */
public final class AdamRanges extends RangeTable<AdamRange> {
    private AdamRanges(List<AdamRange> ranges, Scope scope) {
        super(ranges, scope, ranges.size() * OpsAdamRange.sizeof());
    }

    /**
     * Allocates the table and enqueues a copy into it. The tensors of the ranges must keep their memory as long as steps use this.
     *
     * @param ranges at least one; gradients, weights, moments and masters of the same types in all
     * @param scope allocates the table; its stream writes it
     * @throws IllegalArgumentException when there is no range, shapes, types or devices do not fit, or what is written shares memory
     */
    public static AdamRanges of(List<AdamRange> ranges, Scope scope) {
        return new AdamRanges(Checks.given("ranges", ranges), scope);
    }

    @Override
    void check(AdamRange range, Stream on) {
        range.check(on);
    }

    @Override
    String types(AdamRange range) {
        Tensor master = range.master();
        return "gradients of " + range.gradient().dtype() + ", weights of "
                + range.weight().dtype() + ", moments of " + range.mean().dtype()
                + (master == null ? "" : ", masters of " + master.dtype());
    }

    @Override
    void addParts(int index, AdamRange range) {
        add("gradient", index, range.gradient(), false);
        add("weight", index, range.weight(), true);
        add("mean", index, range.mean(), true);
        add("square", index, range.square(), true);
        add("master", index, range.master(), true);
        add("rate", index, range.rate(), false);
    }

    @Override
    long describe(AdamRange range, MemorySegment structs, int index, long firstBlock) {
        MemorySegment struct = OpsAdamRange.asSlice(structs, index);
        OpsAdamRange.gradient(struct, range.gradient().address());
        OpsAdamRange.weight(struct, range.weight().address());
        OpsAdamRange.mean(struct, range.mean().address());
        OpsAdamRange.square(struct, range.square().address());
        OpsAdamRange.master(struct, Checks.addressOrNull(range.master()));
        OpsAdamRange.rate(struct, range.rate().address());
        OpsAdamRange.count(struct, range.gradient().count());
        OpsAdamRange.first_block(struct, firstBlock);
        OpsAdamRange.weight_decay(struct, range.weightDecay());
        return range.gradient().count();
    }
}
