package dev.chagres.cudnn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import java.util.List;
import org.apache.commons.math3.special.Erf;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** A product with bias, GELU and residual in one graph, against double precision; how it is planned, run, captured and closed. */
@Tag("L0")
@Tag("L1")
class FusedProductConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int batch, int m, int k, int n) {}

    static List<Case> cases() {
        return List.of(
                new Case(DType.BFLOAT16, 1, 128, 64, 256),
                new Case(DType.FLOAT16, 2, 64, 96, 32),
                new Case(DType.BFLOAT16, 3, 8, 16, 8),
                new Case(DType.FLOAT16, 1, 256, 128, 128));
    }

    static OperationGraph graph(Case c) {
        GraphBuilder builder = OperationGraph.builder("feed-forward");
        GraphTensor x = builder.tensor("x", c.dtype, c.batch, c.m, c.k);
        GraphTensor w = builder.tensor("w", c.dtype, 1, c.k, c.n);
        GraphTensor bias = builder.tensor("bias", c.dtype, 1, 1, c.n);
        GraphTensor residual = builder.tensor("residual", c.dtype, c.batch, c.m, c.n);
        GraphTensor product = builder.matmul("product", x, w);
        GraphTensor shifted = builder.pointwise("shifted", PointwiseMode.ADD, product, bias);
        GraphTensor active = builder.pointwise("active", PointwiseMode.GELU_FWD, shifted);
        GraphTensor y = builder.pointwise("y", PointwiseMode.ADD, active, residual);
        builder.output(y, DataType.of(c.dtype));
        return builder.build();
    }

    private static double[] expected(Case c, double[] x, double[] w, double[] bias, double[] residual) {
        double[] y = new double[c.batch * c.m * c.n];
        for (int row = 0; row < c.batch * c.m; row++) {
            for (int j = 0; j < c.n; j++) {
                double sum = bias[j];
                for (int i = 0; i < c.k; i++) {
                    sum += x[row * c.k + i] * w[i * c.n + j];
                }
                y[row * c.n + j] = 0.5 * sum * (1 + Erf.erf(sum / Math.sqrt(2))) + residual[row * c.n + j];
            }
        }
        return y;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void againstDoublePrecision(Case c) {
        double[] x = open.normal(c.dtype, c.batch * c.m * c.k, 1);
        double[] w = open.normal(c.dtype, c.k * c.n, 1 / Math.sqrt(c.k));
        double[] bias = open.normal(c.dtype, c.n, 1);
        double[] residual = open.normal(c.dtype, c.batch * c.m * c.n, 1);
        Tensor y = open.unwritten(c.dtype, c.batch, c.m, c.n);
        try (ExecutionPlan plan = graph(c).plan(open.device())) {
            VariantPack pack = plan.variantPack()
                    .set("x", open.tensor(c.dtype, x, c.batch, c.m, c.k))
                    .set("w", open.tensor(c.dtype, w, c.k, c.n))
                    .set("bias", open.tensor(c.dtype, bias, c.n))
                    .set("residual", open.tensor(c.dtype, residual, c.batch, c.m, c.n))
                    .set("y", y);
            plan.run(open.stream(), pack);
        }
        open.assertClose("y", expected(c, x, w, bias, residual), open.read(y), 0.1, Tolerances.rounded(c.dtype));
    }

    private static VariantPack filled(ExecutionPlan plan, Case c) {
        return plan.variantPack()
                .set("x", open.tensor(c.dtype, open.normal(c.dtype, c.batch * c.m * c.k, 1), c.batch, c.m, c.k))
                .set("w", open.tensor(c.dtype, open.normal(c.dtype, c.k * c.n, 0.1), c.k, c.n))
                .set("bias", open.tensor(c.dtype, open.normal(c.dtype, c.n, 1), c.n))
                .set("residual", open.tensor(c.dtype, open.normal(c.dtype, c.batch * c.m * c.n, 1), c.batch, c.m, c.n));
    }

    @Test
    void runsOnAWorkspaceOfTheCallerWithoutGarbage() {
        Case c = cases().getFirst();
        try (ExecutionPlan plan = graph(c).plan(open.device(), PlanOptions.DEFAULT.deterministic())) {
            Tensor y = open.scope().tensor(c.dtype, c.batch, c.m, c.n);
            Tensor workspace = open.scope().tensor(DType.BYTE, plan.workspaceBytes());
            VariantPack pack = filled(plan, c).set("y", y);
            plan.run(open.stream(), pack, workspace);
            float[] first = open.read(y);
            y.zero(open.stream());
            plan.run(open.stream(), pack);
            assertArrayEquals(first, open.read(y));
            Allocation.assertNone("run", () -> plan.run(open.stream(), pack), 20);
        }
    }

    @Test
    void runsOnOtherTensorsAndOnThoseOfTheNextStepWithoutGarbage() {
        Case c = cases().get(2);
        try (ExecutionPlan plan = graph(c).plan(open.device())) {
            VariantPack pack = filled(plan, c);
            Tensor one = open.scope().tensor(c.dtype, c.batch, c.m, c.n);
            Tensor other = open.scope().tensor(c.dtype, c.batch, c.m, c.n);
            plan.run(open.stream(), pack.set("y", one));
            plan.run(open.stream(), pack.set("y", other));
            assertArrayEquals(open.read(one), open.read(other));
            Allocation.assertNone("set and run", () -> {
                plan.run(open.stream(), pack.set("y", one));
                plan.run(open.stream(), pack.set("y", other));
            });
        }
    }

    @Test
    void isCaptured() {
        Case c = cases().get(2);
        Tensor x = open.tensor(c.dtype, open.normal(c.dtype, c.batch * c.m * c.k, 1), c.batch, c.m, c.k);
        Tensor y = open.scope().tensor(c.dtype, c.batch, c.m, c.n);
        ExecutionPlan plan = graph(c).plan(open.device());
        VariantPack pack = filled(plan, c).set("x", x).set("y", y);
        plan.run(open.stream(), pack);
        float[] expected = open.read(y);
        try (Graph graph = open.stream().capture(() -> plan.run(open.stream(), pack))) {
            assertTrue(graph.nodes() > 0);
            y.zero(open.stream());
            // A graph that may run the plan keeps what it needs.
            plan.close();
            graph.launch();
            assertArrayEquals(expected, open.read(y));
            open.set(x, new double[c.batch * c.m * c.k]);
            graph.launch();
            assertEquals(c.batch * c.m * c.n, open.read(y).length);
        }
    }

    @Test
    void explains() {
        Case c = cases().get(2);
        try (ExecutionPlan plan = graph(c).plan(open.device())) {
            String text = plan.explain();
            assertTrue(
                    text.startsWith("graph feed-forward\n"
                            + "  product FLOAT[3, 8, 8] = matmul(x BFLOAT16[3, 8, 16], w BFLOAT16[1, 16, 8])\n"
                            + "  shifted FLOAT[3, 8, 8] = ADD(product FLOAT[3, 8, 8], bias BFLOAT16[1, 1, 8])\n"
                            + "  active FLOAT[3, 8, 8] = GELU_FWD(shifted FLOAT[3, 8, 8])\n"
                            + "  y BFLOAT16[3, 8, 8] = ADD(active FLOAT[3, 8, 8], residual BFLOAT16[3, 8, 8])\n"
                            + "engine "),
                    text);
            assertTrue(text.contains("\nknobs: "), text);
            assertTrue(text.contains("\nnumerical notes: "), text);
            assertTrue(text.contains("\nbehavior notes: "), text);
            assertTrue(text.contains("\nworkspace: " + plan.workspaceBytes() + " bytes"), text);
            assertEquals(1, plan.graph().outputs().size());
            assertEquals(4, plan.graph().inputs().size());
        }
    }
}
