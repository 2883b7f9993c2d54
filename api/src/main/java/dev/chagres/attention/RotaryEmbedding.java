package dev.chagres.attention;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.ops.QkvHeads;
import dev.chagres.ops.Rotary;
import dev.chagres.ops.RotaryTable;
import dev.chagres.ops.TokenPositions;
import dev.chagres.te.FusedRope;
import dev.chagres.te.QkvFormat;
import org.jspecify.annotations.Nullable;

/**
 * Rotary position embedding: the elements {@code (a, b)} of a pair become {@code (a cos - b sin, b cos + a sin)} of the angle
 * {@code position * frequency}. {@link RotaryConfig} says which elements are pairs and what their frequencies are.
 *
 * <p>Positions count from 0 in each sequence, or from its start position: {@link Sequences#startingAt}. The backward pass is the
 * inverse rotation.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Su et al., RoFormer (2021); TE's {@code RotaryPositionEmbedding}; {@code nvte_fused_rope_forward} in TE's
 * {@code fused_rope.h}, and {@code ops_rotary_packed} in {@code ops.h}.
 */
public final class RotaryEmbedding {
    /** As many as a Java array holds. */
    private static final int MOST_ANGLES = Integer.MAX_VALUE - 8;

    private final RotaryConfig config;
    private final RotaryTable table;
    private final Tensor angles;
    private final FusedRope rotation;
    private final int positions;
    /** The issue number of the tensor that holds the angles. */
    private final int issue;
    /** The positions of the tokens of the current call. */
    private final TokenPositions tokens = new TokenPositions();
    /** The heads of the last packed buffer. */
    private QkvHeads packedHeads;

    private RotaryEmbedding(Tensor angles, int positions, RotaryConfig config) {
        this.config = config;
        this.angles = angles;
        this.positions = positions;
        rotation = new FusedRope(angles, config.pairing());
        table = new RotaryTable(angles, config.pairing());
        packedHeads = new QkvHeads(1, 1, config.headDim());
        issue = Inside.issue(angles);
    }

    /**
     * Computes the angles of whole heads by halves, with base 10,000.
     *
     * @param scope owns the angles
     * @param positions longest sequence that can be rotated
     * @param headDim size of a head, even
     * @throws IllegalArgumentException when a size is not positive or the head dimension is odd
     */
    public static RotaryEmbedding of(Scope scope, int positions, int headDim) {
        return of(scope, positions, RotaryConfig.of(headDim));
    }

    /**
     * Computes the angles that {@code config} says.
     *
     * @param scope owns the angles
     * @param positions positions that can be rotated: no sequence may end behind them
     * @throws IllegalArgumentException when there are no positions, or too many angles, or one that FLOAT32 does not hold
     */
    public static RotaryEmbedding of(Scope scope, int positions, RotaryConfig config) {
        Checks.given("scope", scope, "config", config);
        Checks.atLeastOne("positions", positions);
        int rotated = config.rotatedDim();
        if ((long) positions * rotated > MOST_ANGLES) {
            throw new IllegalArgumentException("positions, rotatedDim: expected a product of at most " + MOST_ANGLES
                    + " angles, got " + positions + " and " + rotated);
        }
        Tensor angles = scope.tensor(DType.FLOAT32, positions, 1, 1, rotated);
        angles.set(scope.stream(), angles(positions, config));
        Inside.fix(angles);
        return new RotaryEmbedding(angles, positions, config);
    }

    /** Returns the angles [positions, r], each twice: in both halves of a row or, interleaved, in neighbours. */
    private static float[] angles(int positions, RotaryConfig config) {
        int rotated = config.rotatedDim();
        int half = rotated / 2;
        double[] frequencies = config.angularFrequencies();
        float[] values = new float[positions * rotated];
        for (int position = 0; position < positions; position++) {
            for (int i = 0; i < half; i++) {
                float angle = (float) (position * frequencies[i]);
                if (!Float.isFinite(angle)) {
                    throw new IllegalArgumentException("config: expected angles that FLOAT32 holds, got " + angle
                            + " at position " + position + " for " + config);
                }
                int first = position * rotated + (config.isInterleaved() ? 2 * i : i);
                values[first] = angle;
                values[first + (config.isInterleaved() ? 1 : half)] = angle;
            }
        }
        return values;
    }

    /** Returns what is rotated, and by what. */
    public RotaryConfig config() {
        return config;
    }

    /** Returns the positions that can be rotated. */
    public int positions() {
        return positions;
    }

