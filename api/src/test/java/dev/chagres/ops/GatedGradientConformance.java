package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.Activation;
import dev.chagres.te.Cast;
import dev.chagres.te.ClampedSwiglu;
import dev.chagres.witness.ActivationWitness;
import dev.chagres.witness.Float8Witness;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** {@code GatedGradient} against TE's two kernels and double precision, and what it refuses. */
@Tag("L0")
@Tag("L1")
class GatedGradientConformance {
    private static final float SCALE = 24;
    private static final int[][] SIZES = {{16, 16}, {48, 80}, {64, 128}, {144, 48}};

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static QuantizedTensor both(DType dtype, long rows, long columns) {
        return open.scope()
                .quantized(Scaling.TENSOR, dtype, rows, columns)
                .allocateRowwise(open.scope())
                .allocateColumnwise(open.scope())
                .scale(open.tensor(DType.FLOAT32, new double[] {SCALE}, 1))
                .amax(open.tensor(DType.FLOAT32, new double[] {0}, 1));
    }

    @ParameterizedTest
    @EnumSource(names = {"GEGLU", "GLU", "QGEGLU", "REGLU", "SREGLU", "SWIGLU", "CLAMPED_SWIGLU"})
    void asTwoKernelsOfTe(Activation activation) {
        for (DType dtype : new DType[] {DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32}) {
            for (int[] size : SIZES) {
                Tensor dy = open.tensor(dtype, open.normal(dtype, size[0], size[1], 1));
                Tensor x = open.tensor(dtype, open.normal(dtype, size[0], 2 * size[1], 1));
                Tensor dx = open.scope().like(x);
                for (DType output : new DType[] {DType.FLOAT8_E4M3, DType.FLOAT8_E5M2}) {
                    QuantizedTensor one = both(output, size[0], 2L * size[1]);
                    QuantizedTensor two = both(output, size[0], 2L * size[1]);
                    GatedGradient.cast(activation, dy, x, one, open.stream());
                    activation.backward(dy, x, dx, open.stream());
                    Cast.quantize(dx, two, open.stream());
                    assertAlike(activation + " of " + dtype + " to " + output, two, one);
                }
            }
        }
    }

    /** At most one of 1000 bytes differs, where FP32 arithmetic beside a tie went the other way, and then by a step of FP8. */
    private static void assertAlike(String what, QuantizedTensor expected, QuantizedTensor actual) {
        assertAlike(what + ", rowwise", expected.rowwise(), actual.rowwise());
        assertAlike(what + ", columnwise", expected.columnwise(), actual.columnwise());
        float amax = open.read(expected.amax())[0];
        assertEquals(amax, open.read(actual.amax())[0], amax * 0x1p-8, what + ", amax");
        assertArrayEquals(
                open.read(expected.rowwiseScaleInverse()), open.read(actual.rowwiseScaleInverse()), what + ", inverse");
    }

    private static void assertAlike(String what, Tensor expected, Tensor actual) {
        byte[] wanted = expected.toBytes(open.stream());
        byte[] got = actual.toBytes(open.stream());
        int different = 0;
        for (int i = 0; i < wanted.length; i++) {
            int steps = Math.abs((wanted[i] & 0x7f) - (got[i] & 0x7f));
            assertTrue(steps <= 1, what + " at " + i + ": " + steps + " steps of FP8");
            different += wanted[i] == got[i] ? 0 : 1;
        }
        assertTrue(different <= 1 + wanted.length / 1000, what + ": " + different + " of " + wanted.length + " differ");
    }

    @Test
    void clampedWithItsOwnNumbers() {
        ClampedSwiglu activation = new ClampedSwiglu(0.75f, 1.25f, 0.5f);
        RealMatrix x = open.normal(DType.FLOAT32, 64, 96, 1);
        RealMatrix dy = open.normal(DType.FLOAT32, 64, 48, 1);
        QuantizedTensor q = both(DType.FLOAT8_E4M3, 64, 96);
        GatedGradient.cast(activation, open.tensor(DType.FLOAT32, dy), open.tensor(DType.FLOAT32, x), q, open.stream());
        ActivationWitness witness = new ActivationWitness(activation);
        witness.forward(x);
        double[] expected = Comparison.entries(witness.backward(dy));
        double[] actual = Float8Witness.values(q.rowwise().toBytes(open.stream()), q.dtype());
        for (int i = 0; i < expected.length; i++) {
            double error = 1e-5 * SCALE;
            double low = Float8Witness.nearest(expected[i] * SCALE - error, q.dtype());
            double high = Float8Witness.nearest(expected[i] * SCALE + error, q.dtype());
            assertTrue(actual[i] >= low && actual[i] <= high, "element " + i + ": " + actual[i]);
        }
    }

