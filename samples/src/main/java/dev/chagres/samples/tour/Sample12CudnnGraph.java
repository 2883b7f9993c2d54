package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.cudnn.DataType;
import dev.chagres.cudnn.ExecutionPlan;
import dev.chagres.cudnn.GraphBuilder;
import dev.chagres.cudnn.GraphTensor;
import dev.chagres.cudnn.OperationGraph;
import dev.chagres.cudnn.PointwiseMode;
import dev.chagres.cudnn.VariantPack;
import java.util.Arrays;

/** A product with bias, GELU and a residual as one graph of cuDNN's: described once, planned for a device, run on tensors. */
final class Sample12CudnnGraph {
    private Sample12CudnnGraph() {}

    static void run() {
        GraphBuilder graph = OperationGraph.builder("linear");
        GraphTensor x = graph.tensor("x", DType.BFLOAT16, 1, 64, 32);
        GraphTensor w = graph.tensor("w", DType.BFLOAT16, 1, 32, 128);
        GraphTensor bias = graph.tensor("bias", DType.BFLOAT16, 1, 1, 128);
        GraphTensor sum = graph.pointwise("sum", PointwiseMode.ADD, graph.matmul("product", x, w), bias);
        GraphTensor active = graph.pointwise("active", PointwiseMode.GELU_FWD, sum);
        GraphTensor residual = graph.tensor("residual", DType.BFLOAT16, 1, 64, 128);
        GraphTensor y = graph.output(graph.pointwise("y", PointwiseMode.ADD, active, residual), DataType.BFLOAT16);
        try (Device device = Device.open();
                Scope scope = device.openScope();
                ExecutionPlan plan = graph.build().plan(device)) {
            Tensor result = scope.tensor(DType.BFLOAT16, 64, 128);
            VariantPack pack = plan.variantPack().set(y, result);
            pack.set(x, filled(scope, 0.5f, 64, 32));
            pack.set(w, filled(scope, 0.25f, 32, 128));
            pack.set(bias, filled(scope, -3, 1, 128));
            pack.set(residual, filled(scope, 2, 64, 128));
            plan.run(device.stream(), pack);

            // 32 products of 0.5 and 0.25 are 4, with the bias 1; GELU of 1 is 0.841, with the residual 2.841.
            double first = Tour.near("y[0, 0]", 2.841, result.toFloats(device.stream())[0], 0.01);
            System.out.printf(
                    "12 cudnngraph: y[0, 0] = %.2f%n%s%n",
                    first, plan.explain().indent(3).stripTrailing());
        }
    }

    private static Tensor filled(Scope scope, float value, long rows, long columns) {
        float[] values = new float[(int) (rows * columns)];
        Arrays.fill(values, value);
        Tensor tensor = scope.tensor(DType.BFLOAT16, rows, columns);
        tensor.set(scope.stream(), values);
        return tensor;
    }
}
