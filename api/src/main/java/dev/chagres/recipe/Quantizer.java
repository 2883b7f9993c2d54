package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.te.Cast;
import org.jspecify.annotations.Nullable;

/**
 * Casts the tensors of one place in a model to eight bits, as a recipe says.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code Quantizer}.
 */
abstract sealed class Quantizer permits DelayedQuantizer, CurrentQuantizer, BlockQuantizer {
    private final Scaling scaling;
    private final DType dtype;

    Quantizer(Scaling scaling, DType dtype) {
        this.scaling = scaling;
        this.dtype = dtype;
    }

    final Scaling scaling() {
        return scaling;
    }

    final DType dtype() {
        return dtype;
    }

    /** Hands out an empty quantized tensor of this place's type. */
    final QuantizedTensor empty(Scope scope, long rows, long columns) {
        return scope.quantized(scaling, dtype, rows, columns);
    }

    /** Returns whether the scale is there before the tensor is. */
    boolean knowsScale() {
        return false;
    }

    /** Returns whether the scale follows from the largest magnitude of the tensor. */
    boolean scalesByAmax() {
        return false;
    }

    /** Gives {@code y} the scale, and the place for its largest magnitude where that is recorded. */
    void setScale(QuantizedTensor y, Recording recording) {
        throw new IllegalStateException("the scale of " + y + " follows from its values");
    }

    /**
     * Enqueues the cast of {@code x} into the copies that {@code y} has.
     *
     * @param y has an amax already where the scale follows from it and the kernel found it that computed {@code x}
     * @param columnSums receives the sums of the columns; null where none are wanted, as always where blocks are scaled
     * @param temporary holds what is needed while the cast runs
     */
    abstract void cast(
            Tensor x,
            QuantizedTensor y,
            @Nullable Tensor columnSums,
            Recording recording,
            Scope temporary,
            Stream stream);

    /** Enqueues the cast by one scale, which {@code y} has. */
    static void castByOneScale(Tensor x, QuantizedTensor y, @Nullable Tensor columnSums, Stream stream) {
        if (columnSums == null) {
            Cast.quantize(x, y, stream);
        } else {
            Cast.quantizeDbias(x, y, columnSums, stream);
        }
    }
}
