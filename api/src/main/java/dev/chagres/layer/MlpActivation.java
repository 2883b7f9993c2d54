package dev.chagres.layer;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.ops.GatedGradient;
import dev.chagres.te.Activation;
import dev.chagres.te.ActivationFunction;
import dev.chagres.te.ClampedSwiglu;
import org.jspecify.annotations.Nullable;

/**
 * An activation with its parameters, if it has any.
 *
 * <p>Threading: immutable; the methods that enqueue: the device's thread.
 */
record MlpActivation(Activation kind, ClampedSwiglu clampedSwiglu) {
    private ActivationFunction function() {
        return kind == Activation.CLAMPED_SWIGLU ? clampedSwiglu : kind;
    }

    /** {@code amax} is raised to the largest magnitude of y; may be null. */
    void forward(Tensor x, Tensor y, @Nullable Tensor amax, Stream stream) {
        if (amax == null) {
            function().forward(x, y, stream);
        } else {
            function().forward(x, y, amax, stream);
        }
    }

    void forward(Tensor x, QuantizedTensor y, Stream stream) {
        function().forward(x, y, stream);
    }

    /** {@code amax} is raised to the largest magnitude of dx; may be null. */
    void backward(Tensor dy, Tensor x, Tensor dx, @Nullable Tensor amax, Stream stream) {
        if (amax == null) {
            function().backward(dy, x, dx, stream);
        } else {
            function().backward(dy, x, dx, amax, stream);
        }
    }

    /** Enqueues the gradient in eight bits, rowwise and columnwise, as TE for PyTorch computes it: gated, it is rounded before it is cast. */
    void backward(Tensor dy, Tensor x, QuantizedTensor dx, Stream stream) {
        if (kind == Activation.CLAMPED_SWIGLU) {
            GatedGradient.cast(clampedSwiglu, dy, x, dx, stream);
        } else if (kind.isGated()) {
            GatedGradient.cast(kind, dy, x, dx, stream);
        } else {
            kind.backward(dy, x, dx, stream);
        }
    }

    /** Returns which kernel {@link #backward(Tensor, Tensor, QuantizedTensor, Stream)} runs. */
    String castGradientFunction() {
        return (kind.isGated() ? "ops_gated_gradient" : kind.backwardFunction()) + ", which casts its gradient itself";
    }

    /** Returns the name, with the numbers where they are not TE's. */
    @Override
    public String toString() {
        return kind == Activation.CLAMPED_SWIGLU && !clampedSwiglu.equals(ClampedSwiglu.standard())
                ? clampedSwiglu.toString()
                : kind.toString();
    }
}
