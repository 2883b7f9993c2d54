package dev.chagres.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.layer.NormConfig;
import dev.chagres.ops.NormFunction.Kind;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.te.Output;
import dev.chagres.witness.Float8Witness;
import dev.chagres.witness.NormWitness;
import dev.chagres.witness.Rounding;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code ResidualNorm} against double precision, in every place where its results may lie. */
@Tag("L0")
@Tag("L1")
class ResidualNormConformance {
    private static final float EPSILON = 1e-5f;
    private static final NormFunction LAYER_NORM = new NormFunction(Kind.LAYER_NORM, Gamma.PLAIN, EPSILON);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int rows, int columns) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            int pack = 16 / dtype.byteSize();
            for (int[] size : new int[][] {{1, pack}, {17, 3 * pack}, {129, 64}, {5, 320}, {3, 1024 * pack}}) {
                cases.add(new Case(dtype, size[0], size[1]));
            }
        }
        return cases;
    }

    /** The operands of one call, its results, and what they should be. */
    private static final class Run {
        private final Case c;
        private final RealMatrix sum;
        private final Tensor x;
        private final Tensor residual;
        private final Tensor gamma;
        private final Tensor beta;
        private final Tensor mean;
        private final Tensor inverse;
        private final Weights weights = new Weights();
        private final NormWitness witness;

        Run(Case c) {
            this.c = c;
            RealMatrix left = open.normal(c.dtype, c.rows, c.columns, 1);
            RealMatrix right = open.normal(c.dtype, c.rows, c.columns, 1);
            // The kernel rounds the sum as it stores it, and takes the norm of what it stores.
            sum = Rounding.round(left.add(right), c.dtype);
            x = open.tensor(c.dtype, left);
            residual = open.tensor(c.dtype, right);
            RealMatrix factors =
                    Rounding.round(open.normal(c.dtype, 1, c.columns, 0.2).scalarAdd(1), c.dtype);
            double[] added = open.normal(c.dtype, c.columns, 0.2);
            gamma = open.tensor(c.dtype, factors.getRow(0), c.columns);
            beta = open.tensor(c.dtype, added, c.columns);
            weights.put("weight", factors);
            weights.put("bias", MatrixUtils.createRowRealMatrix(added));
            witness = new NormWitness(new NormConfig(NormConfig.Kind.LAYER_NORM, c.columns, EPSILON), weights, "");
            mean = open.unwritten(DType.FLOAT32, c.rows);
            inverse = open.unwritten(DType.FLOAT32, c.rows);
        }

        void assertForward(Tensor h) {
            Tensor y = open.unwritten(c.dtype, c.rows, c.columns);
            new ResidualNorm(LAYER_NORM)
                    .parameters(gamma, beta)
                    .statistics(mean, inverse)
                    .sum(null, residual, h)
                    .forward(x, y, null, open.stream());
            assertEquals(0, sum.subtract(matrix(open.read(h))).getNorm(), "h is the rounded sum");
            open.assertClose(
                    "y", Comparison.entries(witness.forward(sum)), open.read(y), 1, Tolerances.rounded(c.dtype));
            open.assertClose("mean", witness.mean(), open.read(mean), 1, Tolerances.rounded(DType.FLOAT32));
            open.assertClose("inverse", witness.inverseDeviation(), inverse, Tolerances.rounded(DType.FLOAT32));
        }

        RealMatrix matrix(float[] values) {
            RealMatrix matrix = new BlockRealMatrix(c.rows, c.columns);
            for (int i = 0; i < values.length; i++) {
                matrix.setEntry(i / c.columns, i % c.columns, values[i]);
            }
            return matrix;
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forward(Case c) {
        new Run(c).assertForward(open.unwritten(c.dtype, c.rows, c.columns));
        Run overX = new Run(c);
        overX.assertForward(overX.x);
        Run overResidual = new Run(c);
        overResidual.assertForward(overResidual.residual);
    }

    /** The sum is rounded once: x of 1, half a unit of bias and the same of the residual make a whole unit. */
    @Test
    void biasIsAddedBeforeTheSumIsRounded() {
        for (DType dtype : List.of(DType.BFLOAT16, DType.FLOAT16)) {
            double half = dtype == DType.BFLOAT16 ? 0x1p-8 : 0x1p-11;
            Tensor x = open.tensor(dtype, filled(16, 1), 2, 8);
            Tensor bias = open.tensor(dtype, filled(8, half), 8);
            Tensor residual = open.tensor(dtype, filled(16, half), 2, 8);
            Tensor gamma = open.tensor(dtype, filled(8, 1), 8);
            Tensor h = open.unwritten(dtype, 2, 8);
            Tensor y = open.unwritten(dtype, 2, 8);
            new ResidualNorm(LAYER_NORM)
                    .parameters(gamma, gamma)
                    .statistics(open.unwritten(DType.FLOAT32, 2), open.unwritten(DType.FLOAT32, 2))
                    .sum(bias, residual, h)
                    .forward(x, y, null, open.stream());
            float[] sums = new float[16];
            Arrays.fill(sums, (float) (1 + 2 * half));
            assertArrayEquals(sums, open.read(h));
        }
    }

    private static double[] filled(int count, double value) {
        double[] values = new double[count];
        Arrays.fill(values, value);
        return values;
    }

    /** Where dh goes. */
    enum Place {
        OWN,
        DRESIDUAL,
        DY,
        H
    }

    @ParameterizedTest
    @EnumSource
    void backward(Place place) {
        for (Case c : cases()) {
            backward(c, place);
        }
    }

    private static void backward(Case c, Place place) {
        Run run = new Run(c);
        Tensor h = open.unwritten(c.dtype, c.rows, c.columns);
        run.assertForward(h);
        RealMatrix dy = open.normal(c.dtype, c.rows, c.columns, 1);
        RealMatrix dresidual = open.normal(c.dtype, c.rows, c.columns, 1);
        double[] before = open.normal(DType.FLOAT32, c.columns, 1);
        Tensor dyTensor = open.tensor(c.dtype, dy);
        Tensor dresidualTensor = open.tensor(c.dtype, dresidual);
        Tensor dh = switch (place) {
            case OWN -> open.unwritten(c.dtype, c.rows, c.columns);
            case DRESIDUAL -> dresidualTensor;
            case DY -> dyTensor;
            case H -> h;
        };
        Output output = place == Place.DRESIDUAL ? Output.ADD : Output.OVERWRITE;
        Tensor dgamma = output == Output.ADD
                ? open.tensor(DType.FLOAT32, before, c.columns)
                : open.unwritten(DType.FLOAT32, c.columns);
        Tensor dbeta = output == Output.ADD
                ? open.tensor(DType.FLOAT32, before, c.columns)
                : open.unwritten(DType.FLOAT32, c.columns);
        new ResidualNorm(LAYER_NORM)
                .parameters(run.gamma, null)
                .statistics(run.mean, run.inverse)
                .gradients(dgamma, dbeta, output)
                .backward(dyTensor, h, dresidualTensor, dh, open.stream());
        RealMatrix expected = run.witness.backward(dy).add(dresidual);
        open.assertClose("dh", Comparison.entries(expected), open.read(dh), 1, Tolerances.rounded(c.dtype));
        double magnitude = Math.sqrt(c.rows);
        assertSum("dgamma", run.weights.gradient("weight").getRow(0), before, dgamma, output, magnitude);
        assertSum("dbeta", run.weights.gradient("bias").getRow(0), before, dbeta, output, magnitude);
    }

    private static void assertSum(
            String what, double[] sums, double[] before, Tensor actual, Output output, double magnitude) {
        double[] expected = sums.clone();
        for (int i = 0; i < sums.length && output == Output.ADD; i++) {
            expected[i] += before[i];
        }
        open.assertClose(what, expected, open.read(actual), magnitude, Tolerances.weightGradient(DType.BFLOAT16));
    }

    /** A norm with or without sum, and FP8 beside it. */
    record Variant(NormConfig config, Sum sum, int rows) {
        enum Sum {
            NONE,
            RESIDUAL
        }
    }

    static List<Variant> variants() {
        List<Variant> variants = new ArrayList<>();
        for (NormConfig.Kind kind : NormConfig.Kind.values()) {
            for (Gamma gamma : Gamma.values()) {
                for (Variant.Sum sum : Variant.Sum.values()) {
                    for (int rows : new int[] {1, 16, 35}) {
                        variants.add(new Variant(new NormConfig(kind, 48, EPSILON, gamma), sum, rows));
                    }
                }
            }
        }
        return variants;
    }

    @ParameterizedTest
    @MethodSource("variants")
    void eachNormWithItsCasts(Variant v) {
        boolean centered = v.config.kind() == NormConfig.Kind.LAYER_NORM;
        boolean sums = v.sum == Variant.Sum.RESIDUAL;
        NormFunction norm =
                new NormFunction(centered ? Kind.LAYER_NORM : Kind.RMS_NORM, v.config.gamma(), v.config.epsilon());
        DType dtype = DType.BFLOAT16;
        RealMatrix left = open.normal(dtype, v.rows, 48, 1);
        RealMatrix right = open.normal(dtype, v.rows, 48, 1);
        RealMatrix h = sums ? Rounding.round(left.add(right), dtype) : left;
        Weights weights = new Weights();
        RealMatrix gamma = open.normal(dtype, 1, 48, 1);
        RealMatrix beta = open.normal(dtype, 1, 48, 1);
        weights.put("weight", gamma);
        weights.put("bias", beta);
        NormWitness witness = new NormWitness(v.config, weights, "");
        RealMatrix expected = witness.forward(h);
        Tensor hTensor = sums ? open.unwritten(dtype, v.rows, 48) : null;
        Tensor y = open.unwritten(dtype, v.rows, 48);
        Tensor mean = centered ? open.unwritten(DType.FLOAT32, v.rows) : null;
        Tensor inverse = open.unwritten(DType.FLOAT32, v.rows);
        Tensor factors = open.tensor(dtype, gamma.getRow(0), 48);
        int filled = (v.rows + 15) / 16 * 16;
        Tensor amax = open.tensor(DType.FLOAT32, new double[] {0}, 1);
        QuantizedTensor quantized = open.scope()
                .quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, filled, 48)
                .allocateRowwise(open.scope())
                .allocateColumnwise(open.scope())
                .scale(open.tensor(DType.FLOAT32, new double[] {32}, 1))
                .amax(amax);
        Tensor x = open.tensor(dtype, left);
        new ResidualNorm(norm)
                .parameters(factors, centered ? open.tensor(dtype, beta.getRow(0), 48) : null)
                .statistics(mean, inverse)
                .sum(null, sums ? open.tensor(dtype, right) : null, hTensor)
                .forward(x, y, quantized, open.stream());
        open.assertClose("y", Comparison.entries(expected), open.read(y), 1, Tolerances.rounded(dtype));
        double largest = 0;
        double[] rowwise = Float8Witness.values(quantized.rowwise().toBytes(open.stream()), DType.FLOAT8_E4M3);
        double[] columnwise = Float8Witness.values(quantized.columnwise().toBytes(open.stream()), DType.FLOAT8_E4M3);
        for (int r = 0; r < filled; r++) {
            for (int c = 0; c < 48; c++) {
                double wanted = r < v.rows ? Math.clamp(expected.getEntry(r, c) * 32, -448, 448) : 0;
                double unit = Math.scalb(1.0, Math.max(-9, Math.getExponent(wanted) - 3));
                assertEquals(wanted, columnwise[c * filled + r], unit / 2 + 1e-5 * (32 + Math.abs(wanted)));
                if (r < v.rows) {
                    assertEquals(columnwise[c * filled + r], rowwise[r * 48 + c]);
                    largest = Math.max(largest, Math.abs(expected.getEntry(r, c)));
                }
            }
        }
        assertEquals(largest, open.read(amax)[0], 1e-5 * largest);
        assertEquals(1f / 32, open.read(quantized.rowwiseScaleInverse())[0]);
        RealMatrix dy = open.normal(dtype, v.rows, 48, 1);
        Tensor dh = open.unwritten(dtype, v.rows, 48);
        Tensor dgamma = open.unwritten(DType.FLOAT32, 48);
        Tensor dbeta = centered ? open.unwritten(DType.FLOAT32, 48) : null;
        new ResidualNorm(norm)
                .parameters(factors, null)
                .statistics(mean, inverse)
                .gradients(dgamma, dbeta, Output.OVERWRITE)
                .backward(open.tensor(dtype, dy), sums ? hTensor : x, null, dh, open.stream());
        open.assertClose("dh", Comparison.entries(witness.backward(dy)), open.read(dh), 1, Tolerances.rounded(dtype));
        double magnitude = Math.sqrt(v.rows);
        assertSum("dgamma", weights.gradient("weight").getRow(0), new double[48], dgamma, Output.OVERWRITE, magnitude);
        if (dbeta != null) {
            assertSum("dbeta", weights.gradient("bias").getRow(0), new double[48], dbeta, Output.OVERWRITE, magnitude);
        }
    }

    /** What a scale follows from: the largest magnitude of y as it is stored, of columns that are no multiple of 16, too. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void amaxAlone(DType dtype) {
        for (int[] size : new int[][] {{1, 8}, {35, 24}, {64, 1024}}) {
            Tensor x = open.tensor(dtype, open.normal(dtype, size[0], size[1], 1));
            Tensor gamma = open.tensor(dtype, open.normal(dtype, size[1], 1), size[1]);
            Tensor beta = open.tensor(dtype, open.normal(dtype, size[1], 1), size[1]);
            Tensor alone = open.unwritten(dtype, size[0], size[1]);
            Tensor y = open.unwritten(dtype, size[0], size[1]);
            Tensor mean = open.unwritten(DType.FLOAT32, size[0]);
            Tensor inverse = open.unwritten(DType.FLOAT32, size[0]);
            Tensor amax = open.tensor(DType.FLOAT32, new double[] {0}, 1);
            QuantizedTensor place = open.scope()
                    .quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, size[0], size[1])
                    .amax(amax);
            new ResidualNorm(LAYER_NORM)
                    .parameters(gamma, beta)
                    .statistics(mean, inverse)
                    .forward(x, alone, null, open.stream());
            new ResidualNorm(LAYER_NORM)
                    .parameters(gamma, beta)
                    .statistics(mean, inverse)
                    .forward(x, y, place, open.stream());
            float largest = 0;
            for (float value : open.read(y)) {
                largest = Math.max(largest, Math.abs(value));
            }
            assertEquals(largest, open.read(amax)[0]);
            assertArrayEquals(open.read(alone), open.read(y), "the same bits as without");
            amax.set(open.stream(), 1e4f);
            new ResidualNorm(LAYER_NORM)
                    .parameters(gamma, beta)
                    .statistics(mean, inverse)
                    .forward(x, y, place, open.stream());
            assertEquals(1e4f, open.read(amax)[0], "raised, not written");
        }
    }

    @Test
    void withoutRows() {
        Tensor none = of(DType.FLOAT32, 0, 8);
        Tensor gamma = of(DType.FLOAT32, 8);
        Tensor mean = of(DType.FLOAT32, 0);
        Tensor inverse = of(DType.FLOAT32, 0);
        new ResidualNorm(LAYER_NORM)
                .parameters(gamma, of(DType.FLOAT32, 8))
                .statistics(mean, inverse)
                .sum(null, none, none)
                .forward(none, of(DType.FLOAT32, 0, 8), null, open.stream());
        Tensor dgamma = open.unwritten(DType.FLOAT32, 8);
        Tensor dbeta = open.tensor(DType.FLOAT32, new double[] {1, 2, 3, 4, 5, 6, 7, 8}, 8);
        new ResidualNorm(LAYER_NORM)
                .parameters(gamma, null)
                .statistics(mean, inverse)
                .gradients(dgamma, open.unwritten(DType.FLOAT32, 8), Output.OVERWRITE)
                .backward(none, none, none, none, open.stream());
        assertArrayEquals(new float[8], open.read(dgamma));
        new ResidualNorm(LAYER_NORM)
                .parameters(gamma, null)
                .statistics(mean, inverse)
                .gradients(dgamma, dbeta, Output.ADD)
                .backward(none, none, none, none, open.stream());
        assertArrayEquals(new float[] {1, 2, 3, 4, 5, 6, 7, 8}, open.read(dbeta));
    }

    @Test
    void rowsThatAreTaken() {
        assertEquals(true, ResidualNorm.takes(of(DType.FLOAT32, 3, 4)));
        assertEquals(false, ResidualNorm.takes(of(DType.BFLOAT16, 3, 4)));
        assertEquals(true, ResidualNorm.takes(of(DType.BFLOAT16, 3, 8192)));
        assertEquals(false, ResidualNorm.takes(of(DType.BFLOAT16, 3, 8200)));
        assertEquals(false, ResidualNorm.takes(of(DType.FLOAT32, 3, 0)));
        assertEquals(false, ResidualNorm.takes(of(DType.FLOAT32, 8)));
        assertEquals(false, ResidualNorm.takes(of(DType.INT32, 3, 4)));
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }
}
