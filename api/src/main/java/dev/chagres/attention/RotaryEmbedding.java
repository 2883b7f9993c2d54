package dev.chagres.attention;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.ops.Rotary;
import dev.chagres.te.FusedRope;
import dev.chagres.te.QkvFormat;
import org.jspecify.annotations.Nullable;

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
    /** As many as a Java array holds. */
    private static final int MOST_ANGLES = Integer.MAX_VALUE - 8;

    private final Tensor angles;
    private final int positions;
    private final int headDim;
    /** The issue number of the tensor that holds the angles. */
    private final int issue;

    private RotaryEmbedding(Tensor angles, int positions, int headDim) {
        this.angles = angles;
        this.positions = positions;
        this.headDim = headDim;
        issue = Inside.issue(angles);
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
        Checks.given("scope", scope);
        if (positions < 1) {
            throw new IllegalArgumentException("positions: expected at least 1, got " + positions);
        }
        if (headDim < 2 || headDim % 2 != 0) {
            throw new IllegalArgumentException("headDim: expected a positive even number, got " + headDim);
        }
        if ((long) positions * headDim > MOST_ANGLES) {
            throw new IllegalArgumentException("positions, headDim: expected a product of at most " + MOST_ANGLES
                    + " angles, got " + positions + " and " + headDim);
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
        Inside.fix(angles);
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
     * @param y receives the rotated heads, like {@code x}, in memory of its own
     * @throws IllegalArgumentException when shapes do not fit, or a sequence is longer than {@link #positions()}
     */
    public void forward(Tensor x, Tensor y, Sequences sequences, Stream stream) {
        check("x", x, sequences, stream);
        FusedRope.forward(
                x,
                offsets(sequences),
                angles,
                null,
                y,
                sequences.format(),
                FusedRope.Pairing.HALVES,
                sequences.length(),
                stream);
    }

    /**
     * Enqueues the inverse rotation of a gradient.
     *
     * @param dy gradient of the rotated tensor
     * @param dx receives the gradient of what was rotated, like {@code dy}, in memory of its own
     * @throws IllegalArgumentException when shapes do not fit, or a sequence is longer than {@link #positions()}
     */
    public void backward(Tensor dy, Tensor dx, Sequences sequences, Stream stream) {
        check("dy", dy, sequences, stream);
        FusedRope.backward(
                dy,
                offsets(sequences),
                angles,
                null,
                dx,
                sequences.format(),
                FusedRope.Pairing.HALVES,
                sequences.length(),
                stream);
    }

    /**
     * Enqueues the rotation, in place, of query and key inside a packed buffer; the value stays.
     *
     * @param qkv [T, 3 h d]
     * @throws IllegalArgumentException when shapes do not fit, or a sequence is longer than {@link #positions()}
     */
    public void rotatePacked(Tensor qkv, Sequences sequences, Stream stream) {
        rotatePacked("qkv", qkv, sequences, Rotary.Direction.FORWARD, stream);
    }

    /**
     * Enqueues the inverse of {@link #rotatePacked}, for the gradient of the buffer.
     *
     * @param dqkv [T, 3 h d]
     * @throws IllegalArgumentException when shapes do not fit, or a sequence is longer than {@link #positions()}
     */
    public void rotatePackedBack(Tensor dqkv, Sequences sequences, Stream stream) {
        rotatePacked("dqkv", dqkv, sequences, Rotary.Direction.BACKWARD, stream);
    }

    private void rotatePacked(
            String argument, Tensor qkv, Sequences sequences, Rotary.Direction direction, Stream stream) {
        Checks.floats(stream, argument, qkv);
        if (qkv.rank() != 2 || qkv.size(1) == 0 || qkv.size(1) % (3L * headDim) != 0) {
            throw new IllegalArgumentException(argument + ": expected [T, 3 h d] with head dimension " + headDim
                    + ", got " + Checks.describe(qkv));
        }
        sequences.checkTokens(argument, qkv, qkv.size(0));
        checkSequences(sequences, stream);
        if (qkv.count() == 0) {
            return;
        }
        long extent = sequences.format() == QkvFormat.BSHD ? sequences.length() : sequences.batch();
        Rotary.rotaryPacked(qkv, offsets(sequences), angles, direction, sequences.format(), extent, stream);
    }

    private void check(String argument, Tensor x, Sequences sequences, Stream stream) {
        Checks.floats(stream, argument, x);
        if (!sequences.fits(x) || x.size(x.rank() - 1) != headDim) {
            throw new IllegalArgumentException(argument + ": expected " + sequences.shapeText()
                    + " with head dimension " + headDim + " over " + sequences + ", got " + Checks.describe(x));
        }
        checkSequences(sequences, stream);
    }

    /**
     * Checks that the sequences can be rotated.
     *
     * @throws IllegalArgumentException when one is longer than {@link #positions()}, or the device does not fit
     * @throws IllegalStateException when the angles' scope was restarted or closed
     */
    public void checkSequences(Sequences sequences, Stream stream) {
        sequences.check();
        Checks.on(stream, "rotary embedding", angles);
        if (Inside.issue(angles) != issue) {
            throw new IllegalStateException(
                    "rotary embedding: its scope was restarted since it was made, and has handed"
                            + " out its memory for something else; make it in a scope that is not restarted");
        }
        if (sequences.length() > positions) {
            throw new IllegalArgumentException("sequences: expected none longer than the " + positions
                    + " positions of the rotary embedding, got " + sequences.length());
        }
    }

    private static @Nullable Tensor offsets(Sequences sequences) {
        return sequences.format() == QkvFormat.THD ? sequences.cuSeqlens().offsets() : null;
    }
}
