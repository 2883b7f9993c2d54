package dev.chagres.ops;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.bindings.ops.OpsAdafactorRange;
import dev.chagres.internal.Checks;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * Whole matrices of an {@link AdafactorStep}; their addresses lie in a table on the device, which is written once.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsAdafactorRange} in {@code ops.h}.
 */
public final class AdafactorMatrices extends RangeTable<AdafactorMatrix> {
    private AdafactorMatrices(List<AdafactorMatrix> matrices, Scope scope) {
        super(matrices, scope, matrices.size() * OpsAdafactorRange.sizeof());
    }

    /**
     * Allocates the table and enqueues a copy into it. The tensors must keep their memory as long as steps use this.
     *
     * @param matrices at least one, at most 65535
     * @param scope allocates the table; its stream writes it
     * @throws IllegalArgumentException when there are none or too many, shapes, types or devices do not fit, or what is written shares memory
     */
    public static AdafactorMatrices of(List<AdafactorMatrix> matrices, Scope scope) {
        AdafactorRanges.ensureCountable("matrices", Checks.given("matrices", matrices));
        return new AdafactorMatrices(matrices, scope);
    }

    @Override
    void check(AdafactorMatrix matrix, Stream on) {
        matrix.check(on);
    }

    @Override
    String types(AdafactorMatrix matrix) {
        return "matrices of Adafactor";
    }

    @Override
    void addParts(int index, AdafactorMatrix matrix) {
        matrix.addTo(this, index, true);
    }

    @Override
    long describe(AdafactorMatrix matrix, MemorySegment structs, int index, long firstBlock) {
        describe(matrix, OpsAdafactorRange.asSlice(structs, index));
        return 0;
    }

    /** Writes what a struct has of a matrix. */
    static void describe(AdafactorMatrix matrix, MemorySegment struct) {
        OpsAdafactorRange.row_squares(struct, matrix.rowSums().address());
        OpsAdafactorRange.row_weights(struct, matrix.rowSums().address() + Float.BYTES * matrix.rows());
        OpsAdafactorRange.row_updates(struct, matrix.updateSums().address());
        OpsAdafactorRange.column_squares(struct, matrix.columnSums().address());
        OpsAdafactorRange.row(struct, Checks.addressOrNull(matrix.row()));
        OpsAdafactorRange.column(struct, matrix.column().address());
        OpsAdafactorRange.numbers(struct, matrix.numbers().address());
        OpsAdafactorRange.rate(struct, matrix.rate().address());
        OpsAdafactorRange.rows(struct, matrix.rows());
        OpsAdafactorRange.whole_columns(struct, matrix.columns());
    }
}
