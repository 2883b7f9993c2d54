package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.te.QkvFormat;
import org.jspecify.annotations.Nullable;

/**
 * Rotary position embedding, in place, of query and key inside one buffer: with the angle of position p and i below d/2 each
 * pair {@code (x[i], x[i + d/2])} becomes {@code (x[i] cos - x[i + d/2] sin, x[i + d/2] cos + x[i] sin)}. TE rotates packed
 * tokens into a second buffer alone.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_rotary_packed} in {@code ops.h}; Su et al., RoFormer (2021).
 */
public final class Rotary {
    /** Which way a rotation goes. */
    public enum Direction {
        /** By the angle. */
        FORWARD(1),
        /** By the angle's negative: what the gradient takes. */
        BACKWARD(-1);

        private final int sign;

        Direction(int sign) {
            this.sign = sign;
        }
    }

    private static final long MOST_HEADS = 65_535;
    private static final long MOST_HEAD_DIM = 8192;

    private Rotary() {}

    /**
     * Enqueues the rotation of query and key; the values stay, as tokens behind the last sequence and positions without
     * angles do.
     *
     * @param qkv floating-point numbers [T, 3 h d], query, key and value of a token side by side; rewritten
     * @param cuSeqlens INT32 [B + 1], where each sequence begins, which is trusted; null for padded tokens
     * @param angles FLOAT32 [positions, d], or [positions, 1, 1, d] as TE wants it: columns i and i + d/2 are alike, d even
     * @param format where the position of a token comes from
     * @param extent padded tokens: S for BSHD, B for SBHD, of which T is a multiple; THD: B
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or qkv shares memory with another tensor
     */
    public static void rotaryPacked(
            Tensor qkv,
            @Nullable Tensor cuSeqlens,
            Tensor angles,
            Direction direction,
            QkvFormat format,
            long extent,
            Stream stream) {
        Checks.given("direction", direction);
        long headDim = headDim(angles, stream);
        Checks.matrix(stream, "qkv", qkv);
        long heads = qkv.size(1) / (3 * headDim);
        if (qkv.size(1) != 3 * heads * headDim || heads > MOST_HEADS) {
            throw new IllegalArgumentException("qkv: expected [T, 3 h d] with head dimension " + headDim
                    + " and at most " + MOST_HEADS + " heads, got " + Checks.describe(qkv));
        }
        TokenLayout.check("qkv", qkv, cuSeqlens, format, extent, stream);
        Checks.writable("qkv", qkv);
        Checks.apart("qkv", qkv, "angles", angles);
        if (cuSeqlens != null) {
            Checks.apart("qkv", qkv, "cuSeqlens", cuSeqlens);
        }
        if (qkv.count() == 0) {
            return;
        }
        Status.ops(
                Ops.ops_rotary_packed(
                        qkv.address(),
                        Checks.addressOrNull(cuSeqlens),
                        angles.address(),
                        direction.sign,
                        TokenLayout.code(format),
                        qkv.size(0),
                        extent,
                        angles.size(0),
                        heads,
                        headDim,
                        qkv.dtype().code(),
                        stream.handle()),
                "ops_rotary_packed");
    }

    private static long headDim(Tensor angles, Stream stream) {
        Checks.typed(stream, "angles", angles, DType.FLOAT32);
        int rank = angles.rank();
        long headDim = rank == 0 ? 0 : angles.size(rank - 1);
        boolean shaped = rank > 1 && angles.count() == angles.size(0) * headDim;
        if (!shaped || headDim < 2 || headDim % 2 != 0 || headDim > MOST_HEAD_DIM) {
            throw new IllegalArgumentException("angles: expected FLOAT32[positions, d] with d even and at most "
                    + MOST_HEAD_DIM + ", got " + Checks.describe(angles));
        }
        return headDim;
    }
}
