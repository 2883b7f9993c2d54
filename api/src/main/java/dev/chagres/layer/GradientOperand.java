package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.Transpose;
import org.jspecify.annotations.Nullable;

/**
 * The gradient of a linear layer's output: a tensor, or its copies in eight bits, with the sums of its columns if the casting kernel
 * computes them.
 *
 * <p>Threading: the device's thread.
 */
final class GradientOperand {
    private final LinearSites sites;
    private final QuantizedCopies copies;
    /** Null if a rank has all tokens of the gradient. */
    private final @Nullable GatheredCopies gathered;
    /** The gradient of this rank's tokens; null if its producer has cast it. */
    private @Nullable Tensor own;
    /** Null if products read eight bits. */
    private @Nullable Tensor whole;
    /** The quantizers of the copies; null if products read the tensor itself. */
    private @Nullable Quantizers quantizers;

    private @Nullable Tensor columnSums;

    GradientOperand(LinearSites sites) {
        this.sites = sites;
        copies = new QuantizedCopies(sites.gradient());
        LinearSplit split = sites.split();
        gathered = split.gathersGradient() ? split.gathering(sites.gradient(), copies) : null;
    }

    /**
     * Returns the amax of a gradient whose forward read {@code x}, 0 so far, which the kernel that computes the gradient raises; null if
     * backward needs none.
     */
    @Nullable
    Tensor takeAmax(Operand x, Pass pass) {
        Quantizers present = x.quantizers();
        if (present == null || present.recipe().backwardOverride() != BackwardOverride.NONE) {
            return null;
        }
        return present.at(sites.gradient()).scalesByAmax() ? FusedCast.zero(pass) : null;
    }

    /** Sets the gradient dy [T, out], and casts it if both forward and backward use eight bits of {@code x}. */
    void prepare(Tensor dy, Operand x, Pass pass) {
        prepare(dy, null, x, pass);
    }

    /**
     * Sets the gradient as {@link #prepare(Tensor, Operand, Pass)} does.
     *
     * @param amax the largest magnitude of dy, if the kernel that computed dy found it; null otherwise
     */
    void prepare(Tensor dy, @Nullable Tensor amax, Operand x, Pass pass) {
        own = dy;
        whole = null;
        quantizers = null;
        columnSums = null;
        Quantizers present = x.quantizers();
        if (present == null || present.recipe().backwardOverride() != BackwardOverride.NONE) {
            whole = sites.split().gatheredGradient(dy, pass);
            record(dy, pass);
            return;
        }
        quantizers = present;
        Scope temporary = pass.temporary();
        if (gathered != null) {
            gather(dy, amax, gathered, present, pass);
        } else if (sites.learnsBias() && present.at(sites.gradient()).scaling() == Scaling.TENSOR) {
            Tensor sums = temporary.tensor(dy.dtype(), dy.size(1));
            columnSums = sums;
            copies.castAndSumColumns(dy, amax, sums, present, temporary, pass);
        } else {
            copies.cast(dy, amax, present, temporary, sites.weight().isFrozen() ? null : temporary, pass);
        }
    }

    private void gather(Tensor dy, @Nullable Tensor amax, GatheredCopies gathering, Quantizers present, Pass pass) {
        Scope temporary = pass.temporary();
        Scope columnsIn = sites.weight().isFrozen() ? null : temporary;
        if (gathering.hasOneScale(present)) {
            gathering.gather(gathering.castOwn(dy, amax, present, temporary, pass), present, columnsIn, pass);
        } else {
            copies.cast(sites.split().gatheredGradient(dy, pass), null, present, temporary, columnsIn, pass);
        }
    }

    /**
     * Sets a gradient that was cast by the kernel that computed it.
     *
     * @param dy [T, out], T a multiple of 16; without columnwise data, which is made here
     * @param dtype of the sums of the columns
     * @param present the recipe's state that dy was cast by, and what forward read
     */
    void prepare(QuantizedTensor dy, DType dtype, Quantizers present, Pass pass) {
        own = null;
        whole = null;
        quantizers = present;
        columnSums = null;
        Scope temporary = pass.temporary();
        dy.allocateColumnwise(temporary);
        if (sites.learnsBias()) {
            Tensor sums = temporary.tensor(dtype, dy.columns());
            Transpose.fp8TransposeDbias(dy, sums, pass.stream());
            columnSums = sums;
        } else if (!sites.weight().isFrozen()) {
            Transpose.transpose(
                    Checks.given("rowwise", dy.rowwise()), Checks.given("columnwise", dy.columnwise()), pass.stream());
        }
        copies.set(dy);
    }

    /** If the pass calibrates, casts the gradient only for its amax: products read the gradient itself. */
    private void record(Tensor dy, Pass pass) {
        Quantizers recording = pass.isCalibrating() && dy.size(0) > 0 ? sites.covering(pass) : null;
        if (recording != null) {
            copies.cast(dy, null, recording, pass.temporary(), null, pass);
        }
    }

    /**
     * Allocates rowwise and columnwise data of a gradient [rows, out], for the kernel that computes the gradient to fill.
     *
     * @param sums [out], what that kernel writes the sums of the gradient's columns to; null where there is no bias
     * @return what that kernel fills, rows rounded up to a multiple of 16; null where {@link #prepare} casts the gradient
     */
    @Nullable
    QuantizedTensor takeCopies(long rows, @Nullable Tensor sums, Operand x, Pass pass) {
        Quantizers present = x.quantizers();
        // The kernel must not depend on which parameters are frozen, since the gradients' bits must not.
        if (present == null || !present.at(sites.gradient()).knowsScale()) {
            return null;
        }
        own = null;
        whole = null;
        quantizers = present;
        columnSums = sums;
        Scope temporary = pass.temporary();
        long columns = sites.weight().shape().size(0);
        QuantizedTensor both = copies.take(rows, columns, present, temporary, temporary);
        present.at(sites.gradient()).setScale(both, pass.recording());
        return both;
    }

    /** Returns whether the next cast of the gradient is measured. */
    boolean measures(Pass pass) {
        Quantizers present = quantizers;
        return present != null && present.measures(sites.gradient(), pass.recording());
    }

    /** Enqueues the measurement of the cast by the kernel that computed dy. */
    void measure(Tensor dy, Pass pass) {
        Quantizers present = Checks.given("quantizers", quantizers);
        present.at(sites.gradient()).measure(dy, copies.rowwise(), pass.stream());
    }

    /** Returns the tensor that products read where they read no eight bits. */
    Tensor whole() {
        return Checks.given("dy", whole);
    }

    /** Returns the gradient of this rank's tokens, over which it sums the bias's: all where it has no part of them. */
    Tensor own() {
        return Checks.given("dy", own);
    }

    /** Returns the recipe's state that the copies were made with, or null where products read the tensor itself. */
    @Nullable
    Quantizers quantizers() {
        return quantizers;
    }

    /** Returns whether products read eight bits. */
    boolean isQuantized() {
        return quantizers != null;
    }

    /** Returns the sums of the columns, in the tensor's type, or null where they were not made. */
    @Nullable
    Tensor columnSums() {
        return columnSums;
    }

    /** Returns the copy [T, C]. */
    QuantizedTensor rowwise() {
        return copies.rowwise();
    }

    /** Returns the tensor whose columnwise copy is the transpose. */
    QuantizedTensor columnwise() {
        return copies.columnwise();
    }
}
