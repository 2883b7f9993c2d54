package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.layer.NormConfig;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.witness.ActivationWitness;
import dev.chagres.witness.Float8Witness;
import dev.chagres.witness.NormWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** What quantizes in the kernel that computes: bias gradients, activations and norms, against double precision. */
@Tag("L0")
@Tag("L1")
class FusedQuantizationConformance {
    private static final float EPSILON = 1e-5f;
    private static final List<DType> INPUTS = List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16);
    private static final int[][] FUSED_SIZES = {{8, 4}, {16, 60}, {64, 64}, {72, 132}, {128, 96}};

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /**
     * Checks that each stored number is the nearest to what FP32 arithmetic may have come to, so that there are two only beside a
     * tie, and what belongs to them exactly.
     */
    private static void assertQuantized(RealMatrix expected, QuantizedTensor actual) {
        DType dtype = actual.dtype();
        float scale = open.read(actual.scale())[0];
        double[] stored = Float8Witness.values(actual.rowwise().toBytes(open.stream()), dtype);
        double[] entries = Comparison.entries(expected);
        double meanSquare = 0;
        double largest = 0;
        for (double entry : entries) {
            meanSquare += entry * entry / entries.length;
            largest = Math.max(largest, Math.abs(entry));
        }
        double relative = Tolerances.rounded(DType.FLOAT32).element();
        for (int i = 0; i < entries.length; i++) {
            double error = relative * Math.max(Math.abs(entries[i]), Math.sqrt(meanSquare));
            double low = Float8Witness.nearest((entries[i] - error) * scale, dtype);
            double high = Float8Witness.nearest((entries[i] + error) * scale, dtype);
            if (!(stored[i] >= low && stored[i] <= high)) {
                throw new AssertionError("element " + i + ": expected " + low + " to " + high + ", got " + stored[i]);
            }
        }
        open.assertClose("amax", new double[] {largest}, actual.amax(), Tolerances.rounded(DType.FLOAT32));
        assertEquals(1 / scale, open.read(actual.rowwiseScaleInverse())[0]);
        if (actual.columnwise() != null) {
            CastConformance.assertTransposed(open, actual);
        }
    }

    private static double[] columnSums(RealMatrix x) {
        double[] sums = new double[x.getColumnDimension()];
        for (int column = 0; column < sums.length; column++) {
            for (double value : x.getColumn(column)) {
                sums[column] += value;
            }
        }
        return sums;
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT8_E4M3", "FLOAT8_E5M2"})
    void dbias(DType output) {
        for (DType dtype : INPUTS) {
            for (int[] size : FUSED_SIZES) {
                RealMatrix x = open.normal(dtype, size[0], size[1], 1);
                QuantizedTensor q = Float8Matrix.empty(open, output, size[0], size[1], 50);
                QuantizedTensor plain = Float8Matrix.empty(open, output, size[0], size[1], 50);
                Tensor dbias = open.unwritten(dtype, size[1]);
                Tensor input = open.tensor(dtype, x);
                Cast.quantizeDbias(input, q, dbias, open.stream());
                Cast.quantize(input, plain, open.stream());
                CastConformance.assertQuantized(open, Comparison.entries(x), 50, q);
                CastConformance.assertTransposed(open, q);
                double magnitude = Math.sqrt(size[0]);
                open.assertClose("dbias", columnSums(x), open.read(dbias), magnitude, Tolerances.rounded(dtype));
                byte[] expected = plain.rowwise().toBytes(open.stream());
                assertArrayEquals(expected, q.rowwise().toBytes(open.stream()), "as quantize");
            }
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"GELU", "SILU", "RELU", "QGELU", "SRELU"})
    void dbiasDact(Activation activation) {
        for (DType dtype : INPUTS) {
            for (int[] size : new int[][] {{4, 4}, {12, 60}, {64, 64}, {128, 96}}) {
                RealMatrix x = open.normal(dtype, size[0], size[1], 1);
                RealMatrix dy = open.normal(dtype, size[0], size[1], 1);
                ActivationWitness witness = new ActivationWitness(activation);
                witness.forward(x);
                RealMatrix dx = witness.backward(dy);
                QuantizedTensor q = Float8Matrix.empty(open, DType.FLOAT8_E5M2, size[0], size[1], 100);
                Tensor dbias = open.unwritten(dtype, size[1]);
                Cast.quantizeDbiasDact(
                        activation, open.tensor(dtype, dy), open.tensor(dtype, x), q, dbias, open.stream());
                assertQuantized(dx, q);
                double magnitude = Math.sqrt(size[0]);
                open.assertClose("dbias", columnSums(dx), open.read(dbias), magnitude, Tolerances.rounded(dtype));
            }
        }
    }

    /** The largest magnitude beside results of 16 or 32 bits, whose bits are those without it. */
    @ParameterizedTest
    @EnumSource
    void amaxOfActivations(Activation activation) {
        for (DType dtype : INPUTS) {
            for (int[] size : new int[][] {{1, 1}, {3, 5}, {64, 96}}) {
                int columns = Math.toIntExact(activation.inputColumns(size[1]));
                RealMatrix x = open.normal(dtype, size[0], columns, 1);
                RealMatrix dy = open.normal(dtype, size[0], size[1], 1);
                ActivationWitness witness = new ActivationWitness(activation);
                Tensor input = open.tensor(dtype, x);
                Tensor gradient = open.tensor(dtype, dy);
                Tensor y = open.unwritten(dtype, size[0], size[1]);
                Tensor plain = open.scope().like(y);
                Tensor amax = open.tensor(DType.FLOAT32, new double[] {0}, 1);
                activation.forward(input, y, amax, open.stream());
                activation.forward(input, plain, open.stream());
                assertArrayEquals(open.read(plain), open.read(y));
                assertLargest(witness.forward(x), amax);
                Tensor dx = open.unwritten(dtype, size[0], columns);
                Tensor plainGradient = open.scope().like(dx);
                activation.backward(gradient, input, plainGradient, open.stream());
                amax.set(open.stream(), 0f);
                activation.backward(gradient, input, dx, amax, open.stream());
                assertArrayEquals(open.read(plainGradient), open.read(dx));
                assertLargest(witness.backward(dy), amax);
                amax.set(open.stream(), 1e4f);
                activation.backward(gradient, input, dx, amax, open.stream());
                assertEquals(1e4f, open.read(amax)[0], "raised, not written");
            }
        }
    }

    private static void assertLargest(RealMatrix expected, Tensor amax) {
        double largest = 0;
        for (double entry : Comparison.entries(expected)) {
            largest = Math.max(largest, Math.abs(entry));
        }
        open.assertClose("amax", new double[] {largest}, amax, Tolerances.rounded(DType.FLOAT32));
    }

    /** Gradients of activations, rowwise and both copies: by the function of each, and by one kernel where gated. */
    @ParameterizedTest
    @EnumSource
    void dact(Activation activation) {
        for (DType dtype : INPUTS) {
            for (int[] size : new int[][] {{4, 2}, {3, 5}, {12, 60}, {64, 64}, {132, 98}}) {
                int columns = Math.toIntExact(activation.inputColumns(size[1]));
                RealMatrix x = open.normal(dtype, size[0], columns, 1);
                RealMatrix dy = open.normal(dtype, size[0], size[1], 1);
                ActivationWitness witness = new ActivationWitness(activation);
                witness.forward(x);
                RealMatrix dx = witness.backward(dy);
                Tensor gradient = open.tensor(dtype, dy);
                Tensor input = open.tensor(dtype, x);
                QuantizedTensor rows = Float8Matrix.emptyRowwise(open, DType.FLOAT8_E5M2, size[0], columns, 100);
                activation.backward(gradient, input, rows, open.stream());
                assertQuantized(dx, rows);
                if (size[0] % 4 != 0) {
                    continue;
                }
                QuantizedTensor both = Float8Matrix.empty(open, DType.FLOAT8_E5M2, size[0], columns, 100);
                activation.backward(gradient, input, both, open.stream());
                assertQuantized(dx, both);
                if (Transpose.fusesGradientOf(activation)) {
                    QuantizedTensor one = Float8Matrix.empty(open, DType.FLOAT8_E4M3, size[0], columns, 10);
                    Transpose.dactCastTranspose(activation, gradient, input, one, open.stream());
                    assertQuantized(dx, one);
                }
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void activations(Activation activation) {
        for (DType dtype : INPUTS) {
            for (DType output : List.of(DType.FLOAT8_E4M3, DType.FLOAT8_E5M2)) {
                for (int[] size : new int[][] {{3, 5}, {16, 60}, {64, 64}, {17, 129}}) {
                    int columns = Math.toIntExact(activation.inputColumns(size[1]));
                    RealMatrix x = open.normal(dtype, size[0], columns, 1);
                    RealMatrix y = new ActivationWitness(activation).forward(x);
                    Tensor input = open.tensor(dtype, x);
                    QuantizedTensor one = Float8Matrix.emptyRowwise(open, output, size[0], size[1], 10);
                    activation.forward(input, one, open.stream());
                    assertQuantized(y, one);
                    if (activation.isGated() || (size[0] % 8 == 0 && size[1] % 4 == 0)) {
                        QuantizedTensor both = Float8Matrix.empty(open, output, size[0], size[1], 10);
                        activation.forward(input, both, open.stream());
                        assertQuantized(y, both);
                    }
                }
            }
        }
    }

    /** A norm of x of {@code dtype}, to rowwise data or to both copies. */
    record Norm(NormConfig.Kind kind, Gamma gamma, DType dtype, int tokens, int size, boolean both) {}

    static List<Norm> norms() {
        List<Norm> norms = new ArrayList<>();
        for (NormConfig.Kind kind : NormConfig.Kind.values()) {
            for (Gamma gamma : Gamma.values()) {
                for (DType dtype : INPUTS) {
                    for (int[] size : new int[][] {{1, 64}, {17, 65}, {64, 320}, {33, 768}, {128, 1024}}) {
                        norms.add(new Norm(kind, gamma, dtype, size[0], size[1], false));
                        norms.add(new Norm(kind, gamma, dtype, size[0], size[1], true));
                    }
                }
            }
        }
        return norms;
    }

    @ParameterizedTest
    @MethodSource("norms")
    void norm(Norm c) {
        RealMatrix x = open.normal(c.dtype, c.tokens, c.size, 1);
        double[] gamma = open.normal(c.dtype, c.size, 1);
        double[] beta = open.normal(c.dtype, c.size, 0.2);
        RealMatrix factor = MatrixUtils.createRowRealMatrix(gamma);
        Weights weights = new Weights();
        weights.put("weight", c.gamma == Gamma.PLAIN ? factor : factor.scalarAdd(1));
        weights.put("bias", MatrixUtils.createRowRealMatrix(beta));
        NormWitness witness = new NormWitness(new NormConfig(c.kind, c.size, EPSILON), weights, "");
        RealMatrix expected = witness.forward(x);
        QuantizedTensor z = c.both
                ? Float8Matrix.empty(open, DType.FLOAT8_E4M3, c.tokens, c.size, 20)
                : Float8Matrix.emptyRowwise(open, DType.FLOAT8_E4M3, c.tokens, c.size, 20);
        Tensor input = open.tensor(c.dtype, x);
        Tensor factors = open.tensor(c.dtype, gamma, c.size);
        Tensor rsigma = open.unwritten(DType.FLOAT32, c.tokens);
        if (c.kind == NormConfig.Kind.LAYER_NORM) {
            Tensor mu = open.unwritten(DType.FLOAT32, c.tokens);
            Tensor added = open.tensor(c.dtype, beta, c.size);
            new Normalization(EPSILON, c.gamma)
                    .gamma(factors)
                    .beta(added)
                    .layernormFwd(input, z, mu, rsigma, open.stream());
            open.assertClose("mu", witness.mean(), open.read(mu), 1, Tolerances.rounded(DType.FLOAT32));
        } else {
            new Normalization(EPSILON, c.gamma).gamma(factors).rmsnormFwd(input, z, rsigma, open.stream());
        }
        open.assertClose("rsigma", witness.inverseDeviation(), rsigma, Tolerances.rounded(DType.FLOAT32));
        assertQuantized(expected, z);
    }

    @Test
    void withoutElements() {
        QuantizedTensor none = Float8Matrix.empty(open, DType.FLOAT8_E4M3, 0, 64, 1);
        Tensor x = open.scope().tensor(DType.BFLOAT16, 0, 64);
        Tensor vector = open.unwritten(DType.BFLOAT16, 64);
        Tensor empty = open.scope().tensor(DType.FLOAT32, 0);
        Cast.quantizeDbias(x, none, vector, open.stream());
        assertArrayEquals(new float[64], open.read(vector), "a sum over nothing");
        Cast.quantizeDbiasDact(Activation.GELU, x, x, none, vector, open.stream());
        Activation.SILU.forward(x, none, open.stream());
        Activation.SILU.backward(x, x, none, open.stream());
        Tensor half = open.scope().tensor(DType.BFLOAT16, 0, 32);
        Transpose.dactCastTranspose(Activation.SWIGLU, half, x, none, open.stream());
        new Normalization(EPSILON, Gamma.PLAIN).gamma(vector).rmsnormFwd(x, none, empty, open.stream());
        open.stream().synchronize();
    }

    @Test
    void makesNoGarbage() {
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 32, 64, 1));
        Tensor vector = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 64, 1), 64);
        Tensor half = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 32, 32, 1));
        Tensor dbias = open.scope().like(vector);
        Tensor y = open.scope().like(x);
        Tensor amax = open.tensor(DType.FLOAT32, new double[] {0}, 1);
        Tensor rows = open.unwritten(DType.FLOAT32, 32);
        QuantizedTensor q = Float8Matrix.empty(open, DType.FLOAT8_E4M3, 32, 64, 2);
        Normalization norm = new Normalization(EPSILON, Gamma.PLAIN).gamma(vector);
        Allocation.assertNone("fused quantization", () -> {
            Cast.quantizeDbias(x, q, dbias, open.stream());
            Cast.quantizeDbiasDact(Activation.GELU, x, x, q, dbias, open.stream());
            Activation.GELU.forward(x, q, open.stream());
            Activation.GELU.backward(x, x, q, open.stream());
            Activation.GELU.forward(x, y, amax, open.stream());
            Activation.GELU.backward(x, x, y, amax, open.stream());
            Transpose.dactCastTranspose(Activation.SWIGLU, half, x, q, open.stream());
            norm.rmsnormFwd(x, q, rows, open.stream());
        });
    }
}