    @Test
    void nothingAtAllAndNoGarbage() {
        Tensor none = open.scope().tensor(DType.BFLOAT16, 0, 16);
        GatedGradient.cast(
                Activation.SWIGLU,
                none,
                open.scope().tensor(DType.BFLOAT16, 0, 32),
                both(DType.FLOAT8_E5M2, 0, 32),
                open.stream());
        Tensor dy = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 16, 16, 1));
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 16, 32, 1));
        QuantizedTensor q = both(DType.FLOAT8_E5M2, 16, 32);
        Allocation.assertNone(
                "GatedGradient.cast", () -> GatedGradient.cast(Activation.SWIGLU, dy, x, q, open.stream()));
    }

    @Test
    void refusals() {
        Tensor dy = open.unwritten(DType.BFLOAT16, 16, 32);
        Tensor x = open.unwritten(DType.BFLOAT16, 16, 64);
        QuantizedTensor q = both(DType.FLOAT8_E5M2, 16, 64);
        refused(
                "activation: expected a gated one, got GELU, whose Activation.backward writes both copies by one kernel",
                Activation.GELU,
                dy,
                x,
                q);
        refused("x: expected BFLOAT16[T, 64], got BFLOAT16[16, 32]", Activation.SWIGLU, dy, dy, q);
        refused(
                "dy: expected multiples of 16 rows and columns, got BFLOAT16[16, 24]; pad it with zeros",
                Activation.SWIGLU,
                open.unwritten(DType.BFLOAT16, 16, 24),
                open.unwritten(DType.BFLOAT16, 16, 48),
                both(DType.FLOAT8_E5M2, 16, 48));
        refused(
                "q: expected [16, 64], got FLOAT8_E5M2[16, 32] TENSOR",
                Activation.SWIGLU,
                dy,
                x,
                both(DType.FLOAT8_E5M2, 16, 32));
        refused(
                "q: expected columnwise data, for the kernel makes both copies, got FLOAT8_E5M2[16, 64] TENSOR without; set it"
                        + " by columnwise or allocateColumnwise",
                Activation.SWIGLU,
                dy,
                x,
                open.scope()
                        .quantized(Scaling.TENSOR, DType.FLOAT8_E5M2, 16, 64)
                        .allocateRowwise(open.scope())
                        .scale(open.tensor(DType.FLOAT32, new double[] {SCALE}, 1)));
    }

    @Test
    void refusesSharedAndMisalignedMemory() {
        Tensor dy = open.unwritten(DType.FLOAT32, 16, 32);
        Tensor x = open.unwritten(DType.FLOAT32, 16, 64);
        QuantizedTensor q = both(DType.FLOAT8_E5M2, 16, 64);
        String misaligned =
                ": expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a view"
                        + " that does not; copy it into a tensor";
        Tensor later = open.scope().view(open.unwritten(DType.FLOAT32, 16 * 64 + 1), 1, 16, 64);
        refused("x" + misaligned, Activation.SWIGLU, dy, later, q);
        refused("dy" + misaligned, Activation.SWIGLU, open.scope().view(later, 0, 16, 32), x, q);
        q.amax(open.scope().view(x, 0, 1));
        refused(
                "q: expected memory of its own, got some of x's in its amax; it is written to while that is read or written",
                Activation.SWIGLU,
                dy,
                x,
                q);
    }

    private static void refused(String text, Activation activation, Tensor dy, Tensor x, QuantizedTensor q) {
        assertThrown(
                IllegalArgumentException.class, text, () -> GatedGradient.cast(activation, dy, x, q, open.stream()));
    }
}
