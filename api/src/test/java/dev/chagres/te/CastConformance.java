package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.witness.Float8Witness;
import dev.chagres.witness.Rounding;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Cast} with one scale, against the definition of FP8: every byte must be the one. */
@Tag("L0")
@Tag("L1")
class CastConformance {
    private static final List<DType> INPUTS = List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16);
    private static final List<DType> OUTPUTS = List.of(DType.FLOAT8_E4M3, DType.FLOAT8_E5M2);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** [rows, columns] of {@code input}, quantized to {@code output}. */
    record Case(DType input, DType output, int rows, int columns) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (int[] size : new int[][] {{1, 1}, {3, 5}, {17, 33}, {64, 64}, {63, 65}, {128, 96}, {1, 1000}}) {
            for (DType input : INPUTS) {
                for (DType output : OUTPUTS) {
                    cases.add(new Case(input, output, size[0], size[1]));
                }
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void quantize(Case c) {
        float scale = (float) open.random().nextDouble(10, 300);
        double[] values = open.normal(c.input, c.rows * c.columns, 1);
        Tensor x = open.tensor(c.input, values, c.rows, c.columns);
        QuantizedTensor one = Float8Matrix.emptyRowwise(open, c.output, c.rows, c.columns, scale);
        QuantizedTensor both = Float8Matrix.empty(open, c.output, c.rows, c.columns, scale);
        Cast.quantize(x, one, open.stream());
        Cast.quantize(x, both, open.stream());
        assertQuantized(open, values, scale, one);
        assertQuantized(open, values, scale, both);
        assertTransposed(open, both);
        byte[] made = one.rowwise().toBytes(open.stream());
        assertArrayEquals(made, both.rowwise().toBytes(open.stream()));
    }

    /** Checks each byte, the scale inverse and the largest magnitude. */
    static void assertQuantized(OpenDevice open, double[] values, float scale, QuantizedTensor actual) {
        DType dtype = actual.dtype();
        double[] stored = Float8Witness.values(actual.rowwise().toBytes(open.stream()), dtype);
        double largest = 0;
        for (int i = 0; i < values.length; i++) {
            assertEquals(
                    Float8Witness.quantized(values[i], scale, dtype), stored[i], "element " + i + ": " + values[i]);
            largest = Double.isNaN(values[i]) ? largest : Math.max(largest, Math.abs(values[i]));
        }
        assertEquals(1 / scale, open.read(actual.rowwiseScaleInverse())[0], "scale inverse");
        assertEquals((float) largest, open.read(actual.amax())[0], "amax");
    }

    /** Checks that the columnwise bytes are the rowwise ones, transposed. */
    static void assertTransposed(OpenDevice open, QuantizedTensor actual) {
        int rows = (int) actual.rows();
        int columns = (int) actual.columns();
        byte[] rowwise = actual.rowwise().toBytes(open.stream());
        byte[] expected = new byte[rowwise.length];
        for (int i = 0; i < rowwise.length; i++) {
            expected[i % columns * rows + i / columns] = rowwise[i];
        }
        assertArrayEquals(expected, actual.columnwise().toBytes(open.stream()), "columnwise data");
    }

    /** Zeros of both signs, numbers round every tie and the largest one, infinities, NaN. */
    static double[] edges(DType dtype) {
        List<Double> edges = new ArrayList<>(List.of(0.0, -0.0, Double.NaN));
        for (int bits = 0; bits < 255; bits++) {
            double low = Float8Witness.value((byte) bits, dtype);
            double high = Float8Witness.value((byte) (bits + 1), dtype);
            if (Double.isFinite(low) && Double.isFinite(high)) {
                float tie = (float) ((low + high) / 2);
                edges.addAll(List.of(low, (double) tie, (double) Math.nextUp(tie), (double) Math.nextDown(tie)));
            }
        }
        double largest = Float8Witness.largest(dtype);
        for (double beyond : new double[] {1.03 * largest, 1.1 * largest, 1e30, Double.POSITIVE_INFINITY}) {
            edges.add((double) (float) beyond);
            edges.add((double) (float) -beyond);
        }
        return edges.stream().mapToDouble(Double::doubleValue).toArray();
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT8_E4M3", "FLOAT8_E5M2"})
    void roundsToNearestEvenAndStopsAtTheLargest(DType dtype) {
        double[] values = edges(dtype);
        for (float scale : new float[] {1, 0.5f}) {
            QuantizedTensor actual = Float8Matrix.empty(open, dtype, 1, values.length, scale);
            double[] wide = Arrays.stream(values).map(value -> value / scale).toArray();
            Cast.quantize(open.tensor(DType.FLOAT32, wide, 1, values.length), actual, open.stream());
            assertQuantized(open, wide, scale, actual);
            byte[] bytes = actual.rowwise().toBytes(open.stream());
            assertEquals(0, bytes[0], "0");
            assertEquals((byte) 0x80, bytes[1], "-0");
        }
    }

    @Test
    void aLargerMagnitudeStays() {
        QuantizedTensor actual = Float8Matrix.emptyRowwise(open, DType.FLOAT8_E4M3, 1, 3, 1);
        open.set(actual.amax(), 5);
        Cast.quantize(open.tensor(DType.FLOAT32, new double[] {1, -4, 2}, 1, 3), actual, open.stream());
        assertEquals(5, open.read(actual.amax())[0]);
        Cast.quantize(open.tensor(DType.FLOAT32, new double[] {1, -7, 2}, 1, 3), actual, open.stream());
        assertEquals(7, open.read(actual.amax())[0]);
    }

    @Test
    void withoutAmax() {
        QuantizedTensor actual = open.scope()
                .quantized(Scaling.TENSOR, DType.FLOAT8_E5M2, 1, 2)
                .allocateRowwise(open.scope())
                .scale(open.tensor(DType.FLOAT32, new double[] {2}, 1));
        Cast.quantize(open.tensor(DType.BFLOAT16, new double[] {3, -1}, 1, 2), actual, open.stream());
        byte[] bytes = actual.rowwise().toBytes(open.stream());
        assertArrayEquals(new double[] {6, -2}, Float8Witness.values(bytes, DType.FLOAT8_E5M2));
    }

    /** A flag of 1 leaves everything as it is, any other number does not. */
    @Test
    void noop() {
        Tensor flag = open.tensor(DType.FLOAT32, new double[] {1}, 1);
        QuantizationConfig config = QuantizationConfig.standard().withNoop(flag);
        Tensor x = open.tensor(DType.FLOAT32, new double[] {3, -1}, 1, 2);
        for (boolean both : new boolean[] {false, true}) {
            QuantizedTensor actual = both
                    ? Float8Matrix.empty(open, DType.FLOAT8_E5M2, 1, 2, 2)
                    : Float8Matrix.emptyRowwise(open, DType.FLOAT8_E5M2, 1, 2, 2);
            actual.rowwise().set(open.stream(), (byte) 1, (byte) 2);
            open.set(actual.rowwiseScaleInverse(), 9);
            open.set(flag, 1);
            Cast.quantize(x, actual, config, open.stream());
            assertArrayEquals(new byte[] {1, 2}, actual.rowwise().toBytes(open.stream()));
            assertEquals(9, open.read(actual.rowwiseScaleInverse())[0]);
            assertEquals(0, open.read(actual.amax())[0]);
            open.set(flag, 0);
            Cast.quantize(x, actual, config, open.stream());
            assertQuantized(open, new double[] {3, -1}, 2, actual);
        }
        QuantizedTensor always = Float8Matrix.emptyRowwise(open, DType.FLOAT8_E5M2, 1, 2, 2);
        open.set(flag, 1);
        Cast.quantize(x, always, open.stream());
        assertQuantized(open, new double[] {3, -1}, 2, always);
    }

    static List<Case> dequantizeCases() {
        return cases().stream().filter(c -> c.rows == 1 && c.columns == 1).toList();
    }

    /** Every byte, under a scale that is no power of two. */
    @ParameterizedTest
    @MethodSource("dequantizeCases")
    void dequantize(Case c) {
        byte[] bytes = new byte[256];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) i;
        }
        float scaleInverse = 0.3f;
        QuantizedTensor x = Float8Matrix.emptyRowwise(open, c.output, 16, 16, 1);
        x.rowwise().set(open.stream(), bytes);
        open.set(x.rowwiseScaleInverse(), scaleInverse);
        Tensor y = open.unwritten(c.input, 16, 16);
        Cast.dequantize(x, y, open.stream());
        float[] actual = open.read(y);
        for (int i = 0; i < bytes.length; i++) {
            float product = (float) Float8Witness.value(bytes[i], c.output) * scaleInverse;
            assertEquals((float) Rounding.round(product, c.input), actual[i], "byte " + i);
        }
    }

    /** What one scale stored comes back as the same bytes. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT8_E4M3", "FLOAT8_E5M2"})
    void bytesComeBack(DType dtype) {
        byte[] bytes = new byte[256];
        for (int i = 0; i < bytes.length; i++) {
            double value = Float8Witness.value((byte) i, dtype);
            bytes[i] = Double.isFinite(value) ? (byte) i : 0;
        }
        QuantizedTensor x = Float8Matrix.emptyRowwise(open, dtype, 16, 16, 8);
        x.rowwise().set(open.stream(), bytes);
        open.set(x.rowwiseScaleInverse(), 0.125);
        Tensor y = open.unwritten(DType.FLOAT32, 16, 16);
        Cast.dequantize(x, y, open.stream());
        x.rowwise().zero(open.stream());
        Cast.quantize(y, x, open.stream());
        assertArrayEquals(bytes, x.rowwise().toBytes(open.stream()));
    }

    @Test
    void withoutElements() {
        QuantizedTensor none = Float8Matrix.empty(open, DType.FLOAT8_E4M3, 0, 64, 1);
        Tensor plain = open.scope().tensor(DType.BFLOAT16, 0, 64);
        Cast.quantize(plain, none, open.stream());
        Cast.dequantize(none, plain, open.stream());
        QuantizedTensor thin = Float8Matrix.empty(open, DType.FLOAT8_E4M3, 64, 0, 1);
        Cast.quantize(open.scope().tensor(DType.BFLOAT16, 64, 0), thin, open.stream());
        open.stream().synchronize();
    }

    @Test
    void makesNoGarbage() {
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 32, 64, 1));
        QuantizedTensor q = Float8Matrix.empty(open, DType.FLOAT8_E4M3, 32, 64, 2);
        QuantizationConfig config = QuantizationConfig.standard()
                .withScales(QuantizationConfig.Scales.POWER_OF_2)
                .withAmaxEpsilon(1e-3f);
        Tensor y = open.scope().like(x);
        Allocation.assertNone("casts", () -> {
            Cast.quantize(x, q, open.stream());
            Cast.quantize(x, q, config, open.stream());
            Cast.dequantize(q, y, open.stream());
        });
    }
}
