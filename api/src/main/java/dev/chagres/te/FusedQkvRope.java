package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.CallMemory;
import dev.chagres.internal.Checks;
import dev.chagres.te.FusedRope.Pairing;
import org.jspecify.annotations.Nullable;

/**
 * Rotary position embedding of a projection that interleaves queries, keys and values. The angle of a token's position rotates each pair
 * {@code (a, b)} of the first r elements of a query's or key's head to {@code (a cos - b sin, b cos + a sin)}; their other elements and the
 * values are copied.
 *
 * <p>The projection has g groups of heads: a group holds its heads of q, then those of k, then those of v. Head i of q is head {@code i %
 * (hq / g)} of group {@code i / (hq / g)}; the same holds for k and v.
 *
 * <p>Positions count from 0 in each sequence, or from its start position. The gradient takes the inverse rotation.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_qkv_rope_forward}, {@code nvte_fused_qkv_rope_backward} in TE's {@code fused_rope.h}.
 *
 * @param qFreqs angles of queries, FLOAT32 [positions, 1, 1, r], r even, at most d and at most 3072, positions at least S
 * @param kFreqs angles of keys, FLOAT32 [positions, 1, 1, r]
 * @param pairing which two of a head's r rotated elements form a pair
 */
public record FusedQkvRope(Tensor qFreqs, Tensor kFreqs, Pairing pairing) {
    /** TE starts a block for each sequence in a grid's second dimension. */
    private static final int MOST_SEQUENCES = 65_535;
    /** Four floats for each angle fill the 48 KiB of shared memory that a block has. */
    private static final int MOST_ROTATED = 3072;

    /** Shapes of qkv, whole: put together in each call they would be garbage. */
    private static final String BSHD = "[B, S, g, (hq + hk + hv) / g d]";

    private static final String SBHD = "[S, B, g, (hq + hk + hv) / g d]";

    /** Makes rotations by angles, which each call checks. */
    public FusedQkvRope {
        Checks.given("qFreqs", qFreqs, "kFreqs", kFreqs, "pairing", pairing);
    }

    /**
     * Enqueues the rotation, {@code nvte_fused_qkv_rope_forward}. All have one floating-point type; outputs overlap no other tensor.
     *
     * @param qkvInput [B, S, g, (hq + hk + hv) / g d] or [S, B, g, …], as the format says, B at most 65535
     * @param startPositions INT32 [B], the position of each sequence's first token, which is trusted; null: all 0
     * @param qOut [B, S, hq, d] or [S, B, hq, d], hq a multiple of g
     * @param kOut [B, S, hk, d] or [S, B, hk, d], hk a multiple of g
     * @param vOut [B, S, hv, d] or [S, B, hv, d], hv a multiple of g
     * @param format BSHD or SBHD
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or an output shares memory
     */
    public void forward(
            Tensor qkvInput,
            @Nullable Tensor startPositions,
            Tensor qOut,
            Tensor kOut,
            Tensor vOut,
            QkvFormat format,
            Stream stream) {
        groups("qkvInput", qkvInput, format, stream);
        part("qOut", qOut, "qkvInput", qkvInput, format, stream);
        part("kOut", kOut, "qkvInput", qkvInput, format, stream);
        part("vOut", vOut, "qkvInput", qkvInput, format, stream);
        parts("qkvInput", qkvInput, qOut, kOut, vOut);
        angles(qOut, format, stream);
        int sequences = sequences(qkvInput, format);
        if (startPositions != null) {
            Checks.vector(stream, "startPositions", startPositions, DType.INT32, sequences);
        }
        CallMemory.of(stream)
                .read("qkvInput", qkvInput)
                .read("qFreqs", qFreqs)
                .read("kFreqs", kFreqs)
                .read("startPositions", startPositions)
                .written("vOut", vOut)
                .written("kOut", kOut)
                .written("qOut", qOut);
        if (qkvInput.count() == 0) {
            return;
        }
        int groups = (int) qkvInput.size(2);
        int status = TransformerEngine.te_fused_qkv_rope_forward(
                qkvInput.handle(),
                qFreqs.handle(),
                kFreqs.handle(),
                FusedRope.handle(startPositions, stream),
                qOut.handle(),
                kOut.handle(),
                vOut.handle(),
                format.code(),
                pairing == Pairing.INTERLEAVED,
                1,
                0,
                length(qkvInput, format),
                sequences,
                groups,
                (int) qOut.size(3),
                (int) qFreqs.size(3),
                elements(qOut, groups),
                elements(kOut, groups),
                elements(vOut, groups),
                stream.handle());
        Status.te(status, "te_fused_qkv_rope_forward");
    }

