package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.jmh.states.LayerShape;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.QkvLayout;

/**
 * The tensors of an attention over packed sequences of one length, query, key and value in one buffer, and checks of its
 * answers.
 *
 * <p>Queries and keys are equal, so attention weights are, too: each output is the mean of its sequence's values, and with a gradient of 1
 * each value's gradient is 1.
 */
final class AttentionBuffers {
    private AttentionBuffers() {}

    static AttentionProblem problem(LayerShape shape, QkvLayout layout) {
        long headDim = shape.hidden() / shape.heads();
        return AttentionProblem.of(layout, (float) (1 / Math.sqrt(headDim)));
    }

    static AttentionTensors tensors(OperationBenchmark benchmark, AttentionProblem problem, DType dtype) {
        LayerShape shape = benchmark.shape;
        long width = shape.hidden();
        Tensor qkv = benchmark.empty(dtype, shape.tokens(), 3 * width);
        float[] eightTokens = new float[Math.toIntExact(8 * 3 * width)];
        for (int i = 0; i < eightTokens.length; i++) {
            eightTokens[i] = i % (3 * width) < 2 * width ? 0.5f : i / (3 * width);
        }
        benchmark.fill(qkv, eightTokens);
        Tensor dqkv = benchmark.zeros(dtype, shape.tokens(), 3 * width);
        Tensor ones = heads(benchmark, benchmark.filled(dtype, 1, shape.tokens(), width), 0);
        int[] offsets = new int[shape.batch() + 1];
        for (int i = 1; i < offsets.length; i++) {
            offsets[i] = i * shape.length();
        }
        Tensor lengths = benchmark.ints(offsets);
        AttentionTensors tensors = new AttentionTensors()
                .query(heads(benchmark, qkv, 0))
                .key(heads(benchmark, qkv, width))
                .value(heads(benchmark, qkv, 2 * width))
                .output(heads(benchmark, benchmark.zeros(dtype, shape.tokens(), width), 0))
                .queryLengths(lengths, shape.length())
                .keyLengths(lengths, shape.length())
                .outputGradient(ones)
                .queryGradient(heads(benchmark, dqkv, 0))
                .keyGradient(heads(benchmark, dqkv, width))
                .valueGradient(heads(benchmark, dqkv, 2 * width));
        return tensors.statistics(FusedAttention.statistics(problem, tensors, benchmark.scope));
    }

    private static Tensor heads(OperationBenchmark benchmark, Tensor matrix, long offset) {
        LayerShape shape = benchmark.shape;
        return benchmark.scope.view(matrix, offset, shape.tokens(), shape.heads(), shape.hidden() / shape.heads());
    }

    /** The mean of 0, 1, … 7. */
    static void checkForward(OperationBenchmark benchmark, AttentionTensors tensors) {
        OperationBenchmark.near("output", 3.5, benchmark.at(tensors.output(), 0), 0.02);
    }

    static void checkBackward(OperationBenchmark benchmark, AttentionTensors tensors) {
        OperationBenchmark.near("dv", 1, benchmark.at(tensors.valueGradient(), 0), 0.02);
    }
}
