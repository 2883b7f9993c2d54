package dev.chagres.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.MultiprocessorMargin;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.ops.OpsResidualNorm;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.Margins;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.internal.Inside;
import dev.chagres.layer.NormConfig;
import dev.chagres.ops.NormFunction.Kind;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.te.Output;
import dev.chagres.witness.NormWitness;
import dev.chagres.witness.Rounding;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** {@code ResidualNorm} with margins against double precision, at drawn sizes: what it leaves free changes no row's results. */
@Tag("L0")
@Tag("L1")
class ResidualNormMarginConformance {
    private static final float EPSILON = 1e-5f;
    private static final NormFunction LAYER_NORM = new NormFunction(Kind.LAYER_NORM, Gamma.PLAIN, EPSILON);
    private static final int CASES = 12;
    private static final int MOST_ROWS = 1500;
    private static final int MOST_PACKS = 200;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @AfterEach
    void leaveNothing() {
        open.device().multiprocessorMargin(MultiprocessorMargin.NONE);
    }

    /** What one call of each direction gave. */
    private record Results(float[] y, float[] inverse, float[] dh, float[] dgamma, float[] dbeta) {}

    /** Operands and witness of a drawn size. */
    private static final class Drawn {
        private final DType dtype;
        private final int rows;
        private final int columns;
        private final Tensor x;
        private final Tensor gamma;
        private final Tensor beta;
        private final Tensor dy;
        private final Weights weights = new Weights();
        private final double[] expected;
        private final double[] expectedInverse;
        private final double[] expectedGradient;

        Drawn(DType dtype, int rows, int columns) {
            this.dtype = dtype;
            this.rows = rows;
            this.columns = columns;
            RealMatrix input = open.normal(dtype, rows, columns, 1);
            RealMatrix factors =
                    Rounding.round(open.normal(dtype, 1, columns, 0.2).scalarAdd(1), dtype);
            RealMatrix summands = open.normal(dtype, 1, columns, 0.2);
            RealMatrix gradient = open.normal(dtype, rows, columns, 1);
            weights.put("weight", factors);
            weights.put("bias", summands);
            NormWitness witness =
                    new NormWitness(new NormConfig(NormConfig.Kind.LAYER_NORM, columns, EPSILON), weights, "");
            expected = Comparison.entries(witness.forward(input));
            expectedInverse = witness.inverseDeviation();
            expectedGradient = Comparison.entries(witness.backward(gradient));
            x = open.tensor(dtype, input);
            gamma = open.tensor(dtype, factors.getRow(0), columns);
            beta = open.tensor(dtype, summands.getRow(0), columns);
            dy = open.tensor(dtype, gradient);
        }

        Results run() {
            Tensor y = open.unwritten(dtype, rows, columns);
            Tensor mean = open.unwritten(DType.FLOAT32, rows);
            Tensor inverse = open.unwritten(DType.FLOAT32, rows);
            Tensor dh = open.unwritten(dtype, rows, columns);
            Tensor dgamma = open.unwritten(DType.FLOAT32, columns);
            Tensor dbeta = open.unwritten(DType.FLOAT32, columns);
            new ResidualNorm(LAYER_NORM)
                    .parameters(gamma, beta)
                    .statistics(mean, inverse)
                    .forward(x, y, null, open.stream());
            new ResidualNorm(LAYER_NORM)
                    .parameters(gamma, null)
                    .statistics(mean, inverse)
                    .gradients(dgamma, dbeta, Output.OVERWRITE)
                    .backward(dy, x, null, dh, open.stream());
            return new Results(open.read(y), open.read(inverse), open.read(dh), open.read(dgamma), open.read(dbeta));
        }

        void check(Results results) {
            open.assertClose("y", expected, results.y, 1, Tolerances.rounded(dtype));
            open.assertClose("inverse", expectedInverse, results.inverse, 1, Tolerances.rounded(DType.FLOAT32));
            open.assertClose("dh", expectedGradient, results.dh, 1, Tolerances.rounded(dtype));
            double size = Math.sqrt(rows);
            double[] dgamma = weights.gradient("weight").getRow(0);
            double[] dbeta = weights.gradient("bias").getRow(0);
            open.assertClose("dgamma", dgamma, results.dgamma, size, Tolerances.weightGradient(DType.BFLOAT16));
            open.assertClose("dbeta", dbeta, results.dbeta, size, Tolerances.weightGradient(DType.BFLOAT16));
        }
    }

