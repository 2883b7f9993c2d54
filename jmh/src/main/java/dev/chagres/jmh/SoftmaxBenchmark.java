package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.te.Softmax;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does TE's causal softmax over rows of 256 scores cost, for attention from separate products? */
@NullUnmarked
public class SoftmaxBenchmark extends OperationBenchmark {
    private static final int KEYS = 256;

    private Tensor scores;
    private Tensor probabilities;
    private Tensor gradient;
    private Tensor dscores;

    /** For JMH. */
    public SoftmaxBenchmark() {}

    @Override
    void prepare() {
        Shape shape = Shape.of(8, KEYS, KEYS);
        scores = scope.tensor(DType.BFLOAT16, shape);
        scores.zero(stream);
        probabilities = scope.like(scores);
        gradient = scope.like(scores);
        dscores = scope.like(scores);
        forward();
        near("forward", 0.5, at(probabilities, KEYS), 0);
        near("what a query must not see", 0, at(probabilities, KEYS + 2), 0);
        float[] values = new float[Math.toIntExact(gradient.count())];
        values[KEYS] = 1;
        gradient.set(stream, values);
        backward();
        near("backward", 0.125, at(dscores, KEYS), 0);
    }

    /** Forward. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void forward() {
        repeat(() -> Softmax.UPPER_TRIANG_MASKED.forward(scores, null, probabilities, 0.5f, stream));
    }

    /** Backward. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backward() {
        repeat(() -> Softmax.UPPER_TRIANG_MASKED.backward(gradient, probabilities, dscores, 0.5f, stream));
    }
}
