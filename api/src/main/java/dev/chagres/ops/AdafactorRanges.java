package dev.chagres.ops;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.bindings.ops.OpsAdafactorRange;
import dev.chagres.internal.Checks;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * Ranges that an {@link AdafactorStep} updates; their addresses lie in a table on the device, which is written once.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsAdafactorRange} in {@code ops.h}.
 */
public final class AdafactorRanges extends RangeTable<AdafactorRange> {
    private static final int MOST = 65535;

    private AdafactorRanges(List<AdafactorRange> ranges, Scope scope) {
        super(ranges, scope, ranges.size() * OpsAdafactorRange.sizeof());
    }

    /**
     * Allocates the table and enqueues a copy into it. The tensors of the ranges must keep their memory as long as steps use this.
     *
     * @param ranges at least one, at most 65535, each of another matrix; weights and masters of the same types in all
     * @param scope allocates the table; its stream writes it
     * @throws IllegalArgumentException when there are none or too many, shapes, types or devices do not fit, or what is written shares memory
     */
    public static AdafactorRanges of(List<AdafactorRange> ranges, Scope scope) {
        ensureCountable("ranges", Checks.given("ranges", ranges));
        return new AdafactorRanges(ranges, scope);
    }

    static void ensureCountable(String name, List<?> all) {
        if (all.size() > MOST) {
            throw new IllegalArgumentException(name + ": expected at most " + MOST + ", got " + all.size());
        }
    }

    @Override
    void check(AdafactorRange range, Stream on) {
        range.check(on);
    }

    @Override
    String types(AdafactorRange range) {
        return range.types();
    }

    @Override
    void addParts(int index, AdafactorRange range) {
        range.matrix().addTo(this, index, false);
        add("gradient", index, range.gradient(), false);
        add("weight", index, range.weight(), true);
        add("master", index, range.master(), true);
        add("mean", index, range.mean(), true);
        add("rowMap", index, range.place().rowMap(), false);
        add("columnMap", index, range.place().columnMap(), false);
    }

    @Override
    long describe(AdafactorRange range, MemorySegment structs, int index, long firstBlock) {
        MemorySegment struct = OpsAdafactorRange.asSlice(structs, index);
        AdafactorMatrices.describe(range.matrix(), struct);
        OpsAdafactorRange.gradient(struct, range.gradient().address());
        OpsAdafactorRange.weight(struct, range.weight().address());
        OpsAdafactorRange.master(struct, Checks.addressOrNull(range.master()));
        OpsAdafactorRange.mean(struct, Checks.addressOrNull(range.mean()));
        OpsAdafactorRange.row_map(struct, Checks.addressOrNull(range.place().rowMap()));
        OpsAdafactorRange.column_map(struct, Checks.addressOrNull(range.place().columnMap()));
        OpsAdafactorRange.first(struct, range.place().first());
        OpsAdafactorRange.count(struct, range.gradient().count());
        OpsAdafactorRange.columns(struct, range.place().columns());
        OpsAdafactorRange.weight_decay(struct, range.weightDecay());
        return range.gradient().count();
    }
}
