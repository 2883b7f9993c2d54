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
 * Pooling by sequence: one row of each sequence out of the rows of its tokens.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_sequence_pool_forward}, {@code ops_sequence_pool_backward} in {@code ops.h}.
 */
public final class SequencePool {
    private SequencePool() {}

    /** What a sequence gives of its tokens. */
    public enum Kind {
        /** The mean, sums in FP32. */
        MEAN(Ops.OPS_POOL_MEAN()),
        /** The first token, such as {@code <cls>}. */
        FIRST(Ops.OPS_POOL_FIRST()),
        /** The largest number of each column; NaN where one is NaN. */
        MAX(Ops.OPS_POOL_MAX());

        private final int code;

        Kind(int code) {
            this.code = code;
        }
    }

    /**
     * Enqueues {@code y[b] =} mean, first or largest of {@code x[t]} over the tokens t of sequence b; 0 of a sequence without tokens.
     *
     * @param x floating-point numbers [T, C]
     * @param cuSeqlens INT32 [B + 1], cumulative lengths, which are trusted
     * @param cuSeqlensPadded INT32 [B + 1], where packed sequences with gaps begin; null without gaps and for padded tokens
     * @param format where the sequence of a token comes from; for padded tokens B divides T
     * @param y [B, C] of x's type
     * @param argument INT32 [B, C], receives the token that is largest, -1 without tokens; null unless the kind is {@link Kind#MAX}
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void forward(
            Tensor x,
            Tensor cuSeqlens,
            @Nullable Tensor cuSeqlensPadded,
            QkvFormat format,
            Kind kind,
            Tensor y,
            @Nullable Tensor argument,
            Stream stream) {
        Checks.matrix(stream, "x", x);
        long sequences = sequences("x", x, cuSeqlens, cuSeqlensPadded, format, stream);
        Checks.matrix(stream, "y", y, x.dtype(), sequences, x.size(1));
        checkArgument(Checks.given("kind", kind), argument, y, stream);
        Checks.written("y", y, "x", x);
        checkApart("y", y, cuSeqlens, cuSeqlensPadded);
        if (argument != null) {
            Checks.written("argument", argument, "x", x, "y", y);
            checkApart("argument", argument, cuSeqlens, cuSeqlensPadded);
        }
        Status.ops(
                Ops.ops_sequence_pool_forward(
                        x.address(),
                        cuSeqlens.address(),
                        Checks.addressOrNull(cuSeqlensPadded),
                        y.address(),
                        Checks.addressOrNull(argument),
                        kind.code,
                        TokenPositions.code(format),
                        x.size(0),
                        sequences,
                        x.size(1),
                        x.dtype().code(),
                        stream.handle()),
                "ops_sequence_pool_forward");
    }

    /**
     * Enqueues the gradient: {@code dx[t] = dy[b] / n} of each of b's n tokens, or {@code dy[b]} of the one that was taken; 0 elsewhere, also of
     * tokens of no sequence.
     *
     * @param dy floating-point numbers [B, C]
     * @param cuSeqlens INT32 [B + 1], cumulative lengths, which are trusted
     * @param cuSeqlensPadded INT32 [B + 1], where packed sequences with gaps begin; null without gaps and for padded tokens
     * @param format where the sequence of a token comes from; for padded tokens B divides T
     * @param argument as {@link #forward} wrote it
     * @param dx [T, C] of dy's type
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx shares memory
     */
    public static void backward(
            Tensor dy,
            Tensor cuSeqlens,
            @Nullable Tensor cuSeqlensPadded,
            QkvFormat format,
            Kind kind,
            @Nullable Tensor argument,
            Tensor dx,
            Stream stream) {
        Checks.matrix(stream, "dx", dx);
        long sequences = sequences("dx", dx, cuSeqlens, cuSeqlensPadded, format, stream);
        Checks.matrix(stream, "dy", dy, dx.dtype(), sequences, dx.size(1));
        checkArgument(Checks.given("kind", kind), argument, dy, stream);
        Checks.written("dx", dx, "dy", dy);
        checkApart("dx", dx, cuSeqlens, cuSeqlensPadded);
        if (argument != null) {
            Checks.apart("dx", dx, "argument", argument);
        }
        Status.ops(
                Ops.ops_sequence_pool_backward(
                        dy.address(),
                        cuSeqlens.address(),
                        Checks.addressOrNull(cuSeqlensPadded),
                        Checks.addressOrNull(argument),
                        dx.address(),
                        kind.code,
                        TokenPositions.code(format),
                        dx.size(0),
                        sequences,
                        dx.size(1),
                        dx.dtype().code(),
                        stream.handle()),
                "ops_sequence_pool_backward");
    }

    private static long sequences(
            String argument,
            Tensor tokens,
            Tensor cuSeqlens,
            @Nullable Tensor cuSeqlensPadded,
            QkvFormat format,
            Stream stream) {
        long sequences = TokenDropout.sequences(argument, tokens, cuSeqlens, Checks.given("format", format), stream);
        if (cuSeqlensPadded != null) {
            TokenDropout.checkPlaces(cuSeqlensPadded, sequences, format, stream);
        }
        return sequences;
    }

    private static void checkApart(
            String argument, Tensor written, Tensor cuSeqlens, @Nullable Tensor cuSeqlensPadded) {
        Checks.apart(argument, written, "cuSeqlens", cuSeqlens);
        if (cuSeqlensPadded != null) {
            Checks.apart(argument, written, "cuSeqlensPadded", cuSeqlensPadded);
        }
    }

    private static void checkArgument(Kind kind, @Nullable Tensor argument, Tensor ofSequences, Stream stream) {
        if ((argument != null) != (kind == Kind.MAX)) {
            throw new IllegalArgumentException("argument: expected " + (kind == Kind.MAX ? "INT32[B, C]" : "null")
                    + " for " + kind + ", got " + (argument == null ? "null" : Checks.describe(argument)));
        }
        if (argument != null) {
            Checks.matrix(stream, "argument", argument, DType.INT32, ofSequences.size(0), ofSequences.size(1));
        }
    }
}
