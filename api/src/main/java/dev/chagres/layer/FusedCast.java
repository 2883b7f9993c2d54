package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedTensor;
import dev.chagres.recipe.Quantizers;
import org.jspecify.annotations.Nullable;

/**
 * The cast of a linear layer's input by the kernel that computes the input: that kernel fills the copies if their scale is known before, or
 * computes the amax from which the scale follows.
 *
 * <p>Threading: the device's thread.
 */
final class FusedCast {
    private final LinearSites sites;
    private final QuantizedCopies copies;
    /** The input that was offered last, until {@link LinearInput#prepare} uses the offer. */
    private final SavedTensor offered = new SavedTensor("the input that was cast where it was computed");

    private @Nullable Tensor offeredAmax;

    /** {@code copies}: those of the input; if no kernel fills them, {@link LinearInput} does. */
    FusedCast(LinearSites sites, QuantizedCopies copies) {
        this.sites = sites;
        this.copies = copies;
    }

    /** Returns whether the scale of the input follows from its largest magnitude in forward of {@code pass}. */
    boolean scalesByAmax(Pass pass) {
        Quantizers present = sites.quantizers(pass);
        return present != null && present.at(sites.input()).scalesByAmax();
    }

    /**
     * Returns the amax of the input [rows, in], 0 so far, which the kernel that computes the input raises; null if forward of {@code pass}
     * needs none.
     */
    @Nullable
    Tensor takeAmax(long rows, Pass pass) {
        return rows > 0 && scalesByAmax(pass) ? zero(pass) : null;
    }

    /** The same for an operand that is recomputed in backward. */
    @Nullable
    Tensor takeAmaxAgain(Operand operand, Pass pass) {
        Quantizers present = operand.quantizers();
        return present != null && present.at(sites.input()).scalesByAmax() ? zero(pass) : null;
    }

    /** Returns memory for an amax, 0 so far. */
    static Tensor zero(Pass pass) {
        Tensor amax = pass.temporary().tensor(DType.FLOAT32, 1);
        amax.zero(pass.stream());
        return amax;
    }

    /** Returns whether forward of {@code pass} lets the kernel that computes the input cast it. */
    boolean takesCopies(long rows, Pass pass) {
        Quantizers present = sites.quantizers(pass);
        return rows > 0 && present != null && present.at(sites.input()).knowsScale();
    }

    /**
     * Makes {@code operand} of an input [rows, in] that is cast by the kernel that computes it, in a layer that does not gather its input.
     *
     * @param keptIn holds what backward needs; null where no backward comes
     * @return what that kernel fills, with both copies rows rounded up to a multiple of 16; null where {@link
     *     LinearInput#prepare} casts the input
     */
    @Nullable
    QuantizedTensor takeCopies(long rows, Operand operand, @Nullable Scope keptIn, Pass pass) {
        Quantizers present = takesCopies(rows, pass) ? sites.quantizers(pass) : null;
        if (present == null) {
            return null;
        }
        boolean keeps = keptIn != null && !sites.weight().isFrozen();
        QuantizedTensor filled = take(rows, present, keeps ? keptIn : null, pass);
        operand.set(rows, copies.rowwise(), present);
        if (keeps) {
            operand.keepColumnwise(copies.columnwise());
        }
        return filled;
    }

    /** Makes {@code operand} of the same input again in backward, if {@link #takeCopies} did not keep it. */
    @Nullable
    QuantizedTensor takeCopiesAgain(long rows, Operand operand, Pass pass) {
        Quantizers present = operand.quantizers();
        if (present == null || !present.at(sites.input()).knowsScale()) {
            return null;
        }
        QuantizedTensor filled = take(rows, present, pass.temporary(), pass);
        operand.keepColumnwise(copies.columnwise());
        return filled;
    }

    /**
     * Allocates what the kernel that computes x fills: the copies, so that x itself is not read, or an amax. {@link LinearInput#prepare} of
     * x uses it.
     *
     * @return copies with a scale; or one without parts but amax; null where {@link LinearInput#prepare} needs x alone
     */
    @Nullable
    QuantizedTensor offer(Tensor x, Pass pass) {
        offered.clear();
        Quantizers present = x.size(0) > 0 ? sites.quantizers(pass) : null;
        if (present == null) {
            return null;
        }
        offeredAmax = takeAmax(x.size(0), pass);
        if (offeredAmax != null) {
            offered.set(x);
            return present.at(sites.input())
                    .empty(pass.temporary(), x.size(0), x.size(1))
                    .amax(offeredAmax);
        }
        if (!present.at(sites.input()).knowsScale()) {
            return null;
        }
        offered.set(x);
        boolean keeps = pass.isSaving() && !sites.weight().isFrozen();
        return take(x.size(0), present, keeps ? pass.kept() : null, pass);
    }

    /** Returns whether {@link #offer} of x has given something, and nobody has taken it. */
    boolean isOffered(Tensor x) {
        return offered.isOf(x);
    }

    /** Ends the offer, and returns the amax; null if the kernel has filled the copies. */
    @Nullable
    Tensor takeOffer() {
        Tensor amax = offeredAmax;
        offered.clear();
        offeredAmax = null;
        return amax;
    }

    /** {@code columnsIn}: holds what backward needs; for a gathered input the rowwise data. */
    private QuantizedTensor take(long rows, Quantizers present, @Nullable Scope columnsIn, Pass pass) {
        long columns = sites.weight().shape().size(1);
        boolean gathers = sites.split().gathersInput();
        Scope rowsIn = gathers && columnsIn != null ? columnsIn : pass.temporary();
        QuantizedTensor filled = copies.take(rows, columns, present, rowsIn, gathers ? null : columnsIn);
        present.at(sites.input()).setScale(filled, pass.recording());
        return filled;
    }
}
