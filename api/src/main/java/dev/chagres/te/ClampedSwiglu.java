package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Numbers;
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
public record ClampedSwiglu(float limit, float alpha, float linearOffset) implements ActivationFunction {
    private static final ClampedSwiglu STANDARD = new ClampedSwiglu(7, 1.702f, 1);

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the limit is not positive, or a number is not finite
     */
    public ClampedSwiglu {
        Numbers.positive("limit", limit);
        Numbers.finite("alpha", alpha);
        Numbers.finite("linearOffset", linearOffset);
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

    @Override
    public String formula() {
        return Activation.CLAMPED_SWIGLU.formula();
    }

    void callForward(Tensor x, MemorySegment y, Stream stream) {
        Status.te(
                TransformerEngine.te_clamped_swiglu_v2(x.handle(), y, limit, alpha, linearOffset, stream.handle()),
                "te_clamped_swiglu_v2");
    }

    void callBackward(Tensor dy, Tensor x, MemorySegment dx, Stream stream) {
        Status.te(
                TransformerEngine.te_clamped_dswiglu_v2(
                        dy.handle(), x.handle(), dx, limit, alpha, linearOffset, stream.handle()),
                "te_clamped_dswiglu_v2");
    }
}
