package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.MultiprocessorMargin;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.TransformerEngineException;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.Margins;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.OwnThread;
import dev.chagres.conformance.Tolerances;
import dev.chagres.internal.Inside;
import dev.chagres.layer.NormConfig;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.witness.NormWitness;
import dev.chagres.witness.Rounding;
import dev.chagres.witness.Weights;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * Transformer Engine's norms with margins against double precision, at drawn sizes. Each margin has a thread of its own, as
 * Transformer Engine needs it.
 */
@Tag("L0")
@Tag("L1")
class NormalizationMarginConformance {
    private static final float EPSILON = 1e-5f;
    private static final int CASES = 6;
    private static final int MOST_ROWS = 1200;
    private static final int MOST_COLUMNS = 1100;

    @Test
    void anyMargin() {
        List<Integer> margins;
        try (Device device = Device.open()) {
            margins = Margins.of(device);
        }
        for (int margin : margins) {
            OwnThread.run("margin " + margin, () -> new Run().norms(margin));
        }
    }

    /** Transformer Engine would keep a grid without blocks for this shape, as long as the thread lives. */
    @Test
    void theGuardRefusesNoMultiprocessors() {
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Tensor x = scope.tensor(DType.FLOAT32, 2, 8);
            Tensor vector = scope.tensor(DType.FLOAT32, 8);
            Tensor row = scope.tensor(DType.FLOAT32, 2);
            MemorySegment none = Inside.workspace(device.stream()).asking();
            for (int count : new int[] {0, -1, Integer.MIN_VALUE}) {
                TransformerEngineException refused = assertThrows(
                        TransformerEngineException.class,
                        () -> Status.te(
                                TransformerEngine.te_rmsnorm_bwd(
                                        x.handle(),
                                        x.handle(),
                                        row.handle(),
                                        vector.handle(),
                                        x.handle(),
                                        vector.handle(),
                                        none,
                                        count,
                                        false,
                                        device.stream().handle()),
                                "te_rmsnorm_bwd"));
                String expected = "te_rmsnorm_bwd: argument multiprocessorCount: expected at least 1, got " + count;
                assertTrue(refused.getMessage().contains(expected), refused.getMessage());
            }
        }
    }

    /** A device of the calling thread. */
    private static final class Run {
        private final OpenDevice open = new OpenDevice();

        void norms(int margin) {
            open.open();
            try {
                Device device = open.device();
                device.multiprocessorMargin(MultiprocessorMargin.NONE.withNorms(margin));
                assertEquals(
                        device.multiprocessorCount() - margin,
                        Inside.state(device).multiprocessors().ofTransformerEngineNorms());
                for (int i = 0; i < CASES; i++) {
                    open.begin(OpenDevice.seed() + i);
                    drawn(i % 2 == 0 ? DType.BFLOAT16 : DType.FLOAT32);
                    open.end();
                }
            } finally {
                open.close();
            }
        }

        private void drawn(DType dtype) {
            int columns = open.random().nextInt(1, MOST_COLUMNS);
            int rows = open.random().nextInt(1, MOST_ROWS);
            RealMatrix input = open.normal(dtype, rows, columns, 1);
            RealMatrix dz = open.normal(dtype, rows, columns, 1);
            for (NormConfig.Kind kind : NormConfig.Kind.values()) {
                norm(kind, dtype, input, dz);
            }
        }

        private void norm(NormConfig.Kind kind, DType dtype, RealMatrix input, RealMatrix dz) {
            int rows = input.getRowDimension();
            int columns = input.getColumnDimension();
            Weights weights = new Weights();
            RealMatrix factors =
                    Rounding.round(open.normal(dtype, 1, columns, 0.2).scalarAdd(1), dtype);
            RealMatrix summands = open.normal(dtype, 1, columns, 0.2);
            weights.put("weight", factors);
            weights.put("bias", summands);
            NormWitness witness = new NormWitness(new NormConfig(kind, columns, EPSILON), weights, "");
            RealMatrix wanted = witness.forward(input);
            Tensor x = open.tensor(dtype, input);
            Tensor gamma = open.tensor(dtype, factors.getRow(0), columns);
            Tensor beta = open.tensor(dtype, summands.getRow(0), columns);
            Tensor gradient = open.tensor(dtype, dz);
            Tensor z = open.unwritten(dtype, rows, columns);
            Tensor mu = open.unwritten(DType.FLOAT32, rows);
            Tensor rsigma = open.unwritten(DType.FLOAT32, rows);
            Tensor dx = open.unwritten(dtype, rows, columns);
            Tensor dgamma = open.unwritten(dtype, columns);
            Tensor dbeta = open.unwritten(dtype, columns);
            boolean centered = kind == NormConfig.Kind.LAYER_NORM;
            if (centered) {
                new Normalization(EPSILON, Gamma.PLAIN)
                        .gamma(gamma)
                        .beta(beta)
                        .layernormFwd(x, z, mu, rsigma, open.stream());
                new Normalization(0, Gamma.PLAIN)
                        .gamma(gamma)
                        .layernormBwd(gradient, x, mu, rsigma, dx, dgamma, dbeta, open.stream());
            } else {
                new Normalization(EPSILON, Gamma.PLAIN).gamma(gamma).rmsnormFwd(x, z, rsigma, open.stream());
                new Normalization(0, Gamma.PLAIN)
                        .gamma(gamma)
                        .rmsnormBwd(gradient, x, rsigma, dx, dgamma, open.stream());
            }
            open.assertClose("z", Comparison.entries(wanted), open.read(z), 1, Tolerances.rounded(dtype));
            double[] expected = Comparison.entries(witness.backward(dz));
            double largest = Arrays.stream(witness.inverseDeviation()).max().orElse(1);
            open.assertClose("dx", expected, open.read(dx), Math.max(1, largest), Tolerances.rounded(dtype));
            double size = Math.sqrt(rows);
            double[] ofGamma = weights.gradient("weight").getRow(0);
            open.assertClose("dgamma", ofGamma, open.read(dgamma), size, Tolerances.rounded(dtype));
            if (centered) {
                double[] ofBeta = weights.gradient("bias").getRow(0);
                open.assertClose("dbeta", ofBeta, open.read(dbeta), size, Tolerances.rounded(dtype));
            }
        }
    }
}
