package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.pass.SavedTensor;
import dev.chagres.recipe.Quantizers;
import org.jspecify.annotations.Nullable;

/**
 * The input of a product: a tensor, or its copies in eight bits. {@link LinearInput#prepare} fills it; the copy that forward reads is freed
 * with forward's call, copies for backward are kept.
 *
 * <p>Threading: the device's thread.
 */
final class Operand {
    private final SavedTensor whole;
    private final SavedTensor copy;
    private final SavedTensor scaleInverse;
    private boolean learns;
    /** Whether the tensor lies in temporary memory, so that backward must recompute it. */
    private boolean lent;

    private long rows;
    /** The quantizers of the copies; null if forward reads the tensor itself. */
    private @Nullable Quantizers quantizers;
    /** The rowwise copy, until the call that made it returns. */
    private @Nullable QuantizedTensor rowwise;

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

    /** Sets the tensor itself. */
    void set(Tensor x) {
        begin(x);
        whole.set(x);
    }

    /** Sets the copy that forward's product reads. */
    void set(Tensor x, QuantizedTensor newRowwise, Quantizers newQuantizers) {
        begin(x);
        rowwise = newRowwise;
        quantizers = newQuantizers;
    }

    /** Sets the copy that forward's product reads, of an input that its producer casts. */
    void set(long newRows, QuantizedTensor newRowwise, Quantizers newQuantizers) {
        begin(newRows);
        rowwise = newRowwise;
        quantizers = newQuantizers;
    }

    private void begin(Tensor x) {
        begin(x.size(0));
        learns = x.requiresGradient();
    }

    private void begin(long newRows) {
        learns = false;
        lent = false;
        rows = newRows;
        quantizers = null;
        rowwise = null;
        whole.clear();
        copy.clear();
        scaleInverse.clear();
    }

    /** Keeps the tensor itself for backward, beside the copy that forward reads. */
    void keepWhole(Tensor x) {
        lent = false;
        whole.set(x);
    }

    /** Says that the tensor lies in temporary memory. */
    void lend() {
        lent = true;
    }

    /** Returns whether {@link #keepWhole} must be called before backward reads the tensor itself. */
    boolean isLent() {
        return lent;
    }

    /** Keeps the columnwise copy, for the weight's gradient. */
    void keepColumnwise(QuantizedTensor from) {
        keep(from, from.columnwise(), from.columnwiseScaleInverse());
    }

    /** Keeps the rowwise copy, which backward dequantizes. */
    void keepRowwise(QuantizedTensor from) {
        keep(from, from.rowwise(), from.rowwiseScaleInverse());
    }

    private void keep(QuantizedTensor from, @Nullable Tensor data, @Nullable Tensor scales) {
        copy.set(Checks.given("copy", data));
        scaleInverse.set(Checks.given("scaleInverse", scales));
        scaling = from.scaling();
        copyType = from.dtype();
        copyRows = from.rows();
        copyColumns = from.columns();
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

    /** Returns the kept columnwise copy. */
    QuantizedTensor columnwise(Scope scope) {
        return scope.quantized(scaling, copyType, copyRows, copyColumns).columnwise(copy.get(), scaleInverse.get());
    }

    /** Returns the kept rowwise copy. */
    QuantizedTensor keptRowwise(Scope scope) {
        return scope.quantized(scaling, copyType, copyRows, copyColumns).rowwise(copy.get(), scaleInverse.get());
    }
}
