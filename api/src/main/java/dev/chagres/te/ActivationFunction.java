package dev.chagres.te;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.te.ActivationChecks.MeasuredTensor;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * An activation of Transformer Engine, forward and backward: {@code y = f(x)}, or gated, of {@code x = [a, b]} by halves of the columns,
 * {@code y = f(a, b)}, where x is [T, 2F] and y is [T, F].
 *
 * <p>All tensors of a call have one floating-point type; arithmetic is FP32.
 *
 * <p>Threading: immutable; the methods that enqueue: the device's thread.
 *
 * <p>Source: TE's {@code activation.h}.
 */
public sealed interface ActivationFunction permits Activation, ClampedSwiglu, SituGlu {
    /** Returns y as a formula of x or, where gated, of its halves a and b. */
    String formula();

    /** Returns whether one half of the columns of x gates the other. */
    default boolean isGated() {
        return true;
    }

    /**
     * Enqueues y.
     *
     * @param x any shape; gated [T, 2F]
     * @param y like x; gated [T, F], in the type of x. Where not gated it may be x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory with x otherwise
     */
    default void forward(Tensor x, Tensor y, Stream stream) {
        forward(x, y, null, stream);
    }

    /**
     * Enqueues y as {@link #forward(Tensor, Tensor, Stream)} does, and {@code amax = max(amax, max |f(x)|)} before y is rounded: a scale
     * can be computed from it without reading y again.
     *
     * @param x [T, F]; gated [T, 2F]
     * @param y [T, F], in the type of x. Where not gated it may be x
     * @param amax FLOAT32 [1], at least 0 before; null where it is not wanted
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y or amax shares memory otherwise
     */
    default void forward(Tensor x, Tensor y, @Nullable Tensor amax, Stream stream) {
        ActivationChecks.forward(this, x, y, stream);
        if (amax != null) {
            ActivationChecks.amax(amax, "y", y, "x", x, stream);
        }
        if (y.count() != 0) {
            enqueueForward(x, MeasuredTensor.handle(y, amax, stream), stream);
        }
    }

    /**
     * Enqueues y, quantized as {@link Cast#quantize(Tensor, QuantizedTensor, Stream)} does;
     * amax is of y before scaling.
     *
     * @param x [T, F]; if y has rowwise and columnwise data, T is a multiple of 8 and F of 4 (FLOAT32: of 2). Gated: [T, 2F] of any size
     * @param y [T, F], scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise data, and columnwise data where wanted
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or y shares memory
     */
    default void forward(Tensor x, QuantizedTensor y, Stream stream) {
        ActivationChecks.forward(this, x, y, stream);
        if (x.count() != 0) {
            enqueueForward(x, y.handle(), stream);
        }
    }

    /**
     * Enqueues dx.
     *
     * @param dy gradient of y, like y
     * @param x what forward read
     * @param dx gradient of x, like x. Where not gated it may be dy or x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx shares memory otherwise
     */
    default void backward(Tensor dy, Tensor x, Tensor dx, Stream stream) {
        backward(dy, x, dx, null, stream);
    }

    /**
     * Enqueues dx as {@link #backward(Tensor, Tensor, Tensor, Stream)} does, and {@code amax = max(amax, max |dx|)} before dx is
     * rounded.
     *
     * @param dy gradient of y, [T, F]
     * @param x what forward read, [T, F]; gated [T, 2F]
     * @param dx gradient of x, like x. Where not gated it may be dy or x
     * @param amax FLOAT32 [1], at least 0 before; null where it is not wanted
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx or amax shares memory otherwise
     */
    default void backward(Tensor dy, Tensor x, Tensor dx, @Nullable Tensor amax, Stream stream) {
        ActivationChecks.backward(this, dy, x, dx, stream);
        if (amax != null) {
            ActivationChecks.amax(amax, "dx", dx, "x", x, stream);
            Checks.apart("amax", amax, "dy", dy);
        }
        if (dx.count() != 0) {
            enqueueBackward(dy, x, MeasuredTensor.handle(dx, amax, stream), stream);
        }
    }

    /**
     * Enqueues dx, quantized as {@link Cast#quantize(Tensor,
     * QuantizedTensor, Stream)} does; amax is of dx before scaling. For gated activations the transpose is a second kernel; {@link
     * Transpose#dactCastTranspose} does both in one kernel for five of them.
     *
     * @param dy gradient of y, [T, F]
     * @param x what forward read, [T, F]; gated [T, 2F]. If dx has rowwise and columnwise data, T is a multiple of 4 and, if not gated, F
     *     of 2 (FLOAT32: any F)
     * @param dx gradient of x, of the shape of x, scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise data, and
     *     columnwise data where wanted
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or dx shares memory
     */
    default void backward(Tensor dy, Tensor x, QuantizedTensor dx, Stream stream) {
        ActivationChecks.backward(this, dy, x, dx, stream);
        if (x.count() != 0) {
            enqueueBackward(dy, x, dx.handle(), stream);
        }
    }

    private void enqueueForward(Tensor x, MemorySegment y, Stream stream) {
        switch (this) {
            case Activation one -> one.callForward(x, y, stream);
            case ClampedSwiglu one -> one.callForward(x, y, stream);
            case SituGlu one -> one.callForward(x, y, stream);
        }
    }

    private void enqueueBackward(Tensor dy, Tensor x, MemorySegment dx, Stream stream) {
        switch (this) {
            case Activation one -> one.callBackward(dy, x, dx, stream);
            case ClampedSwiglu one -> one.callBackward(dy, x, dx, stream);
            case SituGlu one -> one.callBackward(dy, x, dx, stream);
        }
    }
}
