package dev.chagres.internal;

import dev.chagres.Stream;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;

/**
 * The residual sum with its layer norm as one operation, {@code ops_residual_norm_forward} and {@code _backward}: TE has
 * the norm but not the sum, and both are bound by memory.
 *
 * <p>Threading: the device's thread.
 */
public final class ResidualNorm {
    private static final int PACK_BYTES = 16;
    private static final long MOST_ROW_BYTES = 16 << 10;

    private ResidualNorm() {}

    /** Returns whether rows like those of {@code x} are taken: whole 16-byte packs, at most 16 KiB. */
    public static boolean takes(TensorCell x) {
        long rowBytes = x.size(1) * x.dtype().byteSize();
        return rowBytes % PACK_BYTES == 0 && rowBytes <= MOST_ROW_BYTES;
    }

    /** {@code h = x + residual; y = norm(h)}; h may be x or residual; mean and inverse FLOAT32 [T]. */
    public static void forward(
            Stream stream,
            TensorCell x,
            TensorCell residual,
            TensorCell gamma,
            TensorCell beta,
            float epsilon,
            TensorCell h,
            TensorCell y,
            TensorCell mean,
            TensorCell inverse) {
        Status.ops(
                Ops.ops_residual_norm_forward(
                        x.pointer(),
                        residual.pointer(),
                        gamma.pointer(),
                        beta.pointer(),
                        epsilon,
                        h.pointer(),
                        y.pointer(),
                        mean.pointer(),
                        inverse.pointer(),
                        x.size(0),
                        x.size(1),
                        x.dtype().code(),
                        stream.handle()),
                "ops_residual_norm_forward");
    }

    /** {@code dh = dresidual + dnorm/dh}; dgamma and dbeta FLOAT32, {@code accumulate} times what is there plus this. */
    public static void backward(
            Stream stream,
            TensorCell dy,
            TensorCell h,
            TensorCell mean,
            TensorCell inverse,
            TensorCell gamma,
            TensorCell dresidual,
            TensorCell dh,
            TensorCell dgamma,
            TensorCell dbeta,
            float accumulate) {
        Status.ops(
                Ops.ops_residual_norm_backward(
                        dy.pointer(),
                        h.pointer(),
                        mean.pointer(),
                        inverse.pointer(),
                        gamma.pointer(),
                        dresidual.pointer(),
                        dh.pointer(),
                        dgamma.pointer(),
                        dbeta.pointer(),
                        accumulate,
                        h.size(0),
                        h.size(1),
                        h.dtype().code(),
                        stream.handle()),
                "ops_residual_norm_backward");
    }
}
