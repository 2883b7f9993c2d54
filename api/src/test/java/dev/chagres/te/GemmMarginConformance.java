package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.MultiprocessorMargin;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.conformance.Margins;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.internal.Inside;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.ProductPlan;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Products with margins, Transformer Engine's and ours, against double precision at drawn sizes. */
@Tag("L0")
@Tag("L1")
class GemmMarginConformance {
    private static final int CASES = 6;
    private static final int MOST_STEPS = 24;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @AfterEach
    void leaveNothing() {
        open.device().multiprocessorMargin(MultiprocessorMargin.NONE);
    }

    private static void leave(int margin) {
        open.device().multiprocessorMargin(MultiprocessorMargin.NONE.withProducts(margin));
    }

    @ParameterizedTest
    @EnumSource(ProductPlan.class)
    void anyMargin(ProductPlan plan) {
        for (int i = 0; i < CASES; i++) {
            DType dtype = i % 2 == 0 ? DType.BFLOAT16 : DType.FLOAT32;
            int rows = size();
            int inner = size();
            int columns = size();
            RealMatrix left = open.normal(dtype, rows, inner, 1);
            RealMatrix right = open.normal(dtype, inner, columns, 1 / Math.sqrt(inner));
            double[] added = open.normal(dtype, columns, 1);
            Tensor a = open.tensor(dtype, left);
            Tensor b = open.tensor(dtype, right);
            Tensor bias = open.tensor(dtype, added, columns);
            RealMatrix product = left.multiply(right);
            RealMatrix sum = product.copy();
            for (int row = 0; row < rows; row++) {
                sum.setRowVector(row, sum.getRowVector(row).add(MatrixUtils.createRealVector(added)));
            }
            float[] whole = null;
            for (int margin : Margins.ofProducts(open.device())) {
                leave(margin);
                Tensor d = open.unwritten(dtype, rows, columns);
                Gemm.gemm(a, Transpose.NO, b, Transpose.NO, d, Output.OVERWRITE, open.stream());
                open.assertClose("d", product, d, Tolerances.product(dtype));
                whole = margin == 0 ? open.read(d) : whole;
                if (Provider.current() == Provider.REFERENCE) {
                    assertArrayEquals(whole, open.read(d), "the reference's bits with a margin of " + margin);
                }
                Gemm.gemmBias(a, Transpose.NO, b, Transpose.NO, bias, d, open.stream());
                open.assertClose("d with bias", sum, d, Tolerances.product(dtype));
                Tensor ours = open.unwritten(dtype, rows, columns);
                MatrixProduct.of(Transpose.NO, Transpose.NO, plan).product(a, b, ours, Output.OVERWRITE, open.stream());
                open.assertClose("ours", product, ours, Tolerances.product(dtype));
            }
        }
    }

    private static int size() {
        return 8 * open.random().nextInt(1, MOST_STEPS);
    }

    /** The number reaches Transformer Engine's configuration, and goes from it again. */
    @Test
    void configurationsAreForTheMultiprocessorsThatAreLeft() {
        int count = open.device().multiprocessorCount();
        Tensor vector = open.unwritten(DType.FLOAT32, 8);
        GemmConfigs configs = new GemmConfigs(Inside.state(open.device()));
        try {
            for (int margin : new int[] {0, count - 2, count / 2, 0}) {
                leave(margin);
                int expected = margin == 0 ? 0 : count - margin;
                for (Accumulator accumulator : Accumulator.values()) {
                    assertEquals(expected, multiprocessors(configs.current().plain(accumulator)));
                    assertEquals(expected, multiprocessors(configs.current().bias(vector, accumulator)));
                }
                assertEquals(expected, multiprocessors(configs.current().gelu(vector)));
                assertEquals(expected, multiprocessors(configs.current().biasGelu(vector, vector)));
                assertEquals(expected, multiprocessors(configs.current().geluGradient(vector)));
                assertEquals(expected, multiprocessors(configs.current().biasGradient(vector)));
            }
        } finally {
            configs.close();
        }
    }

    private static int multiprocessors(MemorySegment config) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment value = arena.allocate(ValueLayout.JAVA_INT);
            MemorySegment written = arena.allocate(ValueLayout.JAVA_LONG);
            Status.te(
                    TransformerEngine.te_get_matmul_config_attribute(
                            config, TransformerEngine.kNVTEMatmulConfigSMCount(), value, Integer.BYTES, written),
                    "te_get_matmul_config_attribute");
            return value.get(ValueLayout.JAVA_INT, 0);
        }
    }
}
