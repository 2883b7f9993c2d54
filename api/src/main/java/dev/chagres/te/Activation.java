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
 * The activations of Transformer Engine, forward and backward, each with its formula.
 *
 * <p>One without a gate, {@code y = f(x)}, works element by element on tensors of any shape; its result may overwrite its input. A gated
 * one splits the columns of x into halves, {@code x = [a, b]}, and computes {@code y = f(a) b}: x is [T, 2F], y is [T, F].
 *
 * <p>All tensors of a call have one floating-point type; arithmetic is FP32. {@link ScaledActivation} also multiplies each row by a factor.
 *
 * <p>Threading: immutable; the methods that enqueue: the device's thread.
 *
 * <p>Source: TE's {@code activation.h}; Hendrycks and Gimpel, Gaussian error linear units (2016); Shazeer, GLU variants
 * improve transformer (2020); So et al., Primer (2021).
 */
public enum Activation implements ActivationForm {
    /** {@code x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))}. */
    GELU(
            Gating.PLAIN,
            "x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))",
            "gelu",
            TransformerEngine::te_gelu,
            "dgelu",
            TransformerEngine::te_dgelu),
    /** {@code gelu(a) b}. */
    GEGLU(Gating.GATED, "gelu(a) b", "geglu", TransformerEngine::te_geglu, "dgeglu", TransformerEngine::te_dgeglu),
    /** {@code sigmoid(a) b}. */
    GLU(Gating.GATED, "sigmoid(a) b", "glu", TransformerEngine::te_glu, "dglu", TransformerEngine::te_dglu),
    /** {@code x sigmoid(1.702 x)}. */
    QGELU(
            Gating.PLAIN,
            "x sigmoid(1.702 x)",
            "qgelu",
            TransformerEngine::te_qgelu,
            "dqgelu",
            TransformerEngine::te_dqgelu),
    /** {@code a sigmoid(1.702 a) b}. */
    QGEGLU(
            Gating.GATED,
            "a sigmoid(1.702 a) b",
            "qgeglu",
            TransformerEngine::te_qgeglu,
            "dqgeglu",
            TransformerEngine::te_dqgeglu),
    /** {@code max(x, 0)}. */
    RELU(Gating.PLAIN, "max(x, 0)", "relu", TransformerEngine::te_relu, "drelu", TransformerEngine::te_drelu),
    /** {@code max(a, 0) b}. */
    REGLU(Gating.GATED, "max(a, 0) b", "reglu", TransformerEngine::te_reglu, "dreglu", TransformerEngine::te_dreglu),
    /** {@code max(x, 0)^2}. */
    SRELU(Gating.PLAIN, "max(x, 0)^2", "srelu", TransformerEngine::te_srelu, "dsrelu", TransformerEngine::te_dsrelu),
    /** {@code max(a, 0)^2 b}. */
    SREGLU(
            Gating.GATED,
            "max(a, 0)^2 b",
            "sreglu",
            TransformerEngine::te_sreglu,
            "dsreglu",
            TransformerEngine::te_dsreglu),
    /** {@code x sigmoid(x)}. */
    SILU(Gating.PLAIN, "x sigmoid(x)", "silu", TransformerEngine::te_silu, "dsilu", TransformerEngine::te_dsilu),
    /** {@code a sigmoid(a) b}. */
    SWIGLU(
            Gating.GATED,
            "a sigmoid(a) b",
            "swiglu",
            TransformerEngine::te_swiglu,
            "dswiglu",
            TransformerEngine::te_dswiglu),
    /**
     * {@code m sigmoid(1.702 m) (c + 1)} with {@code m = min(a, 7)} and c being b within -7 to 7: TE's defaults.
     */
    CLAMPED_SWIGLU(
            Gating.GATED,
            "m sigmoid(1.702 m) (c + 1), m = min(a, 7), c = max(-7, min(b, 7))",
            "clamped_swiglu_v2",
            (x, y, stream) -> TransformerEngine.te_clamped_swiglu_v2(x, y, 7f, 1.702f, 1f, stream),
            "clamped_dswiglu_v2",
            (dy, x, dx, stream) -> TransformerEngine.te_clamped_dswiglu_v2(dy, x, dx, 7f, 1.702f, 1f, stream));

    private enum Gating {
        PLAIN,
        GATED
    }

    @FunctionalInterface
    private interface Forward {
        int call(MemorySegment x, MemorySegment y, MemorySegment stream);
    }

    @FunctionalInterface
    private interface Backward {
        int call(MemorySegment dy, MemorySegment x, MemorySegment dx, MemorySegment stream);
    }

    private final Gating gating;
    private final String formula;
    private final String forwardFunction;
    private final Forward forward;
    private final String backwardFunction;
    private final Backward backward;

    Activation(
            Gating gating,
            String formula,
            String forwardStem,
            Forward forward,
            String backwardStem,
            Backward backward) {
        this.gating = gating;
        this.formula = formula;
        forwardFunction = "te_" + forwardStem;
        this.forward = forward;
        backwardFunction = "te_" + backwardStem;
        this.backward = backward;
    }

