package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.te.QkvFormat;
import org.jspecify.annotations.Nullable;

/**
 * The position of each token in its sequence; the object is reused for the next call.
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

    QkvFormat format() {
        return format;
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

    /** Checks that the rows of {@code tokens} are those of the sequences. */
    void check(String argument, Tensor tokens, Stream stream) {
        TokenLayout.check(argument, tokens, cuSeqlens, format, extent, stream);
        Tensor starts = startPositions;
        if (starts != null) {
            long sequences = format == QkvFormat.BSHD ? tokens.size(0) / extent : extent;
            Checks.vector(stream, "startPositions", starts, DType.INT32, sequences);
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
