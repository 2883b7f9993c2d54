package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;

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

    /**
     * Enqueues the cast of {@code x} into the copies that {@code y} has.
     *
     * @param temporary holds what is needed while the cast runs
     */
    abstract void cast(Tensor x, QuantizedTensor y, Recording recording, Scope temporary, Stream stream);
}
