package dev.chagres.attention;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.TensorCell;
import dev.chagres.internal.Transfer;
import java.lang.foreign.MemorySegment;

/**
 * Rotary position embedding: with {@code angle = position * base^(-2 i / d)} each pair {@code (x[i], x[i + d/2])} of a head
 * becomes {@code (x[i] cos - x[i + d/2] sin, x[i + d/2] cos + x[i] sin)}.
 *
 * <p>Positions count from 0 in each sequence. The backward pass is the inverse rotation.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Su et al., RoFormer (2021); {@code nvte_fused_rope_forward} in TE's {@code fused_rope.h}, and
 * {@code ops_rotary_packed} in {@code ops.h}.
 */
public final class RotaryEmbedding {
    private static final double BASE = 10_000;

    /** TE's two functions of rotation, which take the same arguments. */
    @FunctionalInterface
    private interface Rotation {
        int call(
                MemorySegment x,
                MemorySegment cuSeqlens,
                MemorySegment angles,
                MemorySegment startPositions,
                MemorySegment y,
                int format,
                boolean interleaved,
                int contextParallelSize,
                int contextParallelRank,
                int length,
                int batch,
                int heads,
                int headDim,
                int rotatedDim,
                int tokenStride,
                int sequenceStride,
                int headStride,
                int elementStride,
                MemorySegment stream);
    }

    private final Tensor angles;
    private final int positions;
    private final int headDim;
    /** Which time of handing out their memory the angles are the content of. */
    private final int issue;

    private RotaryEmbedding(Tensor angles, int positions, int headDim) {
        this.angles = angles;
        this.positions = positions;
        this.headDim = headDim;
        issue = angles.cell().issue();
    }

    /**
     * Computes the angles, with base 10,000.
     *
     * @param scope owns the angles
     * @param positions longest sequence that can be rotated
     * @param headDim size of a head, even
     * @throws IllegalArgumentException when a size is not positive or the head dimension is odd
     */
    public static RotaryEmbedding of(Scope scope, int positions, int headDim) {
        if (positions < 1) {
            throw new IllegalArgumentException("positions: expected at least 1, got " + positions);
        }
        if (headDim < 2 || headDim % 2 != 0) {
            throw new IllegalArgumentException("headDim: expected a positive even number, got " + headDim);
        }
        if ((long) positions * headDim > Transfer.MAX_ARRAY_LENGTH) {
            throw new IllegalArgumentException("positions, headDim: expected a product of at most "
                    + Transfer.MAX_ARRAY_LENGTH + " angles, got " + positions + " and " + headDim);
        }
        int half = headDim / 2;
        float[] values = new float[positions * headDim];
        for (int position = 0; position < positions; position++) {
            for (int i = 0; i < half; i++) {
                float angle = (float) (position * Math.pow(BASE, -2.0 * i / headDim));
                values[position * headDim + i] = angle;
                values[position * headDim + half + i] = angle;
            }
        }
        Tensor angles = scope.tensor(DType.FLOAT32, positions, 1, 1, headDim);
        angles.set(scope.stream(), values);
        angles.cell().fix();
        return new RotaryEmbedding(angles, positions, headDim);
    }

    /** Returns the longest sequence that can be rotated. */
    public int positions() {
        return positions;
    }

    /** Returns the size of a head. */
    public int headDim() {
        return headDim;
    }

    /**
     * Enqueues the rotation of query or key.
     *
     * @param x [T, h, d] packed, [B, S, h, d] or [S, B, h, d]
     * @return rotated, like {@code x}, in {@code scope}
     * @throws IllegalArgumentException when shapes do not fit, or a sequence is longer than {@link #positions()}
     */
    public Tensor forward(Tensor x, Sequences sequences, Scope scope) {
        return rotated("x", x, sequences, scope, TransformerEngine::te_fused_rope_forward, "nvte_fused_rope_forward");
    }

    /**
     * Enqueues the inverse rotation of a gradient.
     *
     * @param dy gradient of the rotated tensor, like it
     * @return gradient of what was rotated, like {@code dy}, in {@code scope}
     * @throws IllegalArgumentException when shapes do not fit, or a sequence is longer than {@link #positions()}
     */
    public Tensor backward(Tensor dy, Sequences sequences, Scope scope) {
        return rotated(
                "dy", dy, sequences, scope, TransformerEngine::te_fused_rope_backward, "nvte_fused_rope_backward");
    }

    /**
     * Enqueues the rotation, in place, of query and key inside a packed buffer; the value stays.
     *
     * @param qkv [T, 3 h d]
     * @throws IllegalArgumentException when shapes do not fit, or a sequence is longer than {@link #positions()}
     */
    public void rotatePacked(Tensor qkv, Sequences sequences, Scope scope) {
        rotatePacked("qkv", qkv, sequences, 1, scope);
    }

