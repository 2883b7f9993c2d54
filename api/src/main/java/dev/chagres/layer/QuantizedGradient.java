package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.Transpose;
import org.jspecify.annotations.Nullable;

/**
 * The gradient of a linear layer's output on its way from its producer to the layer's products, as {@link QuantizedInput} is of the input: a
 * tensor, or its copies in eight bits, with the sums of its columns if the casting kernel computes them.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizedGradient {
    private final LinearSites sites;
    private final QuantizedCopies copies;
    private @Nullable Target open;
    /** The gradient of this rank's tokens; null if its producer has cast it. */
    private @Nullable Tensor own;
    /** Null if products read eight bits. */
    private @Nullable Tensor whole;
    /** The quantizers of the copies; null if products read the tensor itself. */
    private @Nullable Quantizers quantizers;

    private @Nullable Tensor columnSums;

    QuantizedGradient(LinearSites sites) {
        this.sites = sites;
        LinearSplit split = sites.split();
        copies = new QuantizedCopies(sites.gradient(), split.gathersGradient() ? split.ranks() : TensorParallel.none());
    }

    /**
     * Says what the kernel writes that computes the gradient [rows, out] of an output whose forward read {@code x}, and allocates it.
     *
     * @param casts whether that kernel can cast the gradient and, where there is a bias, sum its columns into {@link #columnSums}
     * @param findsAmax whether it can compute the amax
     */
    Target begin(long rows, DType dtype, boolean casts, boolean findsAmax, Operand x, Pass pass) {
        Quantizers present = casting(x);
        long columns = sites.weight().shape().size(0);
        Scope temporary = pass.temporary();
        // The kernel must not depend on which parameters are frozen, since the gradients' bits must not.
        Target target = casts ? copies.quantized(rows, columns, present, temporary, temporary, pass) : null;
        columnSums = target == null || sites.bias() == null ? null : temporary.tensor(dtype, columns);
        if (target == null) {
            target = copies.plain(temporary.tensor(dtype, rows, columns), findsAmax, present, pass);
        } else if (sites.adapter() != null || copies.measures(present, pass)) {
            target.with(temporary.tensor(dtype, rows, columns));
        }
        open = target;
        return target;
    }

    /** Makes of what the latest target has received what products read. */
    void finish(Operand x, Pass pass) {
        Target target = Checks.given("target", open);
        if (target instanceof Target.Quantized) {
            Quantizers present = Checks.given("quantizers", x.quantizers());
            set(sites.adapter() == null ? null : target.tensor(), null, present, columnSums);
            copies.measure(target.tensorOrNull(), present, pass);
        } else {
            finish(target.tensor(), target.amax(), x, pass);
        }
    }

    /** Makes of the gradient dy [T, out] what products read: casts it if both forward and backward use eight bits of {@code x}. */
    void finish(Tensor dy, Operand x, Pass pass) {
        finish(dy, null, x, pass);
    }

    private void finish(Tensor dy, @Nullable Tensor amax, Operand x, Pass pass) {
        Quantizers present = casting(x);
        if (present == null) {
            set(dy, sites.split().gatheredGradient(dy, pass), null, null);
            Quantizers recording = pass.isCalibrating() && dy.size(0) > 0 ? sites.covering(pass) : null;
            if (recording != null) {
                // Only for the amax: products read the gradient itself.
                copies.cast(dy, null, null, recording, pass.temporary(), null, pass);
            }
            return;
        }
        Scope temporary = pass.temporary();
        Scope columnsIn = sites.weight().isFrozen() ? null : temporary;
        Tensor sums = null;
        if (copies.isGathered() && copies.hasOneScale(present)) {
            copies.gather(copies.castOwn(dy, amax, present, temporary, pass), present, columnsIn, pass);
        } else if (!copies.isGathered() && sites.learnsBias() && copies.hasOneScale(present)) {
            sums = temporary.tensor(dy.dtype(), dy.size(1));
            copies.cast(dy, amax, sums, present, temporary, temporary, pass);
        } else {
            copies.cast(sites.split().gatheredGradient(dy, pass), amax, null, present, temporary, columnsIn, pass);
        }
        set(dy, null, present, sums);
    }

    /**
     * Makes of a gradient that attention has cast what products read.
     *
     * @param dy [T, out], T a multiple of 16; without columnwise data, which is made here
     * @param dtype of the sums of the columns
     * @param present the recipe's state that dy was cast by, and what forward read
     */
    void finish(QuantizedTensor dy, DType dtype, Quantizers present, Pass pass) {
        Scope temporary = pass.temporary();
        dy.allocateColumnwise(temporary);
        Tensor sums = null;
        if (sites.learnsBias()) {
            sums = temporary.tensor(dtype, dy.columns());
            Transpose.fp8TransposeDbias(dy, sums, pass.stream());
        } else if (!sites.weight().isFrozen()) {
            Transpose.transpose(
                    Checks.given("rowwise", dy.rowwise()), Checks.given("columnwise", dy.columnwise()), pass.stream());
        }
        copies.set(dy);
        set(null, null, present, sums);
    }

    /** Returns the recipe's state where backward computes in eight bits what forward computed of {@code x}, or null. */
    private static @Nullable Quantizers casting(Operand x) {
        Quantizers present = x.quantizers();
        return present == null || present.recipe().backwardOverride() != BackwardOverride.NONE ? null : present;
    }

    private void set(
            @Nullable Tensor newOwn, @Nullable Tensor newWhole, @Nullable Quantizers present, @Nullable Tensor sums) {
        own = newOwn;
        whole = newWhole;
        quantizers = present;
        columnSums = sums;
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
