package dev.chagres.layer;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.QuantizerSite;
import dev.chagres.recipe.Quantizers;
import org.jspecify.annotations.Nullable;

/**
 * The copies of [T, C] in eight bits that products read: rowwise, and columnwise, the transpose. Columnwise T is rounded up to
 * a multiple of 16, for there a product sums over T; so it is rowwise where blocks are scaled, for their products store rows by
 * eights. What is filled up is 0.
 *
 * <p>Threading: the device's thread.
 */
final class EightBitCopies {
    /** The number of elements whose multiples eight-bit products sum over. */
    static final long STEP = 16;

    private final QuantizerSite site;
    private @Nullable QuantizedTensor rowwise;
    private @Nullable QuantizedTensor columnwise;

    EightBitCopies(QuantizerSite site) {
        this.site = site;
    }

    /**
     * Enqueues the casts.
     *
     * @param rowsIn holds the rowwise copy
     * @param columnsIn holds the columnwise copy; null where none is wanted
     */
    void cast(Tensor x, Quantizers quantizers, Scope rowsIn, @Nullable Scope columnsIn, Pass pass) {
        long rows = x.size(0);
        long filled = (rows + STEP - 1) / STEP * STEP;
        boolean blocks = quantizers.scaling(site) != Scaling.TENSOR;
        if (filled == rows || (columnsIn == null && !blocks)) {
            QuantizedTensor both = quantizers.empty(site, rowsIn, rows, x.size(1));
            cast(x, both, quantizers, rowsIn, columnsIn, pass);
            rowwise = both;
            columnwise = columnsIn == null ? null : both;
            return;
        }
        QuantizedTensor both = quantizers.empty(site, rowsIn, filled, x.size(1));
        cast(filledUp(x, filled, pass), both, quantizers, rowsIn, columnsIn, pass);
        columnwise = columnsIn == null ? null : both;
        rowwise = blocks
                ? both
                : quantizers
                        .empty(site, rowsIn, rows, x.size(1))
                        .rowwise(
                                rowsIn.view(Checks.given("rowwise", both.rowwise()), 0, rows, x.size(1)),
                                Checks.given("scaleInverse", both.rowwiseScaleInverse()));
    }

    private void cast(
            Tensor x,
            QuantizedTensor copies,
            Quantizers quantizers,
            Scope rowsIn,
            @Nullable Scope columnsIn,
            Pass pass) {
        // One scale inverse serves both copies of a tensor that has one: it lives as long as the columnwise copy.
        if (columnsIn != null) {
            copies.allocateColumnwise(columnsIn);
        }
        copies.allocateRowwise(rowsIn);
        quantizers.cast(site, x, copies, pass.recording(), pass.temporary(), pass.stream());
    }

    private static Tensor filledUp(Tensor x, long filled, Pass pass) {
        Stream stream = pass.stream();
        Scope temporary = pass.temporary();
        Tensor longer = temporary.tensor(x.dtype(), filled, x.size(1));
        temporary.view(longer, 0, x.size(0), x.size(1)).copyFrom(stream, x);
        temporary.view(longer, x.count(), filled - x.size(0), x.size(1)).zero(stream);
        return longer;
    }

    /** Returns the copy [T, C], where blocks are scaled with T rounded up. */
    QuantizedTensor rowwise() {
        return Checks.given("rowwise", rowwise);
    }

    /** Returns the tensor whose columnwise copy is the transpose, T rounded up. */
    QuantizedTensor columnwise() {
        return Checks.given("columnwise", columnwise);
    }
}
