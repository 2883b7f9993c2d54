package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.FusedRope.Pairing;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what {@code FusedQkvRope} refuses. */
@Tag("L0")
@Tag("L1")
@SuppressWarnings("NullAway.Init") // set before each test
class FusedQkvRopeMisuseTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private Tensor qkv;
    private Tensor freqs;
    private Tensor q;
    private Tensor k;
    private Tensor v;

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    @BeforeEach
    void validArguments() {
        qkv = of(DType.FLOAT32, 2, 4, 2, 64);
        freqs = of(DType.FLOAT32, 5, 1, 1, 16);
        q = of(DType.FLOAT32, 2, 4, 4, 16);
        k = of(DType.FLOAT32, 2, 4, 2, 16);
        v = of(DType.FLOAT32, 2, 4, 2, 16);
    }

    private void refused(String text, QkvFormat format, @Nullable Tensor starts) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> new FusedQkvRope(freqs, freqs, Pairing.HALVES)
                        .forward(qkv, starts, q, k, v, format, open.stream()));
    }

    private void refused(String text) {
        refused(text, QkvFormat.BSHD, null);
    }

    @Test
    void format() {
        refused("format: expected BSHD or SBHD, got THD; FusedRope rotates packed tokens", QkvFormat.THD, null);
        refused("startPositions: expected INT32[2], got INT32[3]", QkvFormat.BSHD, open.ints(0, 1, 2));
    }

    @Test
    void projection() {
        qkv = of(DType.FLOAT32, 8, 2, 64);
        refused("qkvInput: expected [B, S, g, (hq + hk + hv) / g d], got FLOAT32[8, 2, 64]");
        refused("qkvInput: expected [S, B, g, (hq + hk + hv) / g d], got FLOAT32[8, 2, 64]", QkvFormat.SBHD, null);
        qkv = of(DType.FLOAT32, 2, 4, 0, 64);
        refused("qkvInput: expected at least one group of heads, got FLOAT32[2, 4, 0, 64]");
        qkv = of(DType.FLOAT32, 65_536, 1, 1, 6);
        refused("qkvInput: expected at most 65535 sequences, as many as TE can start blocks for, got"
                + " FLOAT32[65536, 1, 1, 6]");
        qkv = of(DType.FLOAT32, 2, 4, 2, 48);
        refused("qkvInput: expected groups that hold all heads, of one size, of q [2, 4, 4, 16], k [2, 4, 2, 16] and v"
                + " [2, 4, 2, 16], got FLOAT32[2, 4, 2, 48]");
    }

    @Test
    void parts() {
        String wanted = "kOut: expected FLOAT32[2, 4, h, d] with h a multiple of the 2 groups of qkvInput, got ";
        k = of(DType.FLOAT32, 2, 4, 3, 16);
        refused(wanted + "FLOAT32[2, 4, 3, 16]");
        k = of(DType.FLOAT32, 2, 5, 2, 16);
        refused(wanted + "FLOAT32[2, 5, 2, 16]");
        k = of(DType.BFLOAT16, 2, 4, 2, 16);
        refused(wanted + "BFLOAT16[2, 4, 2, 16]");
        k = of(DType.INT32, 2, 4, 2, 16);
        refused("kOut: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[2, 4, 2, 16]");
    }

    @Test
    void angles() {
        String wanted = "qFreqs: expected FLOAT32[positions, 1, 1, r] of at least 4 positions and at most 2147483647"
                + " elements, with r even, from 2 to 16, got ";
        freqs = of(DType.FLOAT32, 3, 1, 1, 16);
        refused(wanted + "FLOAT32[3, 1, 1, 16]");
        freqs = of(DType.FLOAT32, 5, 16);
        refused(wanted + "FLOAT32[5, 16]");
        freqs = of(DType.FLOAT32, 5, 1, 1, 18);
        refused(wanted + "FLOAT32[5, 1, 1, 18]");
        freqs = of(DType.FLOAT32, 5, 1, 1, 3);
        refused(wanted + "FLOAT32[5, 1, 1, 3]");
        freqs = of(DType.FLOAT32, 5, 1, 1, 16);
        Tensor fewer = of(DType.FLOAT32, 5, 1, 1, 8);
        assertThrown(
                IllegalArgumentException.class,
                "kFreqs: expected as many angles a position as qFreqs has, 16, got FLOAT32[5, 1, 1, 8]",
                () -> new FusedQkvRope(freqs, fewer, Pairing.HALVES)
                        .backward(q, k, v, qkv, QkvFormat.BSHD, open.stream()));
    }

    @Test
    void sharedMemory() {
        v = k;
        refused("kOut: expected memory of its own, got some of vOut's; it is written to while that is read or written");
        v = of(DType.FLOAT32, 2, 4, 2, 16);
        q = open.scope().view(qkv, 0, 2, 4, 4, 16);
        refused("qOut: expected memory of its own, got some of qkvInput's; it is written to while that is read or"
                + " written");
        assertThrown(
                IllegalArgumentException.class,
                "qkvGradInput: expected memory of its own, got some of qGradOut's; it is written to while that is read or"
                        + " written",
                () -> new FusedQkvRope(freqs, freqs, Pairing.HALVES)
                        .backward(q, k, v, qkv, QkvFormat.BSHD, open.stream()));
    }
}
