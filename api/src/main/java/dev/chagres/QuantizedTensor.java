package dev.chagres;

import dev.chagres.internal.memory.ScopeState;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * A matrix of FP8 numbers with their scales: element q has the value {@code q scaleInverse}.
 *
 * <p>It has two copies of its data or one: <i>rowwise</i>, the matrix [rows, columns] as it is, and <i>columnwise</i>, its transpose
 * [columns, rows], which products on Hopper read when they sum over rows. Each copy has a scale inverse; with {@link Scaling#TENSOR} both
 * share one. For quantizing with {@link Scaling#TENSOR} there are {@code scale}, which is read, and optionally {@code amax}, which receives
 * the largest magnitude of the quantized values.
 *
 * <p>It owns no memory: its parts are tensors. A {@link Scope} hands it out without parts; it can be used while that scope is open and all
 * of its parts are live. If one copy must live longer than the other, also set it in a quantized tensor of the scope that lives longer.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="quantizedTensor"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code NVTETensor} in TE's {@code transformer_engine.h}.
 */
public final class QuantizedTensor {
    private final ScopeState scope;
    private final QuantizedParts parts;
    private Scaling scaling = Scaling.TENSOR;
    private DType dtype = DType.FLOAT8_E4M3;
    private long rows;
    private long columns;
    /** The scope's epoch when it handed this out last. */
    private int epoch = -1;

    QuantizedTensor(ScopeState scope, QuantizedHandles handles) {
        this.scope = scope;
        parts = new QuantizedParts(scope.device(), handles);
    }

    /** Gives the tensor scaling, type and shape for its scope's present epoch; its parts are absent. */
    void issue(Scaling newScaling, DType newType, long newRows, long newColumns) {
        scaling = newScaling;
        dtype = newType;
        rows = newRows;
        columns = newColumns;
        parts.clear();
        epoch = scope.epoch();
    }

    /** Closes the tensor and destroys TE's handles. */
    void destroy() {
        epoch = -1;
        parts.destroyHandles();
    }

    /** Returns how many elements share a scale. */
    public Scaling scaling() {
        return scaling;
    }

    /** Returns the type of the elements. */
    public DType dtype() {
        return dtype;
    }

    /** Returns the number of rows of the matrix. */
    public long rows() {
        return rows;
    }

    /** Returns the number of columns of the matrix. */
    public long columns() {
        return columns;
    }

    /** Returns the matrix [rows, columns], or null when it is absent. */
    public @Nullable Tensor rowwise() {
        return parts.get(QuantizedParts.ROWWISE);
    }

    /** Returns the scale inverse of the rowwise data, or null when it is absent. */
    public @Nullable Tensor rowwiseScaleInverse() {
        return parts.get(QuantizedParts.ROWWISE_SCALE_INVERSE);
    }

    /** Returns the transpose [columns, rows], or null when it is absent. */
    public @Nullable Tensor columnwise() {
        return parts.get(QuantizedParts.COLUMNWISE);
    }

    /** Returns the scale inverse of the columnwise data, or null when it is absent. */
    public @Nullable Tensor columnwiseScaleInverse() {
        return parts.get(QuantizedParts.COLUMNWISE_SCALE_INVERSE);
    }

    /** Returns the factor that quantizing applies, or null when it is absent. */
    public @Nullable Tensor scale() {
        return parts.get(QuantizedParts.SCALE);
    }

    /** Returns the tensor that receives the largest magnitude, or null when it is absent. */
    public @Nullable Tensor amax() {
        return parts.get(QuantizedParts.AMAX);
    }

    /**
     * Sets the matrix and its scale inverse, and returns this.
     *
     * @param data [rows, columns], in this type
     * @param scaleInverse FLOAT32, of {@link Scaling#scaleInverseShape scaleInverseShape(rows, columns)}
     * @throws IllegalArgumentException when shape, type or device of one does not fit
     */
    public QuantizedTensor rowwise(Tensor data, Tensor scaleInverse) {
        ensureIssued();
        parts.ensureMatrix("data", data, dtype, rows, columns);
        parts.ensureScaleInverse(scaling, scaleInverse, rows, columns);
        parts.set(QuantizedParts.ROWWISE, data);
        parts.set(QuantizedParts.ROWWISE_SCALE_INVERSE, scaleInverse);
        return this;
    }

    /**
     * Sets the transpose and its scale inverse, and returns this.
     *
     * @param dataTransposed [columns, rows], in this type
     * @param scaleInverse FLOAT32, of {@link Scaling#scaleInverseShape scaleInverseShape(columns, rows)}; with {@link
     *     Scaling#TENSOR} the one of the rowwise data
     * @throws IllegalArgumentException when shape, type or device of one does not fit
     */
    public QuantizedTensor columnwise(Tensor dataTransposed, Tensor scaleInverse) {
        ensureIssued();
        parts.ensureMatrix("dataTransposed", dataTransposed, dtype, columns, rows);
        parts.ensureScaleInverse(scaling, scaleInverse, columns, rows);
        parts.set(QuantizedParts.COLUMNWISE, dataTransposed);
        parts.set(QuantizedParts.COLUMNWISE_SCALE_INVERSE, scaleInverse);
        return this;
    }

    /**
     * Allocates the matrix and its scale inverse from {@code memory}, and returns this. With {@link Scaling#TENSOR} the scale inverse of
     * columnwise data that was set before serves both.
     *
     * @throws IllegalArgumentException when the scope is another device's
     */
    public QuantizedTensor allocateRowwise(Scope memory) {
        Tensor data = Given.given("memory", memory).tensor(dtype, rows, columns);
        return rowwise(data, scaleInverse(memory, columnwiseScaleInverse(), rows, columns));
    }

    /**
     * Allocates the transpose and its scale inverse from {@code memory}, and returns this. With {@link Scaling#TENSOR} the scale inverse of
     * rowwise data that was set before serves both.
     *
     * @throws IllegalArgumentException when the scope is another device's
     */
    public QuantizedTensor allocateColumnwise(Scope memory) {
        Tensor dataTransposed = Given.given("memory", memory).tensor(dtype, columns, rows);
        return columnwise(dataTransposed, scaleInverse(memory, rowwiseScaleInverse(), columns, rows));
    }

    private Tensor scaleInverse(Scope memory, @Nullable Tensor shared, long outer, long inner) {
        if (scaling == Scaling.TENSOR) {
            return shared == null ? memory.tensor(DType.FLOAT32, 1) : shared;
        }
        return memory.tensor(
                DType.FLOAT32, scaling.scaleInverseRows(outer, inner), scaling.scaleInverseColumns(outer, inner));
    }

    /**
     * Sets the factor that quantizing applies, and returns this.
     *
     * @param scale FLOAT32 [1]
     * @throws IllegalArgumentException when its shape, type or device does not fit, or blocks have scales of their own
     */
    public QuantizedTensor scale(Tensor scale) {
        ensureIssued();
        ensureNoBlocks("scale");
        parts.ensureOne("scale", scale);
        parts.set(QuantizedParts.SCALE, scale);
        return this;
    }

    /**
     * Sets the tensor that receives the largest magnitude of quantized values, and returns this. Quantizing leaves a larger number there
     * unchanged.
     *
     * @param amax FLOAT32 [1]
     * @throws IllegalArgumentException when its shape, type or device does not fit, or blocks have scales of their own
     */
    public QuantizedTensor amax(Tensor amax) {
        ensureIssued();
        ensureNoBlocks("amax");
        parts.ensureOne("amax", amax);
        parts.set(QuantizedParts.AMAX, amax);
        return this;
    }

    /** Returns whether the tensor may be used: its scope has handed it out since its last restart, and its parts live. */
    public boolean isLive() {
        return epoch == scope.epoch() && parts.areLive();
    }

    /** Returns CUDA's number of the device that holds the tensor. */
    public int deviceIndex() {
        return scope.device().index();
    }

    /**
     * Returns Transformer Engine's handle ({@code NVTETensor}) with the present parts, for calls through the bindings.
     *
     * @throws IllegalStateException when the tensor or one of its parts is closed
     * @throws WrongThreadException when the device belongs to another thread
     */
    public MemorySegment handle() {
        ensureIssued();
        parts.ensureUsable(this);
        return parts.handle(scaling, dtype);
    }

    private void ensureIssued() {
        scope.device().ensureCurrent();
        if (epoch != scope.epoch()) {
            throw new IllegalStateException(this + " of " + scope + " is closed: "
                    + (scope.isLive() ? "the scope was restarted since" : "so is its scope"));
        }
    }

    private void ensureNoBlocks(String argument) {
        if (scaling != Scaling.TENSOR) {
            throw new IllegalArgumentException(argument + ": expected none, for quantizing by " + scaling
                    + " computes the scale of each block; leave it out");
        }
    }

    @Override
    public String toString() {
        return "QuantizedTensor " + dtype + "[" + rows + ", " + columns + "] " + scaling;
    }
}
