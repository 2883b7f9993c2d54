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

/** Attention with a change of scores of one's own, a cap of 2 tanh(x / 2), as one graph of cuDNN's. */
final class Sample13OwnScores {
    private static final int TOKENS = 64;
    private static final int WIDTH = 32;

    private Sample13OwnScores() {}

    static void run() {
        GraphBuilder graph = OperationGraph.builder("capped attention");
        GraphTensor q = graph.tensor("q", DType.BFLOAT16, 1, 1, TOKENS, WIDTH);
        long[] turned = {1, 1, WIDTH, TOKENS};
        GraphTensor k =
                graph.tensor("k", DType.BFLOAT16, turned, new long[] {TOKENS * WIDTH, TOKENS * WIDTH, 1, WIDTH});
        GraphTensor v = graph.tensor("v", DType.BFLOAT16, 1, 1, TOKENS, WIDTH);
        GraphTensor two = graph.scalar("two", 4, 2);
        GraphTensor o = graph.attention("o", q, k)
                .scale(0.125f)
                .scores(x -> {
                    GraphTensor half = graph.pointwise("half", PointwiseMode.DIV, x, two);
                    GraphTensor tanh = graph.pointwise("tanh", PointwiseMode.TANH_FWD, half);
                    return graph.pointwise("capped", PointwiseMode.MUL, tanh, two);
                })
                .forward(v)
                .o();
        graph.output(o, DataType.BFLOAT16);
        try (Device device = Device.open();
                Scope scope = device.openScope();
                ExecutionPlan plan = graph.build().plan(device)) {
            Tensor result = scope.tensor(DType.BFLOAT16, TOKENS, WIDTH);
            plan.run(
                    device.stream(),
                    plan.variantPack()
                            .set(q, rows(scope, 1, 1))
                            .set(k, rows(scope, 8, 0))
                            .set(v, rows(scope, 1, 0))
                            .set(o, result));

            // Of 64 keys the first has the score 32, capped to 2, and the others 0.
            double expected = Math.exp(2) / (Math.exp(2) + TOKENS - 1);
            double first = Tour.near("o[0, 0]", expected, result.toFloats(device.stream())[0], 0.01);
            System.out.printf("13 ownscores: o[0, 0] = %.3f, without the cap it would be 1%n", first);
        }
    }

    /** The first token has one value in all its channels, the others another. */
    private static Tensor rows(Scope scope, float first, float others) {
        float[] values = new float[TOKENS * WIDTH];
        for (int i = 0; i < values.length; i++) {
            values[i] = i < WIDTH ? first : others;
        }
        Tensor tensor = scope.tensor(DType.BFLOAT16, TOKENS, WIDTH);
        tensor.set(scope.stream(), values);
        return tensor;
    }
}
