package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Drop path: leaves a residual branch out of whole sequences, and scales it up in the others. Factors are drawn once, for forward and
 * backward.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_drop_path_factors}, {@code ops_scale_sequences_add} in {@code ops.h}; Huang et al., Deep networks
 * with stochastic depth (2016).
 */
public final class DropPath {
    private DropPath() {}

    /**
     * Enqueues {@code factors[b] = 1 / (1 - probability)} for sequences that are kept, 0 for the others. Sequence b draws as
     * value b of {@link Dropout} does.
     *
     * @param rngState INT64 [2]: seed and offset
     * @param probability of leaving a sequence out, at least 0 and below 1
     * @param factors FLOAT32 [B]
     * @throws IllegalArgumentException when shapes, types, probability or devices do not fit, or the factors share memory
     */
    public static void dropPathFactors(Tensor rngState, float probability, Tensor factors, Stream stream) {
        Checks.vector(stream, "rngState", rngState, DType.INT64, 2);
        Checks.probability("probability", probability);
        checkFactors(factors, stream);
        Checks.written("factors", factors, "rngState", rngState);
        Status.ops(
                Ops.ops_drop_path_factors(
                        rngState.address(), probability, factors.address(), factors.size(0), stream.handle()),
                "ops_drop_path_factors");
    }

    /**
     * Enqueues {@code y[t] = residual[t] + factors[sequence of t] x[t]}; without a residual, the product alone, which turns the gradient of
     * y into that of x. A factor of 0 leaves x[t] out, even if it is NaN. Tokens behind the last packed sequence have factor 0.
     *
     * @param x floating-point numbers [T, C]
     * @param residual like x, or null
     * @param y like x; may be x or the residual
     * @param factors FLOAT32 [B]
     * @param tokens the sequence of each token; positions play no part
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void scaleSequencesAdd(
            Tensor x, @Nullable Tensor residual, Tensor y, Tensor factors, TokenPositions tokens, Stream stream) {
        Checks.matrix(stream, "x", x);
        scaleSequencesAdd(x, residual, y, factors, tokens, 0, x.size(0), stream);
    }

    /**
     * Enqueues the same for a range of the tokens, such as one rank's shard: row t of x is token {@code first + t}.
     *
     * @param x floating-point numbers [T, C]
     * @param residual like x, or null
     * @param y like x; may be x or the residual
     * @param factors FLOAT32 [B]
     * @param tokens the sequence of each of all tokens; positions play no part
     * @param first the range's first token
     * @param whole number of all tokens
     * @throws IllegalArgumentException when shapes, types or devices do not fit, the stretch is none of the tokens, or y shares memory
     *     otherwise
     */
    public static void scaleSequencesAdd(
            Tensor x,
            @Nullable Tensor residual,
            Tensor y,
            Tensor factors,
            TokenPositions tokens,
            long first,
            long whole,
            Stream stream) {
        Checks.matrix(stream, "x", x);
        if (residual != null) {
            Checks.like(stream, "residual", residual, x);
        }
        Checks.like(stream, "y", y, x);
        if (whole < x.size(0) || first < 0 || first > whole - x.size(0)) {
            throw new IllegalArgumentException("first, whole: expected a stretch of " + x.size(0)
                    + " tokens, as x has, among all, got one from token " + first + " of " + whole + " on");
        }
        Checks.given("tokens", tokens).checkTokens("x", x, whole, stream);
        Checks.vector(stream, "factors", factors, DType.FLOAT32, tokens.sequences(whole));
        Checks.writable("y", y);
        Checks.apartOrSame("y", y, "x", x);
        if (residual != null) {
            Checks.apartOrSame("y", y, "residual", residual);
        }
        Checks.apart("y", y, "factors", factors);
        Tensor cuSeqlens = tokens.cuSeqlens();
        if (cuSeqlens != null) {
            Checks.apart("y", y, "cuSeqlens", cuSeqlens);
        }
        if (x.count() == 0) {
            return;
        }
        Status.ops(
                Ops.ops_scale_sequences_add(
                        x.address(),
                        Checks.addressOrNull(residual),
                        y.address(),
                        factors.address(),
                        Checks.addressOrNull(cuSeqlens),
                        tokens.code(),
                        first,
                        x.size(0),
                        whole,
                        tokens.extent(),
                        x.size(1),
                        x.dtype().code(),
                        stream.handle()),
                "ops_scale_sequences_add");
    }

    private static void checkFactors(Tensor factors, Stream stream) {
        Checks.on(stream, "factors", factors);
        if (factors.rank() != 1 || factors.dtype() != DType.FLOAT32) {
            throw new IllegalArgumentException("factors: expected FLOAT32[B], got " + Checks.describe(factors));
        }
    }
}
