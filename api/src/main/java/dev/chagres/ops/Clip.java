package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;

/**
 * The factor that clips a gradient to a norm.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_clip_scale} in {@code ops.h}; Pascanu et al., On the difficulty of training recurrent neural
 * networks (2013).
 */
public final class Clip {
    private Clip() {}

    /**
     * Enqueues {@code scale = min(1, maxNorm / (norm + 1e-6))}. A norm that is not finite gives 0.
     *
     * @param norm FLOAT32 [1]
     * @param maxNorm above 0; {@link Float#POSITIVE_INFINITY} never clips
     * @param scale FLOAT32 [1]
     * @throws IllegalArgumentException when shapes, types, maxNorm or devices do not fit, or scale shares memory with norm
     */
    public static void clipScale(Tensor norm, float maxNorm, Tensor scale, Stream stream) {
        Checks.vector(stream, "norm", norm, DType.FLOAT32, 1);
        Checks.vector(stream, "scale", scale, DType.FLOAT32, 1);
        if (!(maxNorm > 0)) {
            throw new IllegalArgumentException("maxNorm: expected a number above 0, got " + maxNorm);
        }
        Checks.written("scale", scale, "norm", norm);
        Status.ops(Ops.ops_clip_scale(norm.address(), maxNorm, scale.address(), stream.handle()), "ops_clip_scale");
    }
}
