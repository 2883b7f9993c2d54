package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.te.QkvFormat;
import org.jspecify.annotations.Nullable;

/**
 * The sequence of each token, and the position in it; the object is reused for the next call.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsTokenLayout} in {@code ops.h}.
 */
public final class TokenPositions {
    private QkvFormat format = QkvFormat.BSHD;
    private long extent = 1;
    private @Nullable Tensor cuSeqlens;
    private @Nullable Tensor startPositions;

    /** Makes an object that gives every token position 0. */
    public TokenPositions() {}

    /**
     * Sets packed tokens, whose sequences begin where {@code newCuSeqlens} says, at position 0.
     *
     * @param newCuSeqlens INT32 [B + 1], which is trusted
     */
    public TokenPositions packed(Tensor newCuSeqlens) {
        cuSeqlens = Checks.given("cuSeqlens", newCuSeqlens);
        format = QkvFormat.THD;
        extent = Math.max(1, newCuSeqlens.count() - 1);
        startPositions = null;
        return this;
    }

    /**
     * Sets padded tokens, at position 0.
     *
     * @param newFormat BSHD or SBHD
     * @param newExtent BSHD: the length S of a sequence; SBHD: the sequences B of a batch. The number of tokens is a multiple of it
     * @throws IllegalArgumentException when the format is THD
     */
    public TokenPositions padded(QkvFormat newFormat, long newExtent) {
        if (Checks.given("format", newFormat) == QkvFormat.THD) {
            throw new IllegalArgumentException("format: expected BSHD or SBHD, got THD; call packed(cuSeqlens)");
        }
        cuSeqlens = null;
        format = newFormat;
        extent = newExtent;
        startPositions = null;
        return this;
    }

    /** Adds {@code positions}, INT32 [B], to those of each sequence; null: 0. The numbers are trusted. */
    public TokenPositions startingAt(@Nullable Tensor positions) {
        startPositions = positions;
        return this;
    }

    long extent() {
        return extent;
    }

    @Nullable
    Tensor cuSeqlens() {
        return cuSeqlens;
    }

    @Nullable
    Tensor startPositions() {
        return startPositions;
    }

    /** Returns the number of sequences of {@code whole} tokens. */
    long sequences(long whole) {
        return format == QkvFormat.BSHD ? whole / extent : extent;
    }

    /** Returns the number of the format in {@code OpsTokenLayout}. */
    int code() {
        return code(format);
    }

    static int code(QkvFormat format) {
        return switch (format) {
            case THD -> Ops.OPS_THD();
            case BSHD -> Ops.OPS_BSHD();
            case SBHD -> Ops.OPS_SBHD();
        };
    }

    /** Checks that the rows of {@code tokens} are those of the sequences. */
    void check(String argument, Tensor tokens, Stream stream) {
        checkTokens(argument, tokens, tokens.size(0), stream);
        if (startPositions != null) {
            Checks.vector(stream, "startPositions", startPositions, DType.INT32, sequences(tokens.size(0)));
        }
    }

    /** Checks that {@code tokens} may be some of the {@code whole} tokens of the sequences. */
    void checkTokens(String argument, Tensor tokens, long whole, Stream stream) {
        Checks.atLeastOne("extent", extent);
        if (whole > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(
                    argument + ": expected at most " + Integer.MAX_VALUE + " tokens, got " + Checks.describe(tokens));
        }
        if (cuSeqlens != null) {
            Checks.vector(stream, "cuSeqlens", cuSeqlens, DType.INT32, extent + 1);
        } else if (whole % extent != 0) {
            throw new IllegalArgumentException(argument + ": expected a multiple of " + extent + " tokens, "
                    + (format == QkvFormat.BSHD ? "the length of a sequence" : "the sequences of a batch") + ", got "
                    + (whole == tokens.size(0) ? "" : "a part of " + whole + ", ") + Checks.describe(tokens));
        }
    }

    /** Checks that {@code written} overlaps none of the tensors here. */
    void checkApart(String argument, Tensor written) {
        if (cuSeqlens != null) {
            Checks.apart(argument, written, "cuSeqlens", cuSeqlens);
        }
        if (startPositions != null) {
            Checks.apart(argument, written, "startPositions", startPositions);
        }
    }
}
