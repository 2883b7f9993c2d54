package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Packed tokens to padded ones and back: every element, and zeros for padding. */
@Tag("L0")
@Tag("L1")
class ThdConversionConformance {
    private static final int[] LENGTHS = {3, 0, 70, 1};
    private static final int TOKENS = 74;
    private static final int PADDED = 71;
    private static final int HEADS = 3;
    private static final int DIM = 8;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor cuSeqlens() {
        return open.ints(0, 3, 3, 73, 74);
    }

    /** Returns where each packed element stands in the padded tensor. */
    private static double[] padded(double[] packed) {
        int width = HEADS * DIM;
        double[] all = new double[LENGTHS.length * PADDED * width];
        int token = 0;
        for (int sequence = 0; sequence < LENGTHS.length; sequence++) {
            for (int i = 0; i < LENGTHS[sequence]; i++, token++) {
                for (int c = 0; c < width; c++) {
                    all[(sequence * PADDED + i) * width + c] = packed[token * width + c];
                }
            }
        }
        return all;
    }

    private static float[] floats(double[] values) {
        float[] floats = new float[values.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = (float) values[i];
        }
        return floats;
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void thereAndBack(DType dtype) {
        double[] values = open.normal(dtype, TOKENS * HEADS * DIM, 1);
        Tensor thd = open.tensor(dtype, values, TOKENS, HEADS, DIM);
        Tensor bshd = open.unwritten(dtype, LENGTHS.length, PADDED, HEADS, DIM);
        ThdConversion.convertThdToBshd(thd, cuSeqlens(), bshd, open.stream());
        assertArrayEquals(floats(padded(values)), open.read(bshd));
        Tensor back = open.unwritten(dtype, TOKENS + 2, HEADS, DIM);
        ThdConversion.convertBshdToThd(bshd, cuSeqlens(), back, open.stream());
        float[] expected = new float[(TOKENS + 2) * HEADS * DIM];
        System.arraycopy(floats(values), 0, expected, 0, values.length);
        assertArrayEquals(expected, open.read(back));
    }

    @Test
    void nothing() {
        Tensor thd = open.unwritten(DType.FLOAT32, 0, HEADS, DIM);
        Tensor bshd = open.unwritten(DType.FLOAT32, 1, 2, HEADS, DIM);
        ThdConversion.convertThdToBshd(thd, open.ints(0, 0), bshd, open.stream());
        assertArrayEquals(new float[2 * HEADS * DIM], open.read(bshd));
        ThdConversion.convertBshdToThd(bshd, open.ints(0, 0), thd, open.stream());
    }

    private static void refused(String text, Tensor thd, Tensor cuSeqlens, Tensor bshd) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> ThdConversion.convertThdToBshd(thd, cuSeqlens, bshd, open.stream()));
    }

    @Test
    void refusals() {
        Tensor thd = open.unwritten(DType.FLOAT32, 4, 2, 8);
        Tensor bshd = open.unwritten(DType.FLOAT32, 2, 3, 2, 8);
        Tensor lengths = open.ints(0, 2, 4);
        refused("thd: expected [T, h, d] with T of an int, got FLOAT32[2, 3, 2, 8]", bshd, lengths, bshd);
        refused("bshd: expected FLOAT32[B, S, 2, 8], as thd has heads, got FLOAT32[4, 2, 8]", thd, lengths, thd);
        refused(
                "bshd: expected FLOAT32[B, S, 2, 8], as thd has heads, got BFLOAT16[2, 3, 2, 8]",
                thd,
                lengths,
                open.unwritten(DType.BFLOAT16, 2, 3, 2, 8));
        refused("cuSeqlens: expected INT32[3], got INT32[2]", thd, open.ints(0, 4), bshd);
        Tensor inside = open.scope().view(bshd, 0, 4, 2, 8);
        assertThrown(
                IllegalArgumentException.class,
                "thd: expected memory of its own, got some of bshd's; it is written to while that is read or written",
                () -> ThdConversion.convertBshdToThd(bshd, lengths, inside, open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Tensor thd = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 64, 1), 4, 2, 8);
        Tensor bshd = open.unwritten(DType.FLOAT32, 2, 3, 2, 8);
        Tensor lengths = open.ints(0, 2, 4);
        Allocation.assertNone("conversion", () -> {
            ThdConversion.convertThdToBshd(thd, lengths, bshd, open.stream());
            ThdConversion.convertBshdToThd(bshd, lengths, thd, open.stream());
        });
    }
}
