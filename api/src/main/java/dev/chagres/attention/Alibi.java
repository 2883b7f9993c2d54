package dev.chagres.attention;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import java.util.Arrays;

/**
 * Attention with linear biases: the score of query i and key j gets {@code -slope |i + d - j|}, with a slope for each head. d is 0 under a
 * causal mask. Otherwise, also under a bottom-right causal mask, d is the number of the sequence's keys minus that of its queries, so that
 * the last query is aligned with the last key.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Press et al., Train short, test long: attention with linear biases (2021); {@code get_alibi} and
 * {@code alibi_slopes} of TE for PyTorch.
 */
public final class Alibi {
    private static final double EXPONENTS = 8;
    private static final int MOST_HEADS = 65_535;

    private final Tensor slopes;
    private final int heads;
    private final boolean usual;
    /** The issue number of the tensor that holds the slopes. */
    private final int issue;

    private Alibi(Tensor slopes, int heads, boolean usual) {
        this.slopes = slopes;
        this.heads = heads;
        this.usual = usual;
        issue = Inside.issue(slopes);
    }

    /**
     * The usual slopes: with n the largest power of two that is at most {@code heads}, the first n are
     * {@code 2^(-8/n), 2^(-16/n), …, 2^-8}, and the rest every second of those that 2n heads would have.
     *
     * @param scope owns the slopes on the device
     * @throws IllegalArgumentException when there is no head, or there are more than 65,535
     */
    public static Alibi of(Scope scope, int heads) {
        Checks.atLeastOne("heads", heads);
        if (heads > MOST_HEADS) {
            throw new IllegalArgumentException("heads: expected at most " + MOST_HEADS + ", got " + heads);
        }
        return ofSlopes(scope, usualSlopes(heads));
    }

    private static float[] usualSlopes(int heads) {
        int power = Integer.highestOneBit(heads);
        float[] slopes = new float[heads];
        for (int head = 0; head < heads; head++) {
            double exponent =
                    head < power ? EXPONENTS / power * (head + 1) : EXPONENTS / (2 * power) * (2 * (head - power) + 1);
            slopes[head] = (float) Math.pow(2, -exponent);
        }
        return slopes;
    }

    /**
     * Makes biases with these slopes.
     *
     * @param scope owns the slopes on the device
     * @param slopes one for each head
     * @throws IllegalArgumentException when there is none, there are more than 65,535, or one is no finite number
     */
    public static Alibi ofSlopes(Scope scope, float... slopes) {
        Checks.given("scope", scope);
        if (Checks.given("slopes", slopes).length == 0) {
            throw new IllegalArgumentException("slopes: expected one of each head, got none");
        }
        if (slopes.length > MOST_HEADS) {
            throw new IllegalArgumentException("slopes: expected at most " + MOST_HEADS + ", got " + slopes.length);
        }
        for (int i = 0; i < slopes.length; i++) {
            if (!Float.isFinite(slopes[i])) {
                throw new IllegalArgumentException("slopes: expected finite numbers, got " + slopes[i] + " at " + i);
            }
        }
        Tensor tensor = scope.tensor(DType.FLOAT32, slopes.length);
        tensor.set(scope.stream(), slopes);
        Inside.fix(tensor);
        return new Alibi(tensor, slopes.length, Arrays.equals(slopes, usualSlopes(slopes.length)));
    }

    /** Returns the number of heads. */
    public int heads() {
        return heads;
    }

    /** Returns whether the slopes are those of {@link #of}, which are the slopes that cuDNN computes by itself. */
    public boolean hasUsualSlopes() {
        return usual;
    }

    /**
     * Returns the slopes on the device: FLOAT32 [h]. They cannot be written to.
     *
     * @throws IllegalStateException when their scope is closed, or was restarted since
     */
    public Tensor slopes() {
        if (Inside.isTakenBack(slopes, issue)) {
            throw new IllegalStateException(
                    "alibi: the scope that holds the slopes was restarted since they were made, and"
                            + " may have handed out their memory for something else; make them again");
        }
        slopes.address();
        return slopes;
    }

    /** Returns whether the slopes are the usual ones, and the number of heads. */
    @Override
    public String toString() {
        return (usual ? "ALiBi of " : "ALiBi with slopes of one's own of ") + heads + (heads == 1 ? " head" : " heads");
    }
}
