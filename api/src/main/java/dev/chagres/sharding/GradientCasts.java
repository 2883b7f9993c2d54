package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.Elementwise;
import dev.chagres.te.Output;
import org.jspecify.annotations.Nullable;

/**
 * Casts gradients that have another type to the one in which ranks sum them, and sums back to FP32.
 *
 * <p>Threading: the device's thread.
 */
final class GradientCasts {
    final DType dtype;
    /** The cast copy, of one vector at a time; null without casts. */
    private final @Nullable Tensor room;

    /** {@code longest}: elements of the longest vector that has another type. */
    GradientCasts(DType dtype, long longest, Scope scope) {
        this.dtype = dtype;
        room = longest == 0 ? null : scope.tensor(dtype, longest);
    }

    /** {@code longest}: elements of the longest vector, all of which are FP32. */
    static GradientCasts ofFloats(DType dtype, long longest, Scope scope) {
        return new GradientCasts(dtype, dtype == DType.FLOAT32 ? 0 : longest, scope);
    }

    /**
     * Returns {@code dtype}.
     *
     * @throws IllegalArgumentException when gradients cannot be summed in it
     */
    static DType checked(DType dtype) {
        if (!Checks.given("reduceType", dtype).isFloat()) {
            throw new IllegalArgumentException("reduceType: expected FLOAT32, BFLOAT16 or FLOAT16, got " + dtype);
        }
        return dtype;
    }

    /** Returns whether sums have another type than FP32. */
    boolean changes() {
        return dtype != DType.FLOAT32;
    }

    /** Returns the tensor to sum: {@code gradients} if they have the type, else their cast copy, which the next call overwrites. */
    Tensor cast(Tensor gradients, Scope views, Stream stream) {
        if (gradients.dtype() == dtype) {
            return gradients;
        }
        Tensor copy = views.view(Checks.given("room", room), 0, gradients.count());
        Elementwise.cast(gradients, copy, stream);
        return copy;
    }

    /** Enqueues {@code gradients = sum}, or adds it to them. */
    void castBack(Tensor sum, Tensor gradients, Output output, Stream stream) {
        Elementwise.accumulate(sum, gradients, output, stream);
    }
}
