package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.witness.PhiloxWitness;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Dropout} against Philox by its formula, and double precision. */
@Tag("L0")
@Tag("L1")
class DropoutConformance {
    private static final long OFFSET = (1L << 40) + 3;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int count, float probability) {}

    static List<Case> cases() {
        return List.of(
                new Case(DType.FLOAT32, 1, 0.5f),
                new Case(DType.FLOAT32, 4099, 0.1f),
                new Case(DType.BFLOAT16, 7, 0.9f),
                new Case(DType.BFLOAT16, 1024, 0.25f),
                new Case(DType.FLOAT16, 257, 0),
                new Case(DType.FLOAT16, 0, 0.5f));
    }

    @ParameterizedTest
    @MethodSource("cases")
    void sumMaskAndGradient(Case c) {
        long seed = open.random().nextLong();
        double[] x = open.normal(c.dtype, c.count, 1);
        double[] residual = open.normal(c.dtype, c.count, 1);
        Tensor y = open.unwritten(c.dtype, c.count);
        Tensor mask = open.scope().tensor(DType.BYTE, Dropout.maskBytes(c.count));
        Dropout.dropoutAdd(
                open.tensor(c.dtype, x, c.count),
                open.tensor(c.dtype, residual, c.count),
                y,
                mask,
                open.longs(seed, OFFSET),
                c.probability,
                open.stream());
        double[] dy = open.normal(c.dtype, c.count, 1);
        Tensor dx = open.unwritten(c.dtype, c.count);
        Dropout.dropoutBackward(open.tensor(c.dtype, dy, c.count), mask, dx, c.probability, open.stream());

        double[] sum = new double[c.count];
        double[] gradient = new double[c.count];
        boolean[] kept = c.count == 0 ? new boolean[0] : open.bits(mask, c.count);
        for (int i = 0; i < c.count; i++) {
            boolean keeps = PhiloxWitness.word(seed, OFFSET + i / 4, i % 4) * 0x1p-32 >= c.probability;
            assertEquals(keeps, kept[i], "bit " + i);
            sum[i] = residual[i] + (keeps ? x[i] / (1 - c.probability) : 0);
            gradient[i] = keeps ? dy[i] / (1 - c.probability) : 0;
        }
        open.assertClose("y", sum, open.read(y), 1, Tolerances.rounded(c.dtype));
        open.assertClose("dx", gradient, open.read(dx), 1, Tolerances.rounded(c.dtype));
    }

    @Test
    void inPlace() {
        double[] x = open.normal(DType.BFLOAT16, 100, 1);
        Tensor residual = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 100, 1), 100);
        Tensor state = open.longs(3, 4);
        Tensor mask = open.scope().tensor(DType.BYTE, Dropout.maskBytes(100));
        Tensor y = open.unwritten(DType.BFLOAT16, 100);
        Dropout.dropoutAdd(open.tensor(DType.BFLOAT16, x, 100), residual, y, mask, state, 0.5f, open.stream());
        Tensor place = open.tensor(DType.BFLOAT16, x, 100);
        Dropout.dropoutAdd(place, residual, place, mask, state, 0.5f, open.stream());
        assertArrayEquals(open.read(y), open.read(place));
        Dropout.dropoutAdd(open.tensor(DType.BFLOAT16, x, 100), residual, residual, mask, state, 0.5f, open.stream());
        assertArrayEquals(open.read(y), open.read(residual));
        Tensor dx = open.unwritten(DType.BFLOAT16, 100);
        Dropout.dropoutBackward(y, mask, dx, 0.5f, open.stream());
        Dropout.dropoutBackward(y, mask, y, 0.5f, open.stream());
        assertArrayEquals(open.read(dx), open.read(y));
    }

    @Test
    void maskBytes() {
        assertEquals(0, Dropout.maskBytes(0));
        assertEquals(1, Dropout.maskBytes(8));
        assertEquals(2, Dropout.maskBytes(9));
        assertEquals(1L << 60, Dropout.maskBytes(Long.MAX_VALUE));
        assertThrown(
                IllegalArgumentException.class,
                "count: expected no negative number, got -1",
                () -> Dropout.maskBytes(-1));
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    @Test
    void refusals() {
        Tensor x = of(DType.FLOAT32, 16);
        Tensor y = of(DType.FLOAT32, 16);
        Tensor mask = of(DType.BYTE, 2);
        Tensor state = of(DType.INT64, 2);
        refused("mask: expected BYTE[2], got BYTE[3]", x, y, of(DType.BYTE, 3), state, 0.5f);
        refused("rngState: expected INT64[2], got INT32[2]", x, y, mask, of(DType.INT32, 2), 0.5f);
        refused("probability: expected a number of at least 0 and below 1, got 1.0", x, y, mask, state, 1);
        refused("probability: expected a number of at least 0 and below 1, got NaN", x, y, mask, state, Float.NaN);
        refused("residual: expected FLOAT32[16], got FLOAT32[4]", x, of(DType.FLOAT32, 4), mask, state, 0.5f);
        assertThrown(
                IllegalArgumentException.class,
                "dx: expected FLOAT32[16], got FLOAT32[15]",
                () -> Dropout.dropoutBackward(x, mask, of(DType.FLOAT32, 15), 0.5f, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "mask: expected BYTE[2], got BYTE[1]",
                () -> Dropout.dropoutBackward(x, of(DType.BYTE, 1), x, 0.5f, open.stream()));
    }

    private static void refused(String text, Tensor x, Tensor residual, Tensor mask, Tensor state, float probability) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Dropout.dropoutAdd(x, residual, x, mask, state, probability, open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Tensor x = open.tensor(DType.FLOAT32, new double[16], 16);
        Tensor mask = of(DType.BYTE, 2);
        Tensor state = open.longs(1, 2);
        Allocation.assertNone("dropout", () -> {
            Dropout.dropoutAdd(x, x, x, mask, state, 0.5f, open.stream());
            Dropout.dropoutBackward(x, mask, x, 0.5f, open.stream());
        });
    }
}