    /** Returns whether one half of the columns of x gates the other. */
    @Override
    public boolean isGated() {
        return gating == Gating.GATED;
    }

    /** Returns how many columns x has for {@code outputColumns} of y: as many, if gated twice as many. */
    public long inputColumns(long outputColumns) {
        return isGated() ? 2 * outputColumns : outputColumns;
    }

    /** Returns y as a formula of x or, where gated, of its halves a and b. */
    @Override
    public String formula() {
        return formula;
    }

    /** Returns the function that {@link #forward} calls, such as te_gelu, which guards {@code nvte_gelu}. */
    public String forwardFunction() {
        return forwardFunction;
    }

    /** Returns the function that {@link #backward} calls, such as te_dgelu. */
    public String backwardFunction() {
        return backwardFunction;
    }

    /**
     * Enqueues {@code y = f(x)}, or {@code y = f(a) b}.
     *
     * @param x any shape; gated [T, 2F]
     * @param y like x; gated [T, F], in the type of x. Where not gated it may be x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory with x otherwise
     */
    public void forward(Tensor x, Tensor y, Stream stream) {
        ActivationChecks.forward(this, x, y, stream);
        if (y.count() != 0) {
            Status.te(forward.call(x.handle(), y.handle(), stream.handle()), forwardFunction);
        }
    }

    /**
     * Enqueues y as {@link #forward(Tensor, Tensor, Stream)} does, and {@code amax = max(amax, max |f(x)|)} before y is rounded: a scale
     * can be computed from it without reading y again.
     *
     * @param x [T, F]; gated [T, 2F]
     * @param y [T, F], in the type of x. Where not gated it may be x
     * @param amax FLOAT32 [1], at least 0 before
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y or amax shares memory otherwise
     */
    public void forward(Tensor x, Tensor y, Tensor amax, Stream stream) {
        ActivationChecks.forward(this, x, y, stream);
        ActivationChecks.amax(amax, "y", y, "x", x, stream);
        if (y.count() != 0) {
            Status.te(
                    forward.call(x.handle(), MeasuredTensor.handle(y, amax, stream), stream.handle()), forwardFunction);
        }
    }

    /**
     * Enqueues {@code y = f(x)}, or {@code y = f(a) b}, quantized as {@link Cast#quantize(Tensor, QuantizedTensor, Stream)} does;
     * amax is of y before scaling.
     *
     * @param x [T, F]; if y has rowwise and columnwise data, T is a multiple of 8 and F of 4 (FLOAT32: of 2). Gated: [T, 2F] of any size
     * @param y [T, F], scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise data, and columnwise data where wanted
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or y shares memory
     */
    public void forward(Tensor x, QuantizedTensor y, Stream stream) {
        ActivationChecks.forward(this, x, y, stream);
        if (x.count() != 0) {
            Status.te(forward.call(x.handle(), y.handle(), stream.handle()), forwardFunction);
        }
    }

    /**
     * Enqueues {@code dx = dy f'(x)}, or {@code dx = [dy f'(a) b, dy f(a)]}.
     *
     * @param dy gradient of y, like y
     * @param x what forward read
     * @param dx gradient of x, like x. Where not gated it may be dy or x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx shares memory otherwise
     */
    public void backward(Tensor dy, Tensor x, Tensor dx, Stream stream) {
        ActivationChecks.backward(this, dy, x, dx, stream);
        if (dx.count() != 0) {
            Status.te(backward.call(dy.handle(), x.handle(), dx.handle(), stream.handle()), backwardFunction);
        }
    }

    /**
     * Enqueues dx as {@link #backward(Tensor, Tensor, Tensor, Stream)} does, and {@code amax = max(amax, max |dx|)} before dx is
     * rounded.
     *
     * @param dy gradient of y, [T, F]
     * @param x what forward read, [T, F]; gated [T, 2F]
     * @param dx gradient of x, like x. Where not gated it may be dy or x
     * @param amax FLOAT32 [1], at least 0 before
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx or amax shares memory otherwise
     */
    public void backward(Tensor dy, Tensor x, Tensor dx, Tensor amax, Stream stream) {
        ActivationChecks.backward(this, dy, x, dx, stream);
        ActivationChecks.amax(amax, "dx", dx, "x", x, stream);
        Checks.apart("amax", amax, "dy", dy);
        if (dx.count() != 0) {
            MemorySegment measured = MeasuredTensor.handle(dx, amax, stream);
            Status.te(backward.call(dy.handle(), x.handle(), measured, stream.handle()), backwardFunction);
        }
    }

    /**
     * Enqueues {@code dx = dy f'(x)}, or {@code dx = [dy f'(a) b, dy f(a)]}, quantized as {@link Cast#quantize(Tensor,
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
    public void backward(Tensor dy, Tensor x, QuantizedTensor dx, Stream stream) {
        ActivationChecks.backward(this, dy, x, dx, stream);
        if (x.count() != 0) {
            Status.te(backward.call(dy.handle(), x.handle(), dx.handle(), stream.handle()), backwardFunction);
        }
    }
}
