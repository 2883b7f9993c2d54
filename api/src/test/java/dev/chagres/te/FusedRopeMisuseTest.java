package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.FusedRope.Pairing;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what {@code FusedRope} refuses. */
@Tag("L0")
@Tag("L1")
class FusedRopeMisuseTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static void refused(
            String text,
            Tensor input,
            @Nullable Tensor cuSeqlens,
            Tensor freqs,
            @Nullable Tensor starts,
            Tensor output,
            QkvFormat format,
            long longest) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> new FusedRope(freqs, Pairing.HALVES)
                        .forward(input, cuSeqlens, starts, output, format, longest, open.stream()));
    }

    @Test
    void packedTokens() {
        Tensor x = of(DType.FLOAT32, 8, 2, 16);
        Tensor y = of(DType.FLOAT32, 8, 2, 16);
        Tensor cu = open.ints(0, 8);
        Tensor freqs = of(DType.FLOAT32, 10, 1, 1, 16);
        refused("input: expected [B, S, h, d], got FLOAT32[8, 2, 16]", x, null, freqs, null, y, QkvFormat.BSHD, 8);
        refused(
                "output: expected FLOAT32[8, 2, 16], got FLOAT32[8, 2, 8]",
                x,
                cu,
                freqs,
                null,
                of(DType.FLOAT32, 8, 2, 8),
                QkvFormat.THD,
                8);
        String wanted =
                "freqs: expected FLOAT32[positions, 1, 1, r] with r even, from 2 to the head dimension 16, got ";
        refused(wanted + "FLOAT32[10, 16]", x, cu, of(DType.FLOAT32, 10, 16), null, y, QkvFormat.THD, 8);
        refused(wanted + "FLOAT32[10, 1, 1, 18]", x, cu, of(DType.FLOAT32, 10, 1, 1, 18), null, y, QkvFormat.THD, 8);
        refused(wanted + "FLOAT32[10, 1, 1, 3]", x, cu, of(DType.FLOAT32, 10, 1, 1, 3), null, y, QkvFormat.THD, 8);
        refused(
                "longest: expected at most the 10 positions of freqs, got 11",
                x,
                cu,
                freqs,
                null,
                y,
                QkvFormat.THD,
                11);
        refused(
                "cuSeqlens: expected INT32[B + 1], got INT32[1, 1]",
                x,
                of(DType.INT32, 1, 1),
                freqs,
                null,
                y,
                QkvFormat.THD,
                8);
        refused("startPositions: expected INT32[1], got INT32[2]", x, cu, freqs, open.ints(0, 0), y, QkvFormat.THD, 8);
        refused(
                "output: expected memory of its own, got some of input's; it is written to while that is read or written",
                x,
                cu,
                freqs,
                null,
                x,
                QkvFormat.THD,
                8);
    }

    @Test
    void paddedTokens() {
        Tensor cu = open.ints(0, 8);
        Tensor freqs = of(DType.FLOAT32, 10, 1, 1, 16);
        Tensor dense = of(DType.FLOAT32, 2, 4, 2, 16);
        Tensor place = of(DType.FLOAT32, 2, 4, 2, 16);
        refused(
                "cuSeqlens: expected null for padded tokens, BSHD, got INT32[2]",
                dense,
                cu,
                freqs,
                null,
                place,
                QkvFormat.BSHD,
                4);
        refused(
                "longest: expected the padded length of input, 2, got 4",
                dense,
                null,
                freqs,
                null,
                place,
                QkvFormat.SBHD,
                4);
    }

    @Test
    void whatIsNotThere() {
        Tensor x = of(DType.FLOAT32, 8, 2, 16);
        Tensor y = of(DType.FLOAT32, 8, 2, 16);
        Tensor freqs = of(DType.FLOAT32, 10, 1, 1, 16);
        assertThrown(
                NullPointerException.class,
                "cuSeqlens: expected a value, got null",
                () -> new FusedRope(freqs, Pairing.HALVES).forward(x, null, null, y, QkvFormat.THD, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "outputGrads: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[8, 2, 16]",
                () -> new FusedRope(freqs, Pairing.HALVES)
                        .backward(of(DType.INT32, 8, 2, 16), open.ints(0, 8), null, y, QkvFormat.THD, open.stream()));
    }
}
