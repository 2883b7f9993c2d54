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
 * Token dropout of masked-language models: embeddings of masked tokens become 0, and the others of a sequence are scaled by how many were
 * masked while the model was trained, and how many are masked here.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_token_dropout_factors}, {@code ops_scale_sequences_add} in {@code ops.h}; Lin et al., "ESM-2", Science 2023.
 */
public final class TokenDropout {
    /** Each token is a sequence of its own. */
    private static final TokenPositions EACH = new TokenPositions();

    private TokenDropout() {}

    /**
     * Enqueues {@code factors[t] = 0} where {@code ids[t] = mask}, else {@code kept / (1 - m / n)}, with n tokens in t's sequence, of which
     * m are the mask. Tokens of no sequence have factor 0, and so has every token of a sequence of masks alone.
     *
     * @param ids INT32 [T]
     * @param cuSeqlens INT32 [B + 1], cumulative lengths, which are trusted
     * @param cuSeqlensPadded INT32 [B + 1], where packed sequences with gaps begin; null without gaps and for padded tokens
     * @param format where the sequence of a token comes from; for padded tokens B divides T
     * @param mask identifier of the mask
     * @param kept share of the tokens that training leaves unmasked, at least 0
     * @param factors FLOAT32 [T]
     * @throws IllegalArgumentException when shapes, types, {@code kept} or devices do not fit, or the factors share memory
     */
    public static void factors(
            Tensor ids,
            Tensor cuSeqlens,
            @Nullable Tensor cuSeqlensPadded,
            QkvFormat format,
            int mask,
            float kept,
            Tensor factors,
            Stream stream) {
        Checks.given("format", format);
        Checks.on(stream, "ids", ids);
        if (ids.rank() != 1 || ids.dtype() != DType.INT32 || ids.size(0) > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(
                    "ids: expected INT32[T] of at most " + Integer.MAX_VALUE + " tokens, got " + Checks.describe(ids));
        }
        long sequences = sequences("ids", ids, cuSeqlens, format, stream);
        if (cuSeqlensPadded != null) {
            checkPlaces(cuSeqlensPadded, sequences, format, stream);
            Checks.apart("factors", factors, "cuSeqlensPadded", cuSeqlensPadded);
        }
        if (!(kept >= 0) || Float.isInfinite(kept)) {
            throw new IllegalArgumentException("kept: expected a finite number of at least 0, got " + kept);
        }
        Checks.vector(stream, "factors", factors, DType.FLOAT32, ids.size(0));
        Checks.written("factors", factors, "ids", ids, "cuSeqlens", cuSeqlens);
        Status.ops(
                Ops.ops_token_dropout_factors(
                        ids.address(),
                        cuSeqlens.address(),
                        Checks.addressOrNull(cuSeqlensPadded),
                        factors.address(),
                        kept,
                        mask,
                        TokenPositions.code(format),
                        ids.size(0),
                        sequences,
                        stream.handle()),
                "ops_token_dropout_factors");
    }

    static void checkPlaces(Tensor cuSeqlensPadded, long sequences, QkvFormat format, Stream stream) {
        if (format != QkvFormat.THD) {
            throw new IllegalArgumentException("cuSeqlensPadded: expected null for padded tokens, " + format + ", got "
                    + Checks.describe(cuSeqlensPadded));
        }
        Checks.vector(stream, "cuSeqlensPadded", cuSeqlensPadded, DType.INT32, sequences + 1);
    }

    /** Checks cumulative lengths, and that the rows of {@code tokens} may be of their sequences; returns how many there are. */
    static long sequences(String argument, Tensor tokens, Tensor cuSeqlens, QkvFormat format, Stream stream) {
        Checks.on(stream, "cuSeqlens", cuSeqlens);
        if (cuSeqlens.rank() != 1 || cuSeqlens.dtype() != DType.INT32 || cuSeqlens.size(0) < 2) {
            throw new IllegalArgumentException(
                    "cuSeqlens: expected INT32[B + 1] with B at least 1, got " + Checks.describe(cuSeqlens));
        }
        long sequences = cuSeqlens.size(0) - 1;
        if (format != QkvFormat.THD && tokens.size(0) % sequences != 0) {
            throw new IllegalArgumentException(argument + ": expected a multiple of " + sequences
                    + " tokens, the sequences of a batch, got " + Checks.describe(tokens));
        }
        return sequences;
    }

    /**
     * Enqueues {@code y[t] = factors[first + t] x[t]}; with the gradient of y for x it is the gradient of x. Rows whose factor is 0 are not
     * read.
     *
     * @param x floating-point numbers [T, C]
     * @param y like x; may be x
     * @param factors FLOAT32 of all tokens, at least {@code first + T}
     * @param first the number of x's first token among all, such as of a rank's part of them
     * @throws IllegalArgumentException when shapes, types or devices do not fit, x has tokens without a factor, or y shares memory otherwise
     */
    public static void scale(Tensor x, Tensor y, Tensor factors, long first, Stream stream) {
        Checks.on(stream, "factors", factors);
        Checks.matrix(stream, "x", x);
        if (factors.rank() != 1 || factors.size(0) < x.size(0)) {
            throw new IllegalArgumentException("factors: expected FLOAT32 of at least " + x.size(0)
                    + " tokens, as x has, got " + Checks.describe(factors));
        }
        DropPath.scaleSequencesAdd(x, null, y, factors, EACH, first, factors.size(0), stream);
    }
}
