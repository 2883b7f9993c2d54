package dev.chagres.layer;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Quantizer;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.Transpose;
import org.jspecify.annotations.Nullable;

/**
 * The eight-bit copies of all tokens [T, C] of sequence-parallel ranks. If a tensor has one scale, each rank casts its own tokens with the
 * scale of all ranks, the bytes are gathered, and the transpose is made from the gathered bytes.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code gather_along_first_dim}.
 */
final class GatheredCopies {
    private final QuantizerSite site;
    private final TensorParallel ranks;
    private final QuantizedCopies copies;

    /** {@code copies}: receives the copies of all tokens. */
    GatheredCopies(QuantizerSite site, TensorParallel ranks, QuantizedCopies copies) {
        this.site = site;
        this.ranks = ranks;
        this.copies = copies;
    }

    /** Returns whether a tensor has one scale, so that {@link #castOwn} and {@link #gather} make its copies. */
    boolean hasOneScale(Quantizers quantizers) {
        return quantizers.at(site).scaling() == Scaling.TENSOR;
    }

    /** Returns whether blocks lie within a row, so that {@link #gatherBlockRows} and {@link #blockColumns} make its copies. */
    boolean hasScalesOfRows(Quantizers quantizers) {
        return quantizers.at(site).scaling() == Scaling.BLOCK_1D;
    }

    /**
     * Enqueues the cast of this rank's tokens. A scale that is computed from the amax uses that of all ranks' tokens.
     *
     * @param x [T / N, C]
     * @param amax the largest magnitude of {@code x}, if the kernel that computed it found that, reduced here; null otherwise
     * @return [T / N, C] in {@code memory}, rowwise alone
     */
    QuantizedTensor castOwn(Tensor x, @Nullable Tensor amax, Quantizers quantizers, Scope memory, Pass pass) {
        Quantizer quantizer = quantizers.at(site);
        Stream stream = pass.stream();
        QuantizedTensor own = quantizer.empty(memory, x.size(0), x.size(1)).allocateRowwise(memory);
        if (quantizer.scalesByAmax()) {
            if (amax == null) {
                quantizer.findAmax(x, own, pass.temporary(), stream);
            } else {
                own.amax(amax);
            }
            ranks.max(Checks.given("amax", own.amax()), stream);
        }
        quantizer.cast(x, own, pass.recording(), pass.temporary(), stream);
        return own;
    }

    /**
     * Enqueues the gather of the copies of all tokens from the ranks' casts.
     *
     * @param own [T / N, C], rowwise
     * @param columnsIn holds the transpose; null where none is wanted
     */
    void gather(QuantizedTensor own, Quantizers quantizers, @Nullable Scope columnsIn, Pass pass) {
        Quantizer quantizer = quantizers.at(site);
        Scope temporary = pass.temporary();
        long rows = own.rows() * ranks.size();
        Tensor part = Checks.given("rowwise", own.rowwise());
        Tensor scaleInverse = Checks.given("scaleInverse", own.rowwiseScaleInverse());
        Tensor filled = columnsIn == null
                ? temporary.tensor(part.dtype(), rows, own.columns())
                : QuantizedCopies.zeroFilled(temporary, part.dtype(), rows, own.columns(), pass.stream());
        Tensor all = QuantizedCopies.first(temporary, filled, rows);
        ranks.gather(part, all, pass.stream());
        QuantizedTensor rowwise =
                quantizer.empty(temporary, rows, own.columns()).rowwise(all, scaleInverse);
        if (columnsIn == null) {
            copies.set(rowwise, null);
            return;
        }
        QuantizedTensor both = quantizer
                .empty(temporary, filled.size(0), own.columns())
                .rowwise(filled, scaleInverse)
                .allocateColumnwise(columnsIn);
        Transpose.transpose(filled, Checks.given("columnwise", both.columnwise()), pass.stream());
        copies.set(rowwise, both);
    }

    /**
     * Enqueues the gather of the rowwise data of all tokens with block scales.
     *
     * @param own [T / N, C], rowwise, T / N a multiple of {@link QuantizedCopies#STEP}
     */
    void gatherBlockRows(QuantizedTensor own, Quantizers quantizers, Pass pass) {
        Scope temporary = pass.temporary();
        QuantizedTensor all = quantizers
                .at(site)
                .empty(temporary, own.rows() * ranks.size(), own.columns())
                .allocateRowwise(temporary);
        ranks.gather(Checks.given("rowwise", own.rowwise()), Checks.given("rowwise", all.rowwise()), pass.stream());
        gatherSideBySide(
                Checks.given("scaleInverse", own.rowwiseScaleInverse()),
                Checks.given("scaleInverse", all.rowwiseScaleInverse()),
                pass);
        copies.set(all, null);
    }

    /**
     * Enqueues the gather of the columnwise data of all tokens with block scales, and returns it.
     *
     * @param own [T / N, C], columnwise, T / N a multiple of a block
     */
    QuantizedTensor blockColumns(QuantizedTensor own, Quantizers quantizers, Pass pass) {
        Scope temporary = pass.temporary();
        QuantizedTensor all = quantizers
                .at(site)
                .empty(temporary, own.rows() * ranks.size(), own.columns())
                .allocateColumnwise(temporary);
        gatherSideBySide(
                Checks.given("columnwise", own.columnwise()), Checks.given("columnwise", all.columnwise()), pass);
        ranks.gather(
                Checks.given("scaleInverse", own.columnwiseScaleInverse()),
                Checks.given("scaleInverse", all.columnwiseScaleInverse()),
                pass.stream());
        return all;
    }

    /** Enqueues {@code whole[i, r P + j] = part of rank r [i, j]}, for parts of P columns. */
    private void gatherSideBySide(Tensor part, Tensor whole, Pass pass) {
        Scope temporary = pass.temporary();
        long rows = part.size(0);
        long columns = part.size(1);
        Tensor parts = temporary.tensor(part.dtype(), ranks.size(), rows, columns);
        ranks.gather(part, parts, pass.stream());
        Transpose.swapFirstDims(parts, temporary.view(whole, 0, rows, ranks.size(), columns), pass.stream());
    }
}
