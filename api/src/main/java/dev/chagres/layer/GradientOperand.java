package dev.chagres.layer;

import dev.chagres.QuantizedTensor;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.QuantizerSite;
import dev.chagres.recipe.Quantizers;
import org.jspecify.annotations.Nullable;

/**
 * The gradient of a product's output: a tensor, or its copies in eight bits, with the sums of its columns where the kernel that
 * casts makes them.
 *
 * <p>Threading: the device's thread.
 */
final class GradientOperand {
    private final QuantizerSite site;
    private final EightBitCopies copies;
    /** Null where its producer has cast it. */
    private @Nullable Tensor whole;
    /** The recipe's state that the copies were made with; null where products read the tensor itself. */
    private @Nullable Quantizers quantizers;

    private @Nullable Tensor columnSums;

    GradientOperand(QuantizerSite site) {
        this.site = site;
        copies = new EightBitCopies(site);
    }

    /** Takes the tensor as it is. */
    void set(Tensor dy) {
        whole = dy;
        quantizers = null;
        columnSums = null;
    }

    /** Casts the tensor for its magnitude alone: products read the tensor itself. */
    void record(Tensor dy, Quantizers present, Pass pass) {
        copies.cast(dy, null, present, pass.temporary(), null, pass);
    }

    /** Takes the rowwise copy; {@code amax}: the largest magnitude, null where it is not known. */
    void castRows(Tensor dy, @Nullable Tensor amax, Quantizers present, Pass pass) {
        set(dy);
        quantizers = present;
        copies.cast(dy, amax, present, pass.temporary(), null, pass);
    }

    /** Takes both copies; {@code amax}: the largest magnitude, null where it is not known. */
    void cast(Tensor dy, @Nullable Tensor amax, Quantizers present, Pass pass) {
        set(dy);
        quantizers = present;
        copies.cast(dy, amax, present, pass.temporary(), pass.temporary(), pass);
    }

    /**
     * Takes both copies and the sums of the columns, by one kernel; {@code amax}: the largest magnitude, null where it is not
     * known. Blocks are not scaled.
     */
    void castAndSumColumns(Tensor dy, @Nullable Tensor amax, Quantizers present, Pass pass) {
        set(dy);
        quantizers = present;
        Tensor sums = pass.temporary().tensor(dy.dtype(), dy.size(1));
        columnSums = sums;
        copies.castAndSumColumns(dy, amax, sums, present, pass.temporary(), pass);
    }

    /**
     * Takes memory for both copies of [rows, columns], and returns what the kernel fills that computes the gradient.
     *
     * @param sums what the kernel writes the sums of the columns to; null where it makes none
     */
    QuantizedTensor take(long rows, long columns, @Nullable Tensor sums, Quantizers present, Pass pass) {
        whole = null;
        quantizers = present;
        columnSums = sums;
        QuantizedTensor both = copies.take(rows, columns, present, pass.temporary(), pass.temporary());
        present.setScale(site, both, pass.recording());
        return both;
    }

    /** Returns the tensor itself. */
    Tensor whole() {
        return Checks.given("dy", whole);
    }

    /** Returns the recipe's state that the copies were made with, or null where products read the tensor itself. */
    @Nullable
    Quantizers quantizers() {
        return quantizers;
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
