package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.witness.Float8Witness;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** {@code Transpose} bit by bit, and what it refuses. */
@Tag("L0")
@Tag("L1")
class TransposeConformance {
    private static final int[][] SIZES = {{1, 1}, {3, 5}, {1, 64}, {32, 64}, {33, 127}, {128, 96}};

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void numbers(DType dtype) {
        for (int[] size : SIZES) {
            RealMatrix x = open.normal(dtype, size[0], size[1], 1);
            Tensor y = open.unwritten(dtype, size[1], size[0]);
            Transpose.transpose(open.tensor(dtype, x), y, open.stream());
            assertArrayEquals(open.read(open.tensor(dtype, x.transpose())), open.read(y));
        }
    }

    /** A flag of 1 leaves everything as it is, any other number does not. */
    @Test
    void underACondition() {
        for (int[] size : SIZES) {
            RealMatrix x = open.normal(DType.BFLOAT16, size[0], size[1], 1);
            Tensor input = open.tensor(DType.BFLOAT16, x);
            Tensor output = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, size[1], size[0], 1));
            Tensor noop = open.tensor(DType.FLOAT32, new double[] {1}, 1);
            float[] before = open.read(output);
            Transpose.transposeWithNoop(input, noop, output, open.stream());
            assertArrayEquals(before, open.read(output));
            open.set(noop, 0);
            Transpose.transposeWithNoop(input, noop, output, open.stream());
            assertArrayEquals(open.read(open.tensor(DType.BFLOAT16, x.transpose())), open.read(output));
        }
        Tensor x = of(DType.FLOAT32, 2, 3);
        Tensor y = of(DType.FLOAT32, 3, 2);
        assertThrown(
                IllegalArgumentException.class,
                "noop: expected FLOAT32[1], got INT32[1]",
                () -> Transpose.transposeWithNoop(x, open.ints(0), y, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "output: expected memory of its own, got some of noop's; it is written to while that is read or written",
                () -> Transpose.transposeWithNoop(x, open.scope().view(y, 0, 1), y, open.stream()));
    }

    /** Rowwise data becomes the columnwise data that quantizing makes. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT8_E4M3", "FLOAT8_E5M2"})
    void bytes(DType dtype) {
        for (int[] size : SIZES) {
            Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, size[0], size[1], 1));
            QuantizedTensor both = Float8Matrix.empty(open, dtype, size[0], size[1], 100);
            Cast.quantize(x, both, open.stream());
            Tensor y = open.scope().like(both.columnwise());
            Transpose.transpose(both.rowwise(), y, open.stream());
            assertArrayEquals(both.columnwise().toBytes(open.stream()), y.toBytes(open.stream()));
        }
    }

    /** The columnwise data and the sums of rowwise data, times the scale inverse. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void withBiasGradient(DType biasType) {
        for (DType dtype : new DType[] {DType.FLOAT8_E4M3, DType.FLOAT8_E5M2}) {
            for (int[] size : new int[][] {{8, 8}, {264, 24}, {256, 512}, {16, 264}}) {
                Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, size[0], size[1], 1));
                QuantizedTensor both = Float8Matrix.empty(open, dtype, size[0], size[1], 50);
                Cast.quantize(x, both, open.stream());
                byte[] rowwise = both.rowwise().toBytes(open.stream());
                byte[] columnwise = both.columnwise().toBytes(open.stream());
                both.columnwise().zero(open.stream());
                Tensor dbias = open.unwritten(biasType, size[1]);
                Transpose.fp8TransposeDbias(both, dbias, open.stream());
                assertArrayEquals(columnwise, both.columnwise().toBytes(open.stream()));
                double[] expected = new double[size[1]];
                for (int i = 0; i < rowwise.length; i++) {
                    expected[i % size[1]] += Float8Witness.value(rowwise[i], dtype) / 50;
                }
                open.assertClose("dbias", expected, dbias, Tolerances.rounded(biasType));
            }
        }
    }

    @Test
    void biasGradientWithoutRows() {
        QuantizedTensor none = Float8Matrix.empty(open, DType.FLOAT8_E4M3, 0, 16, 1);
        Tensor dbias = open.unwritten(DType.FLOAT32, 16);
        Transpose.fp8TransposeDbias(none, dbias, open.stream());
        assertArrayEquals(new float[16], open.read(dbias));
        QuantizedTensor some = Float8Matrix.empty(open, DType.FLOAT8_E4M3, 8, 16, 1);
        Cast.quantize(open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 8, 16, 1)), some, open.stream());
        Allocation.assertNone("transpose", () -> Transpose.fp8TransposeDbias(some, dbias, open.stream()));
    }

    @Test
    void refusalsOfBiasGradients() {
        Tensor dbias = of(DType.FLOAT32, 16);
        refusedBias(
                "gradient: expected multiples of 8 rows and columns, which TE's kernel takes at once, got"
                        + " FLOAT8_E4M3[4, 16] TENSOR; pad it with zeros",
                Float8Matrix.empty(open, DType.FLOAT8_E4M3, 4, 16, 1),
                dbias);
        refusedBias(
                "gradient: expected columnwise data, for that is what is written, got FLOAT8_E4M3[8, 16] TENSOR without;"
                        + " set it by columnwise or allocateColumnwise",
                Float8Matrix.emptyRowwise(open, DType.FLOAT8_E4M3, 8, 16, 1),
                dbias);
        refusedBias(
                "gradient: expected scaling by TENSOR, for TE transposes no blocks, got FLOAT8_E4M3[8, 16] BLOCK_1D",
                open.scope()
                        .quantized(Scaling.BLOCK_1D, DType.FLOAT8_E4M3, 8, 16)
                        .allocateRowwise(open.scope())
                        .allocateColumnwise(open.scope()),
                dbias);
        QuantizedTensor good = Float8Matrix.empty(open, DType.FLOAT8_E4M3, 8, 16, 1);
        refusedBias("dbias: expected FLOAT32[16], got FLOAT32[8]", good, of(DType.FLOAT32, 8));
        refusedBias(
                "dbias: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[16]", good, of(DType.INT32, 16));
        Tensor data = good.rowwise();
        QuantizedTensor same = open.scope()
                .quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 8, 16)
                .rowwise(data, good.rowwiseScaleInverse())
                .columnwise(open.scope().view(data, 0, 16, 8), good.rowwiseScaleInverse());
        refusedBias(
                "the gradient's columnwise data: expected memory of its own, got some of the gradient's rowwise data's; it is"
                        + " written to while that is read or written",
                same,
                dbias);
    }

    private static void refusedBias(String text, QuantizedTensor gradient, Tensor dbias) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Transpose.fp8TransposeDbias(gradient, dbias, open.stream()));
    }

    @Test
    void severalAtOnce() {
        Tensor[] inputs = new Tensor[SIZES.length + 1];
        QuantizedTensor[] outputs = new QuantizedTensor[inputs.length];
        double[][] values = new double[inputs.length][];
        for (int i = 0; i < inputs.length; i++) {
            int rows = i == SIZES.length ? 0 : SIZES[i][0];
            int columns = i == SIZES.length ? 8 : SIZES[i][1];
            values[i] = open.normal(DType.BFLOAT16, rows * columns, 1);
            inputs[i] = open.tensor(DType.BFLOAT16, values[i], rows, columns);
            outputs[i] = Float8Matrix.empty(open, DType.FLOAT8_E4M3, rows, columns, 10 + i);
        }
        Transpose.multiCastTranspose(inputs, outputs, open.stream());
        for (int i = 0; i < SIZES.length; i++) {
            CastConformance.assertQuantized(open, values[i], 10 + i, outputs[i]);
            CastConformance.assertTransposed(open, outputs[i]);
        }
        Transpose.multiCastTranspose(new Tensor[0], new QuantizedTensor[0], open.stream());
        Allocation.assertNone("several casts", () -> Transpose.multiCastTranspose(inputs, outputs, open.stream()), 100);
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "INT32"})
    void firstDimensionsSwap(DType dtype) {
        for (int[] size : new int[][] {{1, 1, 1}, {3, 5, 7}, {33, 4, 64}}) {
            double[] values = new double[size[0] * size[1] * size[2]];
            double[] expected = new double[values.length];
            for (int i = 0; i < values.length; i++) {
                values[i] = i % 251;
            }
            for (int i = 0; i < size[0]; i++) {
                for (int j = 0; j < size[1]; j++) {
                    int from = (i * size[1] + j) * size[2];
                    System.arraycopy(values, from, expected, (j * size[0] + i) * size[2], size[2]);
                }
            }
            Tensor output = of(dtype, size[1], size[0], size[2]);
            Transpose.swapFirstDims(numbers(dtype, values, size[0], size[1], size[2]), output, open.stream());
            Tensor wanted = numbers(dtype, expected, size[1], size[0], size[2]);
            if (dtype == DType.INT32) {
                assertArrayEquals(wanted.toInts(open.stream()), output.toInts(open.stream()));
            } else {
                assertArrayEquals(open.read(wanted), open.read(output));
            }
        }
        Transpose.swapFirstDims(of(dtype, 0, 3), of(dtype, 3, 0), open.stream());
        open.stream().synchronize();
    }

    private static Tensor numbers(DType dtype, double[] values, long... sizes) {
        if (dtype != DType.INT32) {
            return open.tensor(dtype, values, sizes);
        }
        int[] integers = new int[values.length];
        for (int i = 0; i < values.length; i++) {
            integers[i] = (int) values[i];
        }
        Tensor tensor = of(dtype, sizes);
        tensor.set(open.stream(), integers);
        return tensor;
    }

    @Test
    void refusalsToSwap() {
        Tensor x = of(DType.FLOAT32, 2, 3, 4);
        refusedToSwap("input: expected at least two dimensions, got FLOAT32[6]", of(DType.FLOAT32, 6), x);
        refusedToSwap(
                "input: expected elements of a type that Transformer Engine has, got FLOAT64[0, 3]; only copies and"
                        + " collectives take FLOAT64",
                of(DType.FLOAT64, 0, 3),
                of(DType.FLOAT64, 3, 0));
        refusedToSwap(
                "output: expected FLOAT32[2, 3, 4] with the first two dimensions exchanged, got FLOAT32[2, 3, 4]",
                x,
                x);
        refusedToSwap(
                "output: expected FLOAT32[2, 3, 4] with the first two dimensions exchanged, got BFLOAT16[3, 2, 4]",
                x,
                of(DType.BFLOAT16, 3, 2, 4));
        refusedToSwap(
                "output: expected memory of its own, got some of input's; it is written to while that is read or written",
                x,
                open.scope().view(x, 0, 3, 2, 4));
        Tensor odd = open.scope().view(of(DType.BFLOAT16, 49), 1, 2, 3, 8);
        assertTrue(assertThrows(
                        IllegalArgumentException.class,
                        () -> Transpose.swapFirstDims(odd, of(DType.BFLOAT16, 3, 2, 8), open.stream()))
                .getMessage()
                .startsWith("input: expected"));
    }

    private static void refusedToSwap(String text, Tensor input, Tensor output) {
        assertThrown(IllegalArgumentException.class, text, () -> Transpose.swapFirstDims(input, output, open.stream()));
    }

    @Test
    void withoutElements() {
        Transpose.transpose(of(DType.FLOAT8_E4M3, 0, 8), of(DType.FLOAT8_E4M3, 8, 0), open.stream());
        open.stream().synchronize();
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static void refused(String text, Tensor input, Tensor output) {
        assertThrown(IllegalArgumentException.class, text, () -> Transpose.transpose(input, output, open.stream()));
    }

    @Test
    void refusals() {
        Tensor x = of(DType.FLOAT8_E4M3, 16, 32);
        refused(
                "input: expected a matrix of FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3 or FLOAT8_E5M2, got INT32[2, 2]",
                of(DType.INT32, 2, 2),
                x);
        refused("output: expected FLOAT8_E4M3[32, 16], got FLOAT8_E4M3[16, 32]", x, of(DType.FLOAT8_E4M3, 16, 32));
        refused("output: expected FLOAT8_E4M3[32, 16], got FLOAT8_E5M2[32, 16]", x, of(DType.FLOAT8_E5M2, 32, 16));
        refused(
                "output: expected memory of its own, got some of input's; it is written to while that is read or written",
                x,
                open.scope().view(x, 0, 32, 16));
    }

    @Test
    void refusalsOfSeveral() {
        Tensor x = of(DType.BFLOAT16, 16, 32);
        QuantizedTensor q = Float8Matrix.empty(open, DType.FLOAT8_E4M3, 16, 32, 1);
        refusedSeveral("outputs: expected 2, one per input, got 1", new Tensor[] {x, x}, q);
        refusedSeveral(
                "pair 0, output: expected columnwise data, for the kernel makes both copies, got FLOAT8_E4M3[16, 32] TENSOR"
                        + " without; set it by columnwise or allocateColumnwise",
                new Tensor[] {x},
                Float8Matrix.emptyRowwise(open, DType.FLOAT8_E4M3, 16, 32, 1));
        refusedSeveral(
                "pair 0, output: expected scaling by TENSOR, for TE casts several matrices with one scale each, got"
                        + " FLOAT8_E4M3[16, 32] BLOCK_1D",
                new Tensor[] {x},
                open.scope()
                        .quantized(Scaling.BLOCK_1D, DType.FLOAT8_E4M3, 16, 32)
                        .allocateRowwise(open.scope()));
        refusedSeveral(
                "pair 1, input: expected BFLOAT16 to FLOAT8_E4M3 as the first pair, got FLOAT32 to FLOAT8_E4M3",
                new Tensor[] {x, of(DType.FLOAT32, 16, 32)},
                q,
                Float8Matrix.empty(open, DType.FLOAT8_E4M3, 16, 32, 1));
        refusedSeveral(
                "pairs 0 and 1, output: expected memory of its own, got some of another pair's rowwise data's in its rowwise data;"
                        + " it is written to while that is read or written",
                new Tensor[] {x, x},
                q,
                q);
    }

    private static void refusedSeveral(String text, Tensor[] inputs, QuantizedTensor... outputs) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Transpose.multiCastTranspose(inputs, outputs, open.stream()));
    }
}
