package dev.chagres.te;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.te.ActivationChecks.ActivationForm;
import dev.chagres.te.ActivationChecks.MeasuredTensor;
import java.lang.foreign.MemorySegment;

/**
 * {@code y = beta1 tanh(a / beta1) sigmoid(a) beta2 tanh(b / beta2)} of {@code x = [a, b]} by halves of the columns: a SwiGLU that clamps
 * its two factors smoothly to {@code -beta1} to {@code beta1} and {@code -beta2} to {@code beta2}.
 *
 * <p>Threading: immutable; the methods that enqueue: the device's thread.
 *
 * <p>Source: {@code nvte_situglu} and {@code nvte_dsituglu} in TE's {@code activation.h}.
 *
 * @param beta1 bound of the activated half, above 0
 * @param beta2 bound of the other half, above 0
 */
public record SituGlu(float beta1, float beta2) {
    private static final SituGlu STANDARD = new SituGlu(4, 25);
    private static final ActivationForm FORM = new Form();

    /** The name and formula in error texts. */
    private record Form() implements ActivationForm {
        @Override
        public String name() {
            return "SITUGLU";
        }

        @Override
        public String formula() {
            return "beta1 tanh(a / beta1) sigmoid(a) beta2 tanh(b / beta2)";
        }

        @Override
        public boolean isGated() {
            return true;
        }
    }

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is not positive, or not finite
     */
    public SituGlu {
        if (!(beta1 > 0) || Float.isInfinite(beta1)) {
            throw new IllegalArgumentException("beta1: expected a positive number, got " + beta1);
        }
        if (!(beta2 > 0) || Float.isInfinite(beta2)) {
            throw new IllegalArgumentException("beta2: expected a positive number, got " + beta2);
        }
    }

    /** Returns the activation with TE's defaults: beta1 4, beta2 25. */
    public static SituGlu standard() {
        return STANDARD;
    }

    /** Returns the same with another bound of the activated half. */
    public SituGlu withBeta1(float newBeta1) {
        return new SituGlu(newBeta1, beta2);
    }

    /** Returns the same with another bound of the other half. */
    public SituGlu withBeta2(float newBeta2) {
        return new SituGlu(beta1, newBeta2);
    }

    /**
     * Enqueues y.
     *
     * @param x [T, 2F]
     * @param y [T, F], in the type of x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory with x
     */
    public void forward(Tensor x, Tensor y, Stream stream) {
        ActivationChecks.forward(FORM, x, y, stream);
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
        ActivationChecks.forward(FORM, x, y, stream);
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
        ActivationChecks.forward(FORM, x, y, stream);
        if (x.count() != 0) {
            callForward(x, y.handle(), stream);
        }
    }

    /**
     * Enqueues the gradient of x.
     *
     * @param dy gradient of y, like y
     * @param x what forward read
     * @param dx gradient of x, like x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx shares memory
     */
    public void backward(Tensor dy, Tensor x, Tensor dx, Stream stream) {
        ActivationChecks.backward(FORM, dy, x, dx, stream);
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
        ActivationChecks.backward(FORM, dy, x, dx, stream);
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
        ActivationChecks.backward(FORM, dy, x, dx, stream);
        if (x.count() != 0) {
            callBackward(dy, x, dx.handle(), stream);
        }
    }

    private void callForward(Tensor x, MemorySegment y, Stream stream) {
        Status.te(TransformerEngine.te_situglu(x.handle(), y, beta1, beta2, stream.handle()), "te_situglu");
    }

    private void callBackward(Tensor dy, Tensor x, MemorySegment dx, Stream stream) {
        Status.te(
                TransformerEngine.te_dsituglu(dy.handle(), x.handle(), dx, beta1, beta2, stream.handle()),
                "te_dsituglu");
    }
}
