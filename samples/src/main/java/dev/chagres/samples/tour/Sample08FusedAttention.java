package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvLayout;
import java.util.Arrays;

/**
 * Calls fused attention without a layer, forward and backward, over packed sequences.
 *
 * <p>With equal keys all weights of a sequence of n tokens are 1 / n; with an output gradient of ones each value's gradient
 * is the sum of the weights that it got, n / n = 1.
 */
final class Sample08FusedAttention {
    private static final int HEADS = 2;
    private static final int HEAD_DIM = 64;
    /** At least the longest sequence; cuDNN makes a plan for each number, so that few are better. */
    private static final int LONGEST = 128;

    private Sample08FusedAttention() {}

    static void run() {
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Stream stream = device.stream();
            CuSeqlens lengths = CuSeqlens.ofLengths(scope, 5, 40, 19);
            Tensor zeros = heads(scope, stream, lengths.tokens(), 0);
            Tensor value = heads(scope, stream, lengths.tokens(), 3);
            Tensor output = scope.like(zeros);
            AttentionProblem problem = AttentionProblem.of(QkvLayout.THD_THD_THD, (float) (1 / Math.sqrt(HEAD_DIM)))
                    .withMask(MaskType.PADDING);
            AttentionTensors tensors = new AttentionTensors()
                    .query(zeros)
                    .key(zeros)
                    .value(value)
                    .output(output)
                    .queryLengths(lengths.offsets(), LONGEST)
                    .keyLengths(lengths.offsets(), LONGEST);
            tensors.statistics(FusedAttention.statistics(problem, tensors, scope));

            FusedAttention.forward(problem, tensors, stream);
            Tensor dvalue = scope.like(value);
            tensors.outputGradient(heads(scope, stream, lengths.tokens(), 1))
                    .queryGradient(scope.like(zeros))
                    .keyGradient(scope.like(zeros))
                    .valueGradient(dvalue);
            FusedAttention.backward(problem, tensors, stream);

            double first = Tour.near("output[0]", 3, output.toFloats(stream)[0], 2e-2);
            double gradient = Tour.near("dvalue[0]", 1, dvalue.toFloats(stream)[0], 2e-2);
            System.out.printf("8 fused attention: output %.3f, gradient of a value %.3f%n", first, gradient);
        }
    }

    private static Tensor heads(Scope scope, Stream stream, int tokens, float value) {
        float[] values = new float[tokens * HEADS * HEAD_DIM];
        Arrays.fill(values, value);
        Tensor tensor = scope.tensor(DType.BFLOAT16, tokens, HEADS, HEAD_DIM);
        tensor.set(stream, values);
        return tensor;
    }
}
