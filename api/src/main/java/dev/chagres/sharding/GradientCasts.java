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
 * Casts gradients, which are FP32, to the type in which ranks sum them, and back.
 *
 * <p>Threading: the device's thread.
 */
final class GradientCasts {
    private final DType dtype;
    /** What is summed in another type than FP32, one vector at a time; null where nothing is. */
    private final @Nullable Tensor room;

    /** {@code longest}: elements of the longest vector. */
    GradientCasts(DType dtype, long longest, Scope scope) {
        this.dtype = dtype;
        room = dtype == DType.FLOAT32 || longest == 0 ? null : scope.tensor(dtype, longest);
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

    DType dtype() {
        return dtype;
    }

    /** Returns whether gradients are summed in another type than their own. */
    boolean changes() {
        return dtype != DType.FLOAT32;
    }

    /** Returns what is summed: {@code gradients} or, behind an enqueued cast, their copy, which the next call overwrites. */
    Tensor cast(Tensor gradients, Scope views, Stream stream) {
        if (room == null) {
            return gradients;
        }
        Tensor copy = views.view(room, 0, gradients.count());
        Elementwise.cast(gradients, copy, stream);
        return copy;
    }

    /** Enqueues {@code gradients = sum}, or adds it to them. */
    void castBack(Tensor sum, Tensor gradients, Output output, Stream stream) {
        Elementwise.accumulate(sum, gradients, output, stream);
    }
}