    /**
     * Enqueues the inverse of {@link #rotatePacked}, for the gradient of the buffer.
     *
     * @param dqkv [T, 3 h d]
     * @throws IllegalArgumentException when shapes do not fit, or a sequence is longer than {@link #positions()}
     */
    public void rotatePackedBack(Tensor dqkv, Sequences sequences, Scope scope) {
        rotatePacked("dqkv", dqkv, sequences, -1, scope);
    }

    private void rotatePacked(String argument, Tensor qkv, Sequences sequences, int direction, Scope scope) {
        TensorCell cell = Checks.floats(scope, argument, qkv);
        if (cell.rank() != 2 || cell.size(1) == 0 || cell.size(1) % (3L * headDim) != 0) {
            throw new IllegalArgumentException(argument + ": expected [T, 3 h d] with head dimension " + headDim
                    + ", got " + Checks.describe(cell));
        }
        sequences.checkTokens(argument, qkv, cell.size(0));
        checkSequences(sequences, scope);
        if (cell.size(0) == 0) {
            return;
        }
        Status.ops(
                Ops.ops_rotary_packed(
                        cell.pointer(),
                        sequences.format() == Sequences.Format.THD
                                ? sequences.cuSeqlens().offsets().pointer()
                                : MemorySegment.NULL,
                        angles.pointer(),
                        direction,
                        layout(sequences),
                        cell.size(0),
                        sequences.format() == Sequences.Format.BSHD ? sequences.length() : sequences.batch(),
                        positions,
                        cell.size(1) / (3L * headDim),
                        headDim,
                        cell.dtype().code(),
                        scope.stream().handle()),
                "ops_rotary_packed");
    }

    private Tensor rotated(
            String argument, Tensor x, Sequences sequences, Scope scope, Rotation rotation, String function) {
        TensorCell cell = check(argument, x, sequences, scope);
        Tensor y = scope.like(x);
        long token = cell.size(cell.rank() - 2) * headDim;
        int status = rotation.call(
                cell.handle(),
                lengths(sequences),
                angles.cell().handle(),
                scope.device().state().calls().unset(),
                y.cell().handle(),
                sequences.format().code(),
                false,
                1,
                0,
                (int) sequences.length(),
                (int) sequences.batch(),
                (int) cell.size(cell.rank() - 2),
                headDim,
                headDim,
                stride(argument, token * sequences.tokenStride()),
                stride(argument, token * sequences.sequenceStride()),
                headDim,
                1,
                scope.stream().handle());
        Status.te(status, function);
        return y;
    }

    private static int stride(String argument, long elements) {
        if (elements > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(
                    argument + ": expected at most " + Integer.MAX_VALUE + " elements from one"
                            + " token or sequence to the next, which TE counts in 32 bits, got " + elements);
        }
        return (int) elements;
    }

    private TensorCell check(String argument, Tensor x, Sequences sequences, Scope scope) {
        TensorCell cell = Checks.floats(scope, argument, x);
        if (!sequences.fits(cell) || cell.size(cell.rank() - 1) != headDim) {
            throw new IllegalArgumentException(argument + ": expected " + sequences.shape() + " with head dimension "
                    + headDim + " over " + sequences + ", got " + Checks.describe(cell));
        }
        checkSequences(sequences, scope);
        return cell;
    }

    /**
     * Checks that the sequences can be rotated.
     *
     * @throws IllegalArgumentException when one is longer than {@link #positions()}, or the device does not fit
     */
    public void checkSequences(Sequences sequences, Scope scope) {
        sequences.cuSeqlens().checked(scope);
        if (Checks.on(scope, "rotary embedding", angles).issue() != issue) {
            throw new IllegalStateException(
                    "rotary embedding: its scope was restarted since it was made, and has handed"
                            + " out its memory for something else; make it in a scope that is not restarted");
        }
        if (sequences.length() > positions) {
            throw new IllegalArgumentException("sequences: expected none longer than the " + positions
                    + " positions of the rotary embedding, got " + sequences.length());
        }
    }

    private static MemorySegment lengths(Sequences sequences) {
        Tensor offsets = sequences.cuSeqlens().offsets();
        return sequences.format() == Sequences.Format.THD
                ? offsets.cell().handle()
                : offsets.cell().scope().device().calls().unset();
    }

    private static int layout(Sequences sequences) {
        return switch (sequences.format()) {
            case THD -> Ops.OPS_THD();
            case BSHD -> Ops.OPS_BSHD();
            case SBHD -> Ops.OPS_SBHD();
        };
    }
}
