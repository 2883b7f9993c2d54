package dev.chagres.layer;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.GatedGradient;
import dev.chagres.pass.Pass;
import dev.chagres.te.Activation;
import dev.chagres.te.ActivationFunction;
import dev.chagres.te.Cast;
import dev.chagres.te.ClampedSwiglu;
import org.jspecify.annotations.Nullable;

/**
 * An activation with what it can be told.
 *
 * <p>Threading: immutable; the methods that enqueue: the device's thread.
 *
 * @param kind which one
 * @param gelu the form of {@link Activation#GELU}; not used by other activations
 * @param clampedSwiglu limit and alpha of {@link Activation#CLAMPED_SWIGLU}; not used by other activations
 */
public record MlpActivation(Activation kind, GeluForm gelu, ClampedSwiglu clampedSwiglu) {
    /** Checks that everything is given. */
    public MlpActivation {
        Checks.given("kind", kind, "gelu", gelu, "clampedSwiglu", clampedSwiglu);
    }

    /** Returns {@code kind} as TE computes it. */
    public static MlpActivation of(Activation kind) {
        return new MlpActivation(kind, GeluForm.TANH, ClampedSwiglu.standard());
    }

    /** Returns GELU of this form. */
    public static MlpActivation of(GeluForm gelu) {
        return new MlpActivation(Activation.GELU, gelu, ClampedSwiglu.standard());
    }

    /** Returns {@link Activation#CLAMPED_SWIGLU} of these numbers. */
    public static MlpActivation of(ClampedSwiglu clampedSwiglu) {
        return new MlpActivation(Activation.CLAMPED_SWIGLU, GeluForm.TANH, clampedSwiglu);
    }

    /** Returns whether this is the exact GELU, which TE lacks: no kernel computes it with a product or a cast. */
    boolean isExactGelu() {
        return kind == Activation.GELU && gelu == GeluForm.ERF;
    }

    /** Returns the function that forward calls. */
    String forwardFunction() {
        return isExactGelu() ? "ops_gelu_erf" : kind.forwardFunction();
    }

    /** Returns the function that backward calls. */
    String backwardFunction() {
        return isExactGelu() ? "ops_gelu_erf_backward" : kind.backwardFunction();
    }

    /** Returns whether a kernel casts the gradient and sums its columns for a bias. */
    boolean sumsCastGradient() {
        return !isExactGelu() && Cast.fusesGradientOf(kind);
    }

    private ActivationFunction function() {
        return kind == Activation.CLAMPED_SWIGLU ? clampedSwiglu : kind;
    }

    /** {@code amax} is raised to the largest magnitude of y; may be null. */
    void forward(Tensor x, Tensor y, @Nullable Tensor amax, Stream stream) {
        if (isExactGelu()) {
            Elementwise.geluErf(x, y, amax, stream);
        } else {
            function().forward(x, y, amax, stream);
        }
    }

    /**
     * Enqueues what {@code y} asks for.
     *
     * @param x with rows of zeros at the end where copies in {@code y} are filled up
     */
    void forward(Tensor x, Target y, Pass pass) {
        Stream stream = pass.stream();
        if (y instanceof Target.Quantized) {
            QuantizedTensor copies = y.copies();
            Tensor read = QuantizedCopies.first(pass.temporary(), x, copies.rows());
            ensureUnfused(!isExactGelu());
            function().forward(read, copies, stream);
        }
        Tensor tensor = y.tensorOrNull();
        if (tensor != null) {
            forward(QuantizedCopies.first(pass.temporary(), x, tensor.size(0)), tensor, y.amax(), stream);
        }
    }

    /** {@code amax} is raised to the largest magnitude of dx; may be null. */
    void backward(Tensor dy, Tensor x, Tensor dx, @Nullable Tensor amax, Stream stream) {
        if (isExactGelu()) {
            Elementwise.geluErfBackward(dy, x, dx, amax, stream);
        } else {
            function().backward(dy, x, dx, amax, stream);
        }
    }

    /**
     * Enqueues what {@code dx} asks for.
     *
     * @param dy filled up as {@code x}, as for {@link #forward(Tensor, Target, Pass)}
     * @param columnSums receives the sums of the columns of copies in {@code dx}; null where they are not wanted
     */
    void backward(Tensor dy, Tensor x, Target dx, @Nullable Tensor columnSums, Pass pass) {
        Stream stream = pass.stream();
        if (dx instanceof Target.Quantized && columnSums != null) {
            Cast.quantizeDbiasDact(kind, dy, x, dx.copies(), columnSums, stream);
        } else if (dx instanceof Target.Quantized) {
            backward(dy, x, dx.copies(), stream);
        }
        Tensor tensor = dx.tensorOrNull();
        if (tensor != null) {
            Scope temporary = pass.temporary();
            long rows = tensor.size(0);
            Tensor own = QuantizedCopies.first(temporary, dy, rows);
            backward(own, QuantizedCopies.first(temporary, x, rows), tensor, dx.amax(), stream);
        }
    }

    /** Enqueues the gradient in eight bits, rowwise and columnwise, as TE for PyTorch computes it: gated, it is rounded before it is cast. */
    private void backward(Tensor dy, Tensor x, QuantizedTensor dx, Stream stream) {
        ensureUnfused(!isExactGelu());
        if (kind == Activation.CLAMPED_SWIGLU) {
            GatedGradient.cast(clampedSwiglu, dy, x, dx, stream);
        } else if (kind.isGated()) {
            GatedGradient.cast(kind, dy, x, dx, stream);
        } else {
            kind.backward(dy, x, dx, stream);
        }
    }

    private static void ensureUnfused(boolean holds) {
        if (!holds) {
            throw new IllegalStateException("no kernel computes the exact GELU with a cast");
        }
    }

    /** Returns which kernel {@link #backward(Tensor, Tensor, QuantizedTensor, Stream)} runs. */
    String castGradientFunction() {
        return (kind.isGated() ? "ops_gated_gradient" : kind.backwardFunction()) + ", which casts its gradient itself";
    }

    /** Returns the name, with the numbers where they are not TE's. */
    @Override
    public String toString() {
        if (isExactGelu()) {
            return "GELU by erf";
        }
        return kind == Activation.CLAMPED_SWIGLU && !clampedSwiglu.equals(ClampedSwiglu.standard())
                ? clampedSwiglu.toString()
                : kind.toString();
    }
}
