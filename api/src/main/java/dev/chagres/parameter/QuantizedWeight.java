package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import java.util.function.Consumer;

/**
 * A weight that exists only in eight bits, as a recipe has cast it.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code Float8Tensor} as a parameter.
 *
 * @param copies [rows, columns]: the matrix and, once a backward pass has needed it, its transpose
 * @param dtype the model's type, in which its values are saved
 * @param caster casts a matrix [rows, columns] of FLOAT32, BFLOAT16 or FLOAT16 into the copies
 */
public record QuantizedWeight(QuantizedTensor copies, DType dtype, Consumer<Tensor> caster) {
    /** Checks that all are there. */
    public QuantizedWeight {
        Checks.given("copies", copies, "dtype", dtype, "caster", caster);
    }

    /**
     * Enqueues the cast of {@code x} into the copies, with the recipe's present scale.
     *
     * @param x [rows, columns], FLOAT32, BFLOAT16 or FLOAT16, which may be reused once the stream has done the cast
     * @throws IllegalArgumentException when shape, type or device does not fit
     * @throws IllegalStateException when the quantizers are closed
     */
    public void cast(Tensor x) {
        caster.accept(x);
    }
}
