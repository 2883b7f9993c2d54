package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;

/**
 * Copies of heads between packed tokens (THD) and padded ones (BSHD).
 *
 * <p>Lengths are INT32 [B + 1], cumulative from 0. Their contents are trusted: no sequence may be longer than S, or end behind the packed
 * tokens. Outputs overlap no other tensor.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_convert_thd_to_bshd}, {@code nvte_convert_bshd_to_thd} in TE's {@code fused_attn.h}.
 */
public final class ThdConversion {
    private ThdConversion() {}

    /**
     * Enqueues {@code bshd[b, i] = thd[cuSeqlens[b] + i]} for the tokens i of each sequence, and zeros behind them.
     *
     * @param thd [T, h, d], FLOAT32, FLOAT16 or BFLOAT16
     * @param cuSeqlens INT32 [B + 1]
     * @param bshd [B, S, h, d], in the type of {@code thd}
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory with an input
     */
    public static void convertThdToBshd(Tensor thd, Tensor cuSeqlens, Tensor bshd, Stream stream) {
        check(thd, cuSeqlens, bshd, stream);
        Checks.written("bshd", bshd, "thd", thd, "cuSeqlens", cuSeqlens);
        bshd.zero(stream);
        if (thd.count() != 0 && bshd.count() != 0) {
            Status.te(
                    TransformerEngine.te_convert_thd_to_bshd(
                            thd.handle(),
                            cuSeqlens.handle(),
                            bshd.handle(),
                            Math.toIntExact(bshd.size(0)),
                            Math.toIntExact(bshd.size(1)),
                            stream.handle()),
                    "te_convert_thd_to_bshd");
        }
    }

    /**
     * Enqueues {@code thd[cuSeqlens[b] + i] = bshd[b, i]} for the tokens i of each sequence, and zeros behind the last one.
     *
     * @param bshd [B, S, h, d], FLOAT32, FLOAT16 or BFLOAT16
     * @param cuSeqlens INT32 [B + 1]
     * @param thd [T, h, d], in the type of {@code bshd}
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory with an input
     */
    public static void convertBshdToThd(Tensor bshd, Tensor cuSeqlens, Tensor thd, Stream stream) {
        check(thd, cuSeqlens, bshd, stream);
        Checks.written("thd", thd, "bshd", bshd, "cuSeqlens", cuSeqlens);
        thd.zero(stream);
        if (thd.count() != 0 && bshd.count() != 0) {
            Status.te(
                    TransformerEngine.te_convert_bshd_to_thd(
                            bshd.handle(),
                            cuSeqlens.handle(),
                            thd.handle(),
                            Math.toIntExact(thd.size(0)),
                            stream.handle()),
                    "te_convert_bshd_to_thd");
        }
    }

    private static void check(Tensor thd, Tensor cuSeqlens, Tensor bshd, Stream stream) {
        Checks.floats(stream, "thd", thd);
        Checks.floats(stream, "bshd", bshd);
        if (thd.rank() != 3 || thd.size(0) > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("thd: expected [T, h, d] with T of an int, got " + Checks.describe(thd));
        }
        boolean fits = bshd.rank() == 4
                && bshd.dtype() == thd.dtype()
                && bshd.size(2) == thd.size(1)
                && bshd.size(3) == thd.size(2)
                && bshd.size(0) < Integer.MAX_VALUE
                && bshd.size(1) <= Integer.MAX_VALUE;
        if (!fits) {
            throw new IllegalArgumentException("bshd: expected " + thd.dtype() + "[B, S, " + thd.size(1) + ", "
                    + thd.size(2) + "], as thd has heads, got " + Checks.describe(bshd));
        }
        Checks.vector(stream, "cuSeqlens", cuSeqlens, DType.INT32, bshd.size(0) + 1);
        Checks.countedIn32Bits("thd", thd);
        Checks.countedIn32Bits("bshd", bshd);
        Checks.aligned("thd", thd);
        Checks.aligned("bshd", bshd);
    }
}
