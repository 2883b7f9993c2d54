package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.te.ContextParallelCorrection.LseLayout;

/**
 * Checks of log-sum-exps (LSE), and of the outputs that they belong to.
 *
 * <p>Threading: the device's thread.
 */
final class LseChecks {
    private static final int VECTOR_BYTES = 16;

    private LseChecks() {}

    /** Checks an LSE of all tokens, and the offsets. */
    static void lse(String argument, Tensor lse, Tensor cuSeqlens, LseLayout layout, Stream stream) {
        ContextParallelChecks.offsets("cuSeqlens", cuSeqlens, stream);
        Checks.given("layout", layout);
        Checks.typed(stream, argument, lse, DType.FLOAT32);
        boolean packed = layout == LseLayout.PACKED;
        boolean fits = packed ? lse.rank() == 2 : lse.rank() == 3 && lse.size(0) == cuSeqlens.count() - 1;
        if (!fits
                || lse.size(lse.rank() - 2) > ContextParallelChecks.MOST_PARTS
                || lse.count() > Integer.MAX_VALUE
                || lse.size(lse.rank() - 1) > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(argument + ": expected FLOAT32"
                    + (packed ? "[h, L]" : "[" + (cuSeqlens.count() - 1) + ", h, S]") + " with h at most "
                    + ContextParallelChecks.MOST_PARTS + " and at most " + Integer.MAX_VALUE
                    + " elements, which TE counts in 32 bits, got " + Checks.describe(lse));
        }
    }

    /** Checks an LSE that has the columns of the whole one over a divisor; packed, it may have more. */
    static void part(String argument, Tensor part, Tensor lse, int divisor, LseLayout layout, Stream stream) {
        Checks.typed(stream, argument, part, DType.FLOAT32);
        int last = lse.rank() - 1;
        boolean packed = layout == LseLayout.PACKED;
        long columns = lse.size(last) / divisor;
        boolean fits = part.rank() == lse.rank() && part.count() <= Integer.MAX_VALUE;
        for (int i = 0; fits && i < last; i++) {
            fits = part.size(i) == lse.size(i);
        }
        boolean wide = fits && part.size(last) <= Integer.MAX_VALUE;
        if (!wide || (packed ? part.size(last) < columns : part.size(last) != columns)) {
            throw new IllegalArgumentException(argument + ": expected FLOAT32 like lse " + lse.shape() + " with "
                    + (packed ? "at least " : "") + columns + " columns, got " + Checks.describe(part));
        }
    }

    /** Returns whether a launch for its second halves would start no block. */
    static boolean hasNoHalves(Tensor lse) {
        return lse.count() == 0 || lse.size(lse.rank() - 1) < 2;
    }

    /** Checks an output [T, h, d] whose heads are moved 16 bytes at once. */
    static void out(Tensor out, Stream stream) {
        ContextParallelChecks.rows("out", out, stream);
        if (out.rank() != 3 || out.size(2) * out.dtype().byteSize() % VECTOR_BYTES != 0) {
            throw new IllegalArgumentException("out: expected [T, h, d] with d a multiple of " + VECTOR_BYTES
                    + " bytes, got " + Checks.describe(out));
        }
    }

    /** Checks that an LSE has the output's heads and, packed, its tokens. */
    static void fitsOut(Tensor lse, Tensor out, LseLayout layout) {
        boolean packed = layout == LseLayout.PACKED;
        if (lse.size(lse.rank() - 2) != out.size(1) || (packed && lse.size(1) < out.size(0))) {
            throw new IllegalArgumentException("lse: expected " + out.size(1) + " heads"
                    + (packed ? " and at least " + out.size(0) + " columns" : "") + ", as out " + out.shape()
                    + " has, got " + Checks.describe(lse));
        }
    }
}
