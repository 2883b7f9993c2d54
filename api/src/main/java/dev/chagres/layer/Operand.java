package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.adapter.LowRankAdapter;
import dev.chagres.internal.Checks;
import dev.chagres.pass.SavedTensor;
import dev.chagres.recipe.Quantizers;
import org.jspecify.annotations.Nullable;

/**
 * The input of a product: a tensor, or its copies in eight bits. {@link QuantizedInput#finish} fills it; the copy that forward reads is freed
 * with forward's call, what backward reads is kept.
 *
 * <p>Threading: the device's thread.
 */
final class Operand {
    /** What is kept for backward. */
    enum Kept {
        NOTHING,
        WHOLE,
        ROWWISE,
        COLUMNWISE
    }

    private final SavedTensor whole;
    private final SavedTensor copy;
    private final SavedTensor scaleInverse;
    /** What the product's adapters keep. */
    final LowRankAdapter.Saved adapted = new LowRankAdapter.Saved();

    private boolean learns;
    /** Whether the tensor lies in temporary memory, so that backward must recompute it. */
    private boolean lent;

    private long rows;
    /** The quantizers of the copies; null if forward reads the tensor itself. */
    private @Nullable Quantizers quantizers;
    /** The rowwise copy, until the call that made it returns. */
    private @Nullable QuantizedTensor rowwise;

    private boolean isColumnwise;
    private Scaling scaling = Scaling.TENSOR;
    private DType copyType = DType.FLOAT8_E4M3;
    private long copyRows;
    private long copyColumns;

    /**
     * Makes an empty one.
     *
     * @param what names the tensor in errors, such as {@code the input}
     */
    Operand(String what) {
        whole = new SavedTensor(what);
        copy = new SavedTensor(what + " in eight bits");
        scaleInverse = new SavedTensor("the scale inverse of " + what);
    }

    /** Sets the tensor itself, for forward and backward. */
    void set(Tensor x) {
        set(x, x.size(0), null, null);
        whole.set(x);
    }

    /**
     * Sets the copy that forward's product reads.
     *
     * @param x null if its producer wrote the copy alone
     */
    void set(
            @Nullable Tensor x,
            long newRows,
            @Nullable QuantizedTensor newRowwise,
            @Nullable Quantizers newQuantizers) {
        learns = x != null && x.requiresGradient();
        lent = false;
        rows = newRows;
        rowwise = newRowwise;
        quantizers = newQuantizers;
        whole.clear();
        copy.clear();
        scaleInverse.clear();
    }

    /** Keeps the tensor itself for backward, beside the copy that forward reads. */
    void keepWhole(Tensor x) {
        lent = false;
        whole.set(x);
    }

    /** Keeps the columnwise copy, for the weight's gradient; or the rowwise one, which backward dequantizes or gathers. */
    void keep(QuantizedTensor from, Kept form) {
        isColumnwise = form == Kept.COLUMNWISE;
        copy.set(Checks.given("copy", isColumnwise ? from.columnwise() : from.rowwise()));
        scaleInverse.set(Checks.given(
                "scaleInverse", isColumnwise ? from.columnwiseScaleInverse() : from.rowwiseScaleInverse()));
        scaling = from.scaling();
        copyType = from.dtype();
        copyRows = from.rows();
        copyColumns = from.columns();
    }

    /** Says that the tensor lies in temporary memory. */
    void lend() {
        lent = true;
    }

    /** Returns whether {@link #keepWhole} must be called before backward reads the tensor itself. */
    boolean isLent() {
        return lent;
    }

    /** Returns the recipe's state that the copies were made with, or null where forward reads the tensor itself. */
    @Nullable
    Quantizers quantizers() {
        return quantizers;
    }

    /** Returns whether forward reads a copy in eight bits. */
    boolean isQuantized() {
        return quantizers != null;
    }

    /** Returns whether the gradient of the tensor is wanted. */
    boolean learns() {
        return learns;
    }

    /** Returns the tensor's rows, without what copies are filled up with. */
    long rows() {
        return rows;
    }

    /** Returns the tensor itself. */
    Tensor whole() {
        return whole.get();
    }

    /** Returns the copy that forward's product reads. */
    QuantizedTensor rowwise() {
        return Checks.given("rowwise", rowwise);
    }

    /** Returns the copy that was kept. */
    QuantizedTensor kept(Scope scope) {
        QuantizedTensor empty = scope.quantized(scaling, copyType, copyRows, copyColumns);
        return isColumnwise
                ? empty.columnwise(copy.get(), scaleInverse.get())
                : empty.rowwise(copy.get(), scaleInverse.get());
    }
}
