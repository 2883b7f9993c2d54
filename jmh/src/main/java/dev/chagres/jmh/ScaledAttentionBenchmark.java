package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionScales;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.TensorScale;
import java.util.Arrays;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does cuDNN's attention cost in eight bits, over dense sequences inside one buffer, with heads of 128? */
@NullUnmarked
public class ScaledAttentionBenchmark extends OperationBenchmark {
    private static final int HEAD_DIM = 128;
    private static final int ONE_E4M3 = 0x38;
    private static final int ONE_E5M2 = 0x3c;

    private AttentionProblem problem;
    private AttentionTensors tensors;
    private int heads;
    private Tensor output;
    private Tensor dqkv;

    /** For JMH. */
    public ScaledAttentionBenchmark() {}

    /** Values of 1 give outputs of 1; gradients of 1 give as gradient of the first value the sum of its attention weights. */
    @Override
    void prepare() {
        heads = Math.toIntExact(Math.max(1, shape.hidden() / HEAD_DIM));
        long width = (long) heads * HEAD_DIM;
        problem = AttentionProblem.of(QkvLayout.BS3HD, (float) (1 / Math.sqrt(HEAD_DIM)))
                .withMask(MaskType.CAUSAL);
        Tensor qkv = filled(DType.FLOAT8_E4M3, 3 * width, ONE_E4M3);
        output = filled(DType.FLOAT8_E4M3, width, 0);
        dqkv = filled(DType.FLOAT8_E5M2, 3 * width, 0);
        int[] offsets = new int[shape.batch() + 1];
        Arrays.setAll(offsets, i -> i * shape.length());
        Tensor lengths = ints(offsets);
        tensors = new AttentionTensors()
                .query(view(qkv, 0))
                .key(view(qkv, width))
                .value(view(qkv, 2 * width))
                .output(view(output, 0))
                .queryLengths(lengths, shape.length())
                .keyLengths(lengths, shape.length())
                .outputGradient(view(filled(DType.FLOAT8_E5M2, width, ONE_E5M2), 0))
                .queryGradient(view(dqkv, 0))
                .keyGradient(view(dqkv, width))
                .valueGradient(view(dqkv, 2 * width))
                .scales(new AttentionScales(one(), one(), one(), one(), one(), one()));
        tensors.statistics(FusedAttention.statistics(problem, tensors, scope));
        forward();
        near("output", ONE_E4M3, output.toBytes(stream)[0], 1);
        backward();
        byte first = dqkv.toBytes(stream)[Math.toIntExact(2 * width)];
        if (first <= ONE_E5M2 || (first & 0x80) != 0) {
            throw new AssertionError("dv: expected more than 1, the sum of many weights, got the bits " + first);
        }
    }

    private Tensor filled(DType dtype, long columns, int bits) {
        Tensor tensor = empty(dtype, shape.tokens(), columns);
        byte[] bytes = new byte[Math.toIntExact(tensor.count())];
        Arrays.fill(bytes, (byte) bits);
        tensor.set(stream, bytes);
        return tensor;
    }

    private Tensor view(Tensor matrix, long offset) {
        return scope.view(matrix, offset, shape.batch(), shape.length(), heads, HEAD_DIM);
    }

    private TensorScale one() {
        Tensor scale = empty(DType.FLOAT32, 1);
        Tensor inverse = empty(DType.FLOAT32, 1);
        scale.set(stream, 1f);
        inverse.set(stream, 1f);
        return new TensorScale(scale, inverse, zeros(DType.FLOAT32, 1));
    }

    /** Output and log-sum-exp. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void forward() {
        repeat(() -> FusedAttention.forward(problem, tensors, stream));
    }

    /** The gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backward() {
        repeat(() -> FusedAttention.backward(problem, tensors, stream));
    }
}
