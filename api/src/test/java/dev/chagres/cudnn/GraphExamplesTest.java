package dev.chagres.cudnn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import java.util.Arrays;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The examples of docs/cudnn.md and of the Javadoc. */
@Tag("L0")
@Tag("L1")
class GraphExamplesTest {
    @Test
    void feedForward() {
        // @start region="graph"
        GraphBuilder builder = OperationGraph.builder("feed-forward");
        GraphTensor x = builder.tensor("x", DType.BFLOAT16, 1, 64, 32);
        GraphTensor w = builder.tensor("w", DType.BFLOAT16, 1, 32, 128);
        GraphTensor bias = builder.tensor("bias", DType.BFLOAT16, 1, 1, 128);
        GraphTensor product = builder.matmul("product", x, w);
        GraphTensor shifted = builder.pointwise("shifted", PointwiseMode.ADD, product, bias);
        GraphTensor y = builder.pointwise("y", PointwiseMode.GELU_FWD, shifted);
        builder.output(y, DataType.BFLOAT16);
        OperationGraph graph = builder.build();
        // @end
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Tensor input = filled(scope, 1, 64, 32);
            Tensor weight = filled(scope, 0.25f, 32, 128);
            Tensor added = filled(scope, 2, 1, 128);
            Tensor result = scope.tensor(DType.BFLOAT16, 64, 128);
            Stream stream = device.stream();
            // @start region="plan"
            try (ExecutionPlan plan = graph.plan(device, PlanOptions.DEFAULT.deterministic())) {
                VariantPack pack = plan.variantPack()
                        .set("x", input)
                        .set("w", weight)
                        .set("bias", added)
                        .set("y", result);
                plan.run(stream, pack);
            }
            // @end
            assertEquals(10f, result.toFloats(stream)[0]);
        }
    }

    /** Each stream captures the runs that are given to it, also one that is opened where another was closed. */
    @Test
    void runsGoToTheirStream() {
        GraphBuilder builder = OperationGraph.builder("sum");
        GraphTensor a = builder.tensor("a", DType.BFLOAT16, 1, 64, 32);
        GraphTensor w = builder.tensor("w", DType.BFLOAT16, 1, 32, 64);
        builder.output(builder.matmul("y", a, w), DataType.BFLOAT16);
        OperationGraph graph = builder.build();
        try (Device device = Device.open();
                Scope scope = device.openScope();
                ExecutionPlan plan = graph.plan(device)) {
            Tensor y = filled(scope, 0, 64, 64);
            VariantPack pack = plan.variantPack()
                    .set("a", filled(scope, 1, 64, 32))
                    .set("w", filled(scope, 1, 32, 64))
                    .set("y", y);
            plan.run(device.stream(), pack);
            for (int i = 0; i < 3; i++) {
                try (Stream stream = device.openStream()) {
                    plan.run(stream, pack); // grows the stream's workspace
                    stream.synchronize();
                    try (Graph captured = stream.capture(() -> plan.run(stream, pack))) {
                        y.zero(device.stream());
                        device.stream().synchronize();
                        assertTrue(captured.nodes() > 0, "nothing was captured");
                        captured.launch();
                        stream.synchronize();
                    }
                }
                assertEquals(32f, y.toFloats(device.stream())[0]);
                plan.run(device.stream(), pack);
            }
        }
    }

    private static Tensor filled(Scope scope, float value, long rows, long columns) {
        float[] values = new float[(int) (rows * columns)];
        Arrays.fill(values, value);
        Tensor tensor = scope.tensor(DType.BFLOAT16, rows, columns);
        tensor.set(scope.stream(), values);
        return tensor;
    }

    @Test
    void attentionWithAChangeOfScores() {
        // @start region="attention"
        GraphBuilder builder = OperationGraph.builder("capped attention");
        long[] dims = {2, 4, 64, 32};
        GraphTensor q = builder.tensor("q", DType.BFLOAT16, dims);
        GraphTensor kT = builder.tensor("k", DType.BFLOAT16, new long[] {2, 4, 32, 64}, new long[] {8192, 2048, 1, 32});
        GraphTensor v = builder.tensor("v", DType.BFLOAT16, dims);
        GraphTensor cap = builder.scalar("cap", 4, 30);
        SdpaForward attention = builder.attention("o", q, kT)
                .scale(0.125f)
                .causal(AttentionBuilder.Diagonal.TOP_LEFT)
                .scores(x -> {
                    GraphTensor share = builder.pointwise("share", PointwiseMode.DIV, x, cap);
                    GraphTensor tanh = builder.pointwise("tanh", PointwiseMode.TANH_FWD, share);
                    return builder.pointwise("capped", PointwiseMode.MUL, tanh, cap);
                })
                .forward(v);
        builder.output(attention.o(), DataType.BFLOAT16);
        OperationGraph graph = builder.build();
        // @end
        assertEquals(3, graph.inputs().size());
        assertEquals(1, graph.outputs().size());
    }

    @Test
    void packedSequences() {
        long tokens = 100;
        // @start region="packed"
        GraphBuilder builder = OperationGraph.builder("packed attention");
        GraphTensor offsets = builder.tensor("offsets", DType.INT32, 3, 1, 1, 1);
        GraphTensor lengths = builder.tensor("lengths", DType.INT32, 2, 1, 1, 1);
        long[] rows = {8192, 32, 128, 1};
        long[] dims = {2, 4, 64, 32};
        GraphTensor q = builder.packed("q", DType.BFLOAT16, dims, rows, offsets, tokens * 128);
        GraphTensor kT = builder.packed(
                "k", DType.BFLOAT16, new long[] {2, 4, 32, 64}, new long[] {8192, 32, 1, 128}, offsets, tokens * 128);
        GraphTensor v = builder.packed("v", DType.BFLOAT16, dims, rows, offsets, tokens * 128);
        SdpaForward attention =
                builder.attention("o", q, kT).lengths(lengths, lengths).forward(v);
        builder.packedOutput(attention.o(), DataType.BFLOAT16, rows, offsets, tokens * 128);
        OperationGraph graph = builder.build();
        // @end
        assertEquals(5, graph.inputs().size());
        assertEquals(12800, graph.outputs().getFirst().span());
        assertTrue(graph.toString().contains("q BFLOAT16[2, 4, 64, 32] strides [8192, 32, 128, 1] packed by offsets"));
    }
}
