package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.te.FusedRope.Pairing;
import java.lang.foreign.MemorySegment;
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
 */
public final class FusedQkvRope {
    private FusedQkvRope() {}

    /**
     * Enqueues the rotation, {@code nvte_fused_qkv_rope_forward}. All have one floating-point type; outputs overlap no other tensor.
     *
     * @param qkvInput [B, S, g, (hq + hk + hv) / g d] or [S, B, g, …], as the format says, B at most 65535
     * @param qFreqs angles of queries, FLOAT32 [positions, 1, 1, r], r even, at most d and at most 3072, positions at least S
     * @param kFreqs angles of keys, FLOAT32 [positions, 1, 1, r]
     * @param startPositions INT32 [B], the position of each sequence's first token, which is trusted; null: all 0
     * @param qOut [B, S, hq, d] or [S, B, hq, d], hq a multiple of g
     * @param kOut [B, S, hk, d] or [S, B, hk, d], hk a multiple of g
     * @param vOut [B, S, hv, d] or [S, B, hv, d], hv a multiple of g
     * @param format BSHD or SBHD
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or an output shares memory
     */
    public static void forward(
            Tensor qkvInput,
            Tensor qFreqs,
            Tensor kFreqs,
            @Nullable Tensor startPositions,
            Tensor qOut,
            Tensor kOut,
            Tensor vOut,
            QkvFormat format,
            Pairing pairing,
            Stream stream) {
        FusedQkvRopeCheck.forward(qkvInput, qFreqs, kFreqs, startPositions, qOut, kOut, vOut, format, stream);
        Checks.given("pairing", pairing);
        if (qkvInput.count() == 0) {
            return;
        }
        int groups = (int) qkvInput.size(2);
        int status = TransformerEngine.te_fused_qkv_rope_forward(
                qkvInput.handle(),
                qFreqs.handle(),
                kFreqs.handle(),
                handle(startPositions, stream),
                qOut.handle(),
                kOut.handle(),
                vOut.handle(),
                format.code(),
                pairing == Pairing.INTERLEAVED,
                1,
                0,
                length(qkvInput, format),
                sequences(qkvInput, format),
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
    public static void backward(
            Tensor qGradOut,
            Tensor kGradOut,
            Tensor vGradOut,
            Tensor qFreqs,
            Tensor kFreqs,
            Tensor qkvGradInput,
            QkvFormat format,
            Pairing pairing,
            Stream stream) {
        FusedQkvRopeCheck.backward(qGradOut, kGradOut, vGradOut, qFreqs, kFreqs, qkvGradInput, format, stream);
        Checks.given("pairing", pairing);
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

    private static MemorySegment handle(@Nullable Tensor tensor, Stream stream) {
        return tensor == null ? Inside.state(stream).get(UnsetTensor.ATTACHMENT).handle() : tensor.handle();
    }
}
