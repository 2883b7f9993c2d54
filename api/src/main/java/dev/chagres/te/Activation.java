package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;

/**
 * The activations of Transformer Engine, forward and backward, each with its formula.
 *
 * <p>One without a gate, {@code y = f(x)}, works element by element on tensors of any shape; its result may overwrite its input. A gated
 * one splits the columns of x into halves, {@code x = [a, b]}, and computes {@code y = f(a) b}: x is [T, 2F], y is [T, F].
 *
 * <p>{@link ScaledActivation} also multiplies each row by a factor.
 *
 * <p>Threading: immutable; the methods that enqueue: the device's thread.
 *
 * <p>Source: TE's {@code activation.h}; Hendrycks and Gimpel, Gaussian error linear units (2016); Shazeer, GLU variants
 * improve transformer (2020); So et al., Primer (2021).
 */
public enum Activation implements ActivationFunction {
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
    /** {@code m sigmoid(1.702 m) (c + 1)} with {@code m = min(a, 7)} and c being b within -7 to 7: TE's defaults. */
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

    @Override
    public boolean isGated() {
        return gating == Gating.GATED;
    }

    /** Returns how many columns x has for {@code outputColumns} of y: as many, if gated twice as many. */
    public long inputColumns(long outputColumns) {
        return isGated() ? 2 * outputColumns : outputColumns;
    }

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

    void callForward(Tensor x, MemorySegment y, Stream stream) {
        Status.te(forward.call(x.handle(), y, stream.handle()), forwardFunction);
    }

    void callBackward(Tensor dy, Tensor x, MemorySegment dx, Stream stream) {
        Status.te(backward.call(dy.handle(), x.handle(), dx, stream.handle()), backwardFunction);
    }
}
