package dev.chagres.te;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.te.ActivationChecks.MeasuredTensor;
import java.lang.foreign.MemorySegment;

/**
 * {@code y = m sigmoid(alpha m) (c + linearOffset)} of {@code x = [a, b]} by halves of the columns, with
 * {@code m = min(a, limit)} and c being b within {@code -limit} to {@code limit}: the activation of gpt-oss. {@link
 * Activation#CLAMPED_SWIGLU} is the same with TE's defaults.
 *
 * <p>Threading: immutable; the methods that enqueue: the device's thread.
 *
 * <p>Source: {@code nvte_clamped_swiglu_v2} and {@code nvte_clamped_dswiglu_v2} in TE's {@code activation.h}.
 *
 * @param limit at which both halves are clamped, above 0
 * @param alpha factor in the sigmoid
 * @param linearOffset what is added to the clamped b
 */
public record ClampedSwiglu(float limit, float alpha, float linearOffset) {
    private static final ClampedSwiglu STANDARD = new ClampedSwiglu(7, 1.702f, 1);

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the limit is not positive, or a number is not finite
     */
    public ClampedSwiglu {
        if (!(limit > 0) || Float.isInfinite(limit)) {
            throw new IllegalArgumentException("limit: expected a positive number, got " + limit);
        }
        if (!Float.isFinite(alpha)) {
            throw new IllegalArgumentException("alpha: expected a finite number, got " + alpha);
        }
        if (!Float.isFinite(linearOffset)) {
            throw new IllegalArgumentException("linearOffset: expected a finite number, got " + linearOffset);
        }
    }

    /** Returns the activation with TE's defaults: limit 7, alpha 1.702, linear offset 1. */
    public static ClampedSwiglu standard() {
        return STANDARD;
    }

    /** Returns the same with another limit. */
    public ClampedSwiglu withLimit(float newLimit) {
        return new ClampedSwiglu(newLimit, alpha, linearOffset);
    }

    /** Returns the same with another factor in the sigmoid. */
    public ClampedSwiglu withAlpha(float newAlpha) {
        return new ClampedSwiglu(limit, newAlpha, linearOffset);
    }

    /** Returns the same with another linear offset. */
    public ClampedSwiglu withLinearOffset(float newOffset) {
        return new ClampedSwiglu(limit, alpha, newOffset);
    }

    /**
     * Enqueues y.
     *
     * @param x [T, 2F]
     * @param y [T, F], in the type of x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory with x
     */
    public void forward(Tensor x, Tensor y, Stream stream) {
        ActivationChecks.forward(Activation.CLAMPED_SWIGLU, x, y, stream);
        if (y.count() != 0) {
            callForward(x, y.handle(), stream);
        }
    }

    /**
     * Enqueues y and its largest magnitude, as {@link Activation#forward(Tensor, Tensor, Tensor, Stream)} does.
     *
     * @param x [T, 2F]
     * @param y [T, F], in the type of x
     * @param amax FLOAT32 [1], at least 0 before
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y or amax shares memory
     */
    public void forward(Tensor x, Tensor y, Tensor amax, Stream stream) {
        ActivationChecks.forward(Activation.CLAMPED_SWIGLU, x, y, stream);
        ActivationChecks.amax(amax, "y", y, "x", x, stream);
        if (y.count() != 0) {
            callForward(x, MeasuredTensor.handle(y, amax, stream), stream);
        }
    }

    /**
     * Enqueues y, quantized as {@link Activation#forward(Tensor, QuantizedTensor, Stream)} does.
     *
     * @param x [T, 2F]
     * @param y [T, F], scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise data, and columnwise data where wanted
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or y shares memory
     */
    public void forward(Tensor x, QuantizedTensor y, Stream stream) {
        ActivationChecks.forward(Activation.CLAMPED_SWIGLU, x, y, stream);
        if (x.count() != 0) {
            callForward(x, y.handle(), stream);
        }
    }

    /**
     * Enqueues the gradient of x, which is 0 where x was clamped.
     *
     * @param dy gradient of y, like y
     * @param x what forward read
     * @param dx gradient of x, like x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx shares memory
     */
    public void backward(Tensor dy, Tensor x, Tensor dx, Stream stream) {
        ActivationChecks.backward(Activation.CLAMPED_SWIGLU, dy, x, dx, stream);
        if (dx.count() != 0) {
            callBackward(dy, x, dx.handle(), stream);
        }
    }

    /**
     * Enqueues the gradient of x and its largest magnitude, as {@link Activation#backward(Tensor, Tensor, Tensor, Tensor, Stream)}
     * does.
     *
     * @param dy gradient of y, like y
     * @param x what forward read
     * @param dx gradient of x, like x
     * @param amax FLOAT32 [1], at least 0 before
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx or amax shares memory
     */
    public void backward(Tensor dy, Tensor x, Tensor dx, Tensor amax, Stream stream) {
        ActivationChecks.backward(Activation.CLAMPED_SWIGLU, dy, x, dx, stream);
        ActivationChecks.amax(amax, "dx", dx, "x", x, stream);
        Checks.apart("amax", amax, "dy", dy);
        if (dx.count() != 0) {
            callBackward(dy, x, MeasuredTensor.handle(dx, amax, stream), stream);
        }
    }

    /**
     * Enqueues the gradient of x, quantized as {@link Activation#backward(Tensor, Tensor, QuantizedTensor, Stream)} does.
     *
     * @param dy gradient of y, [T, F]
     * @param x what forward read, [T, 2F]; if dx has rowwise and columnwise data, T is a multiple of 4
     * @param dx gradient of x, [T, 2F], scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise data, and columnwise data
     *     where wanted
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or dx shares memory
     */
    public void backward(Tensor dy, Tensor x, QuantizedTensor dx, Stream stream) {
        ActivationChecks.backward(Activation.CLAMPED_SWIGLU, dy, x, dx, stream);
        if (x.count() != 0) {
            callBackward(dy, x, dx.handle(), stream);
        }
    }

    private void callForward(Tensor x, MemorySegment y, Stream stream) {
        Status.te(
                TransformerEngine.te_clamped_swiglu_v2(x.handle(), y, limit, alpha, linearOffset, stream.handle()),
                "te_clamped_swiglu_v2");
    }

    private void callBackward(Tensor dy, Tensor x, MemorySegment dx, Stream stream) {
        Status.te(
                TransformerEngine.te_clamped_dswiglu_v2(
                        dy.handle(), x.handle(), dx, limit, alpha, linearOffset, stream.handle()),
                "te_clamped_dswiglu_v2");
    }
}
