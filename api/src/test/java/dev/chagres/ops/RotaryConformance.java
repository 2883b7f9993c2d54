package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerances;
import dev.chagres.ops.Rotary.Direction;
import dev.chagres.te.QkvFormat;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Rotary} against double precision: query and key are rotated in place, the values stay. */
@Tag("L0")
@Tag("L1")
class RotaryConformance {
    private static final int POSITIONS = 130;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, TokenRows tokens, int heads, int headDim, Direction direction) {
        int width() {
            return heads * headDim;
        }

        long extent() {
            return tokens.format() == QkvFormat.BSHD
                    ? tokens.padded()
                    : tokens.lengths().size();
        }
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (Direction direction : Direction.values()) {
                for (QkvFormat format : QkvFormat.values()) {
                    TokenRows tokens = format == QkvFormat.THD
                            ? TokenRows.packed(1, 0, 17, 128)
                            : TokenRows.padded(format, 33, 33, 33, 33);
                    cases.add(new Case(dtype, tokens, 2, 16, direction));
                    cases.add(new Case(dtype, tokens, 3, 6, direction));
                }
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void queryAndKeyAreRotated(Case c) {
        int half = c.headDim / 2;
        double[] angles = new double[POSITIONS * c.headDim];
        for (int position = 0; position < POSITIONS; position++) {
            double[] drawn = open.normal(DType.FLOAT32, half, 3);
            System.arraycopy(drawn, 0, angles, position * c.headDim, half);
            System.arraycopy(drawn, 0, angles, position * c.headDim + half, half);
        }
        double[] qkv = open.normal(c.dtype, c.tokens.tokens() * 3 * c.width(), 1);
        Tensor tensor = open.tensor(c.dtype, qkv, c.tokens.tokens(), 3L * c.width());
        Rotary.rotaryPacked(
                tensor,
                offsets(c),
                open.tensor(DType.FLOAT32, angles, POSITIONS, c.headDim),
                c.direction,
                c.tokens.format(),
                c.extent(),
                open.stream());
        open.assertClose("qkv", rotated(c, qkv, angles), tensor, Tolerances.rounded(c.dtype));
    }

    private static double[] rotated(Case c, double[] qkv, double[] angles) {
        int half = c.headDim / 2;
        double[] expected = qkv.clone();
        for (int[] rows : c.tokens.rows()) {
            for (int position = 0; position < rows.length; position++) {
                for (int head = 0; head < 2 * c.heads; head++) {
                    for (int i = 0; i < half; i++) {
                        int first = rows[position] * 3 * c.width() + head * c.headDim + i;
                        double angle = angles[position * c.headDim + i] * (c.direction == Direction.FORWARD ? 1 : -1);
                        double a = qkv[first];
                        double b = qkv[first + half];
                        expected[first] = a * Math.cos(angle) - b * Math.sin(angle);
                        expected[first + half] = b * Math.cos(angle) + a * Math.sin(angle);
                    }
                }
            }
        }
        return expected;
    }

    private static @Nullable Tensor offsets(Case c) {
        if (c.tokens.format() != QkvFormat.THD) {
            return null;
        }
        int[] offsets = new int[c.tokens.lengths().size() + 1];
        for (int i = 1; i < offsets.length; i++) {
            offsets[i] = offsets[i - 1] + c.tokens.lengths().get(i - 1);
        }
        return open.ints(offsets);
    }

    /** Tokens behind the last sequence, and positions that there are no angles for, stay as they are. */
    @Test
    void whatStays() {
        double[] qkv = open.normal(DType.FLOAT32, 5 * 12, 1);
        Tensor tensor = open.tensor(DType.FLOAT32, qkv, 5, 12);
        Tensor angles = open.tensor(DType.FLOAT32, new double[] {1, 2, 1, 2, 3, 4, 3, 4}, 2, 1, 1, 4);
        Rotary.rotaryPacked(tensor, open.ints(0, 3), angles, Direction.FORWARD, QkvFormat.THD, 1, open.stream());
        float[] after = open.read(tensor);
        for (int i = 0; i < after.length; i++) {
            boolean stays = i >= 24 || i % 12 >= 8;
            if (stays) {
                assertArrayEquals(new float[] {(float) qkv[i]}, new float[] {after[i]}, "element " + i);
            }
        }
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static void refused(
            String text, Tensor qkv, @Nullable Tensor cuSeqlens, Tensor angles, QkvFormat format, long extent) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Rotary.rotaryPacked(qkv, cuSeqlens, angles, Direction.FORWARD, format, extent, open.stream()));
    }

    @Test
    void refusals() {
        Tensor qkv = of(DType.FLOAT32, 6, 24);
        Tensor angles = of(DType.FLOAT32, 5, 8);
        Tensor cu = open.ints(0, 6);
        refused(
                "qkv: expected [T, 3 h d] with head dimension 8 and at most 65535 heads, got FLOAT32[6, 25]",
                of(DType.FLOAT32, 6, 25),
                cu,
                angles,
                QkvFormat.THD,
                1);
        String wanted = "angles: expected FLOAT32[positions, d] with d even and at most 8192, got ";
        refused(wanted + "FLOAT32[5, 7]", qkv, cu, of(DType.FLOAT32, 5, 7), QkvFormat.THD, 1);
        refused(wanted + "FLOAT32[8]", qkv, cu, of(DType.FLOAT32, 8), QkvFormat.THD, 1);
        refused(wanted + "FLOAT32[5, 2, 8]", qkv, cu, of(DType.FLOAT32, 5, 2, 8), QkvFormat.THD, 1);
        refused("cuSeqlens: expected INT32[3], got INT32[2]", qkv, cu, angles, QkvFormat.THD, 2);
        refused("cuSeqlens: expected null for padded tokens, SBHD, got INT32[2]", qkv, cu, angles, QkvFormat.SBHD, 2);
        refused("extent: expected at least 1, got 0", qkv, null, angles, QkvFormat.BSHD, 0);
        refused(
                "qkv: expected a multiple of 4 tokens, the length of a sequence, got FLOAT32[6, 24]",
                qkv,
                null,
                angles,
                QkvFormat.BSHD,
                4);
        refused(
                "qkv: expected a multiple of 5 tokens, the sequences of a batch, got FLOAT32[6, 24]",
                qkv,
                null,
                angles,
                QkvFormat.SBHD,
                5);
        refused(
                "qkv: expected memory of its own, got some of angles's; it is written to while that is read or written",
                qkv,
                cu,
                open.scope().view(qkv, 0, 5, 8),
                QkvFormat.THD,
                1);
        assertThrown(
                NullPointerException.class,
                "cuSeqlens: expected a value, got null",
                () -> Rotary.rotaryPacked(qkv, null, angles, Direction.FORWARD, QkvFormat.THD, 1, open.stream()));
    }

    @Test
    void withoutTokens() {
        Tensor none = of(DType.FLOAT32, 0, 24);
        Rotary.rotaryPacked(
                none, open.ints(0, 0), of(DType.FLOAT32, 5, 8), Direction.FORWARD, QkvFormat.THD, 1, open.stream());
        open.stream().synchronize();
    }

    @Test
    void makesNoGarbage() {
        Tensor qkv = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 6, 48, 1));
        Tensor angles = open.tensor(DType.FLOAT32, new double[80], 5, 16);
        Tensor cu = open.ints(0, 3, 6);
        Allocation.assertNone(
                "rotation",
                () -> Rotary.rotaryPacked(qkv, cu, angles, Direction.FORWARD, QkvFormat.THD, 2, open.stream()));
    }
}
