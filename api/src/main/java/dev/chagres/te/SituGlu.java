package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Numbers;
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
public record SituGlu(float beta1, float beta2) implements ActivationFunction {
    private static final SituGlu STANDARD = new SituGlu(4, 25);

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is not positive, or not finite
     */
    public SituGlu {
        Numbers.positive("beta1", beta1);
        Numbers.positive("beta2", beta2);
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

    @Override
    public String formula() {
        return "beta1 tanh(a / beta1) sigmoid(a) beta2 tanh(b / beta2)";
    }

    void callForward(Tensor x, MemorySegment y, Stream stream) {
        Status.te(TransformerEngine.te_situglu(x.handle(), y, beta1, beta2, stream.handle()), "te_situglu");
    }

    void callBackward(Tensor dy, Tensor x, MemorySegment dx, Stream stream) {
        Status.te(
                TransformerEngine.te_dsituglu(dy.handle(), x.handle(), dx, beta1, beta2, stream.handle()),
                "te_dsituglu");
    }
}