    /**
     * Enqueues the inverse rotation, {@code nvte_fused_qkv_rope_backward}: the gradient of {@link #forward} without start positions, which
     * TE's backward does not take. Shapes and types are those of forward.
     *
     * @param qGradOut gradient of qOut
     * @param kGradOut gradient of kOut
     * @param vGradOut gradient of vOut
     * @param qkvGradInput gradient of qkvInput
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or qkvGradInput shares memory
     */
    public void backward(
            Tensor qGradOut, Tensor kGradOut, Tensor vGradOut, Tensor qkvGradInput, QkvFormat format, Stream stream) {
        groups("qkvGradInput", qkvGradInput, format, stream);
        part("qGradOut", qGradOut, "qkvGradInput", qkvGradInput, format, stream);
        part("kGradOut", kGradOut, "qkvGradInput", qkvGradInput, format, stream);
        part("vGradOut", vGradOut, "qkvGradInput", qkvGradInput, format, stream);
        parts("qkvGradInput", qkvGradInput, qGradOut, kGradOut, vGradOut);
        angles(qGradOut, format, stream);
        Checks.written("qkvGradInput", qkvGradInput, "qGradOut", qGradOut, "kGradOut", kGradOut);
        Checks.apart("qkvGradInput", qkvGradInput, "vGradOut", vGradOut, "qFreqs", qFreqs, "kFreqs", kFreqs);
        if (qkvGradInput.count() == 0) {
            return;
        }
        int groups = (int) qkvGradInput.size(2);
        int status = TransformerEngine.te_fused_qkv_rope_backward(
                qGradOut.handle(),
                kGradOut.handle(),
                vGradOut.handle(),
                qFreqs.handle(),
                kFreqs.handle(),
                qkvGradInput.handle(),
                format.code(),
                pairing == Pairing.INTERLEAVED,
                1,
                0,
                length(qkvGradInput, format),
                sequences(qkvGradInput, format),
                groups,
                (int) qGradOut.size(3),
                (int) qFreqs.size(3),
                elements(qGradOut, groups),
                elements(kGradOut, groups),
                elements(vGradOut, groups),
                stream.handle());
        Status.te(status, "te_fused_qkv_rope_backward");
    }

    private static int length(Tensor qkv, QkvFormat format) {
        return (int) qkv.size(format == QkvFormat.BSHD ? 1 : 0);
    }

    private static int sequences(Tensor qkv, QkvFormat format) {
        return (int) qkv.size(format == QkvFormat.BSHD ? 0 : 1);
    }

    /** Returns how many elements of a group belong to this part. */
    private static int elements(Tensor part, int groups) {
        return (int) (part.size(2) / groups * part.size(3));
    }

    private static void groups(String argument, Tensor qkv, QkvFormat format, Stream stream) {
        if (Checks.given("format", format) == QkvFormat.THD) {
            throw new IllegalArgumentException(
                    "format: expected BSHD or SBHD, got THD; FusedRope rotates packed tokens");
        }
        FusedRope.shaped(argument, qkv, format.rank(), format == QkvFormat.BSHD ? BSHD : SBHD, stream);
        if (qkv.size(2) == 0) {
            throw new IllegalArgumentException(
                    argument + ": expected at least one group of heads, got " + Checks.describe(qkv));
        }
        if (qkv.size(format == QkvFormat.BSHD ? 0 : 1) > MOST_SEQUENCES) {
            throw new IllegalArgumentException(argument + ": expected at most " + MOST_SEQUENCES
                    + " sequences, as many as TE can start blocks for, got " + Checks.describe(qkv));
        }
    }

    private static void part(
            String argument, Tensor part, String qkvArgument, Tensor qkv, QkvFormat format, Stream stream) {
        FusedRope.heads(argument, part, format, stream);
        boolean fits = part.dtype() == qkv.dtype()
                && part.size(0) == qkv.size(0)
                && part.size(1) == qkv.size(1)
                && part.size(2) != 0
                && part.size(2) % qkv.size(2) == 0;
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected " + qkv.dtype() + "[" + qkv.size(0) + ", "
                    + qkv.size(1) + ", h, d] with h a multiple of the " + qkv.size(2) + " groups of " + qkvArgument
                    + ", got " + Checks.describe(part));
        }
    }

    private static void parts(String argument, Tensor qkv, Tensor q, Tensor k, Tensor v) {
        long headDim = q.size(3);
        long elements = (q.size(2) + k.size(2) + v.size(2)) / qkv.size(2) * headDim;
        if (k.size(3) != headDim || v.size(3) != headDim || qkv.size(3) != elements) {
            throw new IllegalArgumentException(argument + ": expected groups that hold all heads, of one size, of q "
                    + q.shape() + ", k " + k.shape() + " and v " + v.shape() + ", got " + Checks.describe(qkv));
        }
    }

    private void angles(Tensor q, QkvFormat format, Stream stream) {
        angles("qFreqs", qFreqs, q, format, stream);
        angles("kFreqs", kFreqs, q, format, stream);
        if (kFreqs.size(3) != qFreqs.size(3)) {
            throw new IllegalArgumentException("kFreqs: expected as many angles a position as qFreqs has, "
                    + qFreqs.size(3) + ", got " + Checks.describe(kFreqs));
        }
    }

    private static void angles(String argument, Tensor freqs, Tensor q, QkvFormat format, Stream stream) {
        Checks.typed(stream, argument, freqs, DType.FLOAT32);
        long positions = q.size(format == QkvFormat.BSHD ? 1 : 0);
        long most = Math.min(q.size(3), MOST_ROTATED);
        boolean fits = freqs.rank() == 4
                && freqs.size(0) >= positions
                && freqs.size(1) == 1
                && freqs.size(2) == 1
                && freqs.size(3) >= 2
                && freqs.size(3) % 2 == 0
                && freqs.size(3) <= most
                && freqs.count() <= Integer.MAX_VALUE;
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected FLOAT32[positions, 1, 1, r] of at least "
                    + positions
                    + " positions and at most " + Integer.MAX_VALUE + " elements, with r even, from 2 to " + most
                    + ", got " + Checks.describe(freqs));
        }
    }
}