    /** Returns the size of a head. */
    public int headDim() {
        return config.headDim();
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
        rotation.forward(
                x, offsets(sequences), sequences.startPositions(), y, sequences.format(), sequences.length(), stream);
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
        rotation.backward(
                dy, offsets(sequences), sequences.startPositions(), dx, sequences.format(), sequences.length(), stream);
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
        int headDim = config.headDim();
        if (qkv.rank() != 2 || qkv.size(1) == 0 || qkv.size(1) % (3L * headDim) != 0) {
            throw new IllegalArgumentException(argument + ": expected [T, 3 h d] with head dimension " + headDim
                    + ", got " + Checks.describe(qkv));
        }
        int heads = (int) (qkv.size(1) / (3L * headDim));
        if (packedHeads.heads() != heads || packedHeads.keyHeads() != heads) {
            packedHeads = new QkvHeads(heads, heads, headDim);
        }
        rotate(argument, qkv, packedHeads, sequences, direction, stream);
    }

    /**
     * Enqueues the rotation, in place, of query and key inside a buffer of {@code heads}.
     *
     * @param qkv [T, (h + 2 g) d]
     * @throws IllegalArgumentException when shapes do not fit, or a sequence ends behind {@link #positions()}
     */
    public void rotatePacked(
            Tensor qkv, QkvHeads heads, Sequences sequences, Rotary.Direction direction, Stream stream) {
        rotate("qkv", qkv, heads, sequences, direction, stream);
    }

    private void rotate(
            String argument,
            Tensor qkv,
            QkvHeads heads,
            Sequences sequences,
            Rotary.Direction direction,
            Stream stream) {
        Checks.on(stream, argument, qkv);
        Checks.given("heads", heads);
        if (qkv.rank() != 2) {
            throw new IllegalArgumentException(argument + ": expected [T, (h + 2 g) d], got " + Checks.describe(qkv));
        }
        Checks.given("sequences", sequences).checkTokens(argument, qkv, qkv.size(0));
        checkSequences(sequences, stream);
        if (qkv.count() > 0) {
            Rotary.rotaryPacked(qkv, heads, table, sequences.positions(tokens), direction, stream);
        }
    }

    /**
     * Enqueues a copy of query, key and value out of one buffer, query and key rotated.
     *
     * @param qkv [T, (h + 2 g) d]
     * @param q receives the query: T h d elements
     * @param k receives the key: T g d elements; so {@code v}
     * @throws IllegalArgumentException when shapes do not fit, or a sequence ends behind {@link #positions()}
     */
    public void split(Tensor qkv, QkvHeads heads, Sequences sequences, Tensor q, Tensor k, Tensor v, Stream stream) {
        checkSequences(sequences, stream);
        Rotary.rotarySplit(qkv, heads, table, sequences.positions(tokens), q, k, v, stream);
    }

    /**
     * Enqueues the gradient of {@link #split}.
     *
     * @param dqkv receives the gradient of the buffer
     * @throws IllegalArgumentException when shapes do not fit, or a sequence ends behind {@link #positions()}
     */
    public void join(Tensor dq, Tensor dk, Tensor dv, QkvHeads heads, Sequences sequences, Tensor dqkv, Stream stream) {
        checkSequences(sequences, stream);
        Rotary.rotaryJoin(dq, dk, dv, heads, table, sequences.positions(tokens), dqkv, stream);
    }

    private void check(String argument, Tensor x, Sequences sequences, Stream stream) {
        Checks.floats(stream, argument, x);
        if (!Checks.given("sequences", sequences).fits(x) || x.size(x.rank() - 1) != config.headDim()) {
            throw new IllegalArgumentException(
                    argument + ": expected " + sequences.shapeText() + " with head dimension " + config.headDim()
                            + " over " + sequences + ", got " + Checks.describe(x));
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
        Checks.given("sequences", sequences).check();
        if (Inside.isTakenBack(angles, issue)) {
            throw new IllegalStateException(
                    "rotary embedding: its scope was restarted since it was made, and may have handed"
                            + " out its memory for something else; make it in a scope that is not restarted");
        }
        Checks.on(stream, "rotary embedding", angles);
        if (sequences.positions() > positions) {
            throw new IllegalArgumentException("sequences: expected none longer than the " + positions
                    + " positions of the rotary embedding, got " + sequences.length()
                    + (sequences.latestStart() == 0
                            ? ""
                            : ", and one that starts at position " + sequences.latestStart()));
        }
    }

    private static @Nullable Tensor offsets(Sequences sequences) {
        return sequences.format() == QkvFormat.THD ? sequences.placement().offsets() : null;
    }
}
