package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.te.QkvFormat;
import org.jspecify.annotations.Nullable;

/**
 * The sequence and position of each token: {@code OpsTokenLayout} in {@code ops.h}.
 *
 * <p>Threading: the device's thread.
 */
final class TokenLayout {
    private TokenLayout() {}

    /** Checks that the rows of {@code tokens} are those of the sequences. */
    static void check(
            String argument, Tensor tokens, @Nullable Tensor cuSeqlens, QkvFormat format, long extent, Stream stream) {
        check(argument, tokens, cuSeqlens, format, extent, tokens.size(0), stream);
    }

    /** Checks that {@code tokens} may be some of the {@code whole} tokens of the sequences. */
    static void check(
            String argument,
            Tensor tokens,
            @Nullable Tensor cuSeqlens,
            QkvFormat format,
            long extent,
            long whole,
            Stream stream) {
        Checks.given("format", format);
        Checks.atLeastOne("extent", extent);
        if (whole > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(
                    argument + ": expected at most " + Integer.MAX_VALUE + " tokens, got " + Checks.describe(tokens));
        }
        if (format == QkvFormat.THD) {
            Checks.vector(stream, "cuSeqlens", Checks.given("cuSeqlens", cuSeqlens), DType.INT32, extent + 1);
            return;
        }
        if (cuSeqlens != null) {
            throw new IllegalArgumentException(
                    "cuSeqlens: expected null for padded tokens, " + format + ", got " + Checks.describe(cuSeqlens));
        }
        if (whole % extent != 0) {
            throw new IllegalArgumentException(argument + ": expected a multiple of " + extent + " tokens, "
                    + (format == QkvFormat.BSHD ? "the length of a sequence" : "the sequences of a batch") + ", got "
                    + (whole == tokens.size(0) ? "" : "a part of " + whole + ", ") + Checks.describe(tokens));
        }
    }

    static int code(QkvFormat format) {
        return switch (format) {
            case THD -> Ops.OPS_THD();
            case BSHD -> Ops.OPS_BSHD();
            case SBHD -> Ops.OPS_SBHD();
        };
    }
}