    private static List<Drawn> drawn() {
        List<Drawn> cases = new ArrayList<>();
        DType[] dtypes = {DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16};
        for (int i = 0; i < CASES; i++) {
            DType dtype = dtypes[i % dtypes.length];
            int pack = 16 / dtype.byteSize();
            // Few of the long rows, many of the short ones.
            int packs = open.random().nextInt(1, MOST_PACKS);
            int rows = open.random().nextInt(1, MOST_ROWS * 2 / (1 + packs / 20));
            cases.add(new Drawn(dtype, rows, packs * pack));
        }
        return cases;
    }

    @Test
    void anyMargin() {
        for (Drawn one : drawn()) {
            Results whole = one.run();
            one.check(whole);
            for (int margin : Margins.of(open.device())) {
                open.device().multiprocessorMargin(MultiprocessorMargin.NONE.withNorms(margin));
                Results results = one.run();
                one.check(results);
                assertArrayEquals(whole.y, results.y, "y with a margin of " + margin);
                assertArrayEquals(whole.inverse, results.inverse);
                assertArrayEquals(whole.dh, results.dh, "dh with a margin of " + margin);
                if (margin == 0 || Provider.current() == Provider.REFERENCE) {
                    assertArrayEquals(whole.dgamma, results.dgamma, "dgamma with a margin of " + margin);
                    assertArrayEquals(whole.dbeta, results.dbeta, "dbeta with a margin of " + margin);
                }
            }
            leaveNothing();
        }
    }

    /** The number reaches the call. */
    @Test
    void callsAreForTheMultiprocessorsThatAreLeft() {
        Drawn one = new Drawn(DType.FLOAT32, 3, 8);
        int count = open.device().multiprocessorCount();
        for (int margin : Margins.of(open.device())) {
            open.device().multiprocessorMargin(MultiprocessorMargin.NONE.withNorms(margin));
            one.run();
            NormStruct struct = Inside.state(open.device()).get(NormStruct.ATTACHMENT);
            assertEquals(margin == 0 ? 0 : count - margin, OpsResidualNorm.multiprocessors(struct.segment));
        }
    }

    /** A margin that is set later leaves a graph as it is: dgamma, whose order of sums follows from the margin, keeps its bits. */
    @Test
    void aGraphKeepsItsMargin() {
        Drawn one = new Drawn(DType.BFLOAT16, 700, 320);
        Tensor mean = open.unwritten(DType.FLOAT32, 700);
        Tensor inverse = open.unwritten(DType.FLOAT32, 700);
        Tensor y = open.unwritten(DType.BFLOAT16, 700, 320);
        Tensor dh = open.unwritten(DType.BFLOAT16, 700, 320);
        Tensor dgamma = open.unwritten(DType.FLOAT32, 320);
        Tensor dbeta = open.unwritten(DType.FLOAT32, 320);
        int margin = Margins.of(open.device()).getLast();
        open.device().multiprocessorMargin(MultiprocessorMargin.NONE.withNorms(margin));
        Results wanted = one.run();
        try (Graph graph = open.stream().capture(() -> {
            new ResidualNorm(LAYER_NORM)
                    .parameters(one.gamma, one.beta)
                    .statistics(mean, inverse)
                    .forward(one.x, y, null, open.stream());
            new ResidualNorm(LAYER_NORM)
                    .parameters(one.gamma, null)
                    .statistics(mean, inverse)
                    .gradients(dgamma, dbeta, Output.OVERWRITE)
                    .backward(one.dy, one.x, null, dh, open.stream());
        })) {
            leaveNothing();
            graph.launch();
            assertArrayEquals(wanted.dgamma, open.read(dgamma));
            assertArrayEquals(wanted.dbeta, open.read(dbeta));
            assertArrayEquals(wanted.y, open.read(y));
            assertArrayEquals(wanted.dh, open.read(dh));
        }
    }
}
