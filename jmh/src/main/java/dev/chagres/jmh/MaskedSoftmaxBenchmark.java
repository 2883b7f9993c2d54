package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.Softmax;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do TE's softmaxes over the scores of heads cost, in BFLOAT16: plain, masked by element and causal? */
@NullUnmarked
public class MaskedSoftmaxBenchmark extends OperationBenchmark {
    private static final int KEYS = 256;

    private Tensor scores;
    private Tensor mask;
    private Tensor probabilities;
    private Tensor gradient;
    private Tensor dscores;

    /** For JMH. */
    public MaskedSoftmaxBenchmark() {}

    @Override
    void prepare() {
        scores = zeros(DType.BFLOAT16, 2, 4, KEYS, KEYS);
        mask = empty(DType.BYTE, 2, 1, KEYS, KEYS);
        byte[] odd = new byte[Math.toIntExact(mask.count())];
        for (int i = 1; i < odd.length; i += 2) {
            odd[i] = 1;
        }
        mask.set(stream, odd);
        probabilities = scope.like(scores);
        gradient = scope.like(scores);
        dscores = scope.like(scores);
        float[] first = new float[Math.toIntExact(gradient.count())];
        for (int i = 0; i < first.length; i += KEYS) {
            first[i] = 1;
        }
        gradient.set(stream, first);
        // Equal scores: each of n keys has 1 / n, and a gradient of 1 at one of them gives it (1 / n)(1 - 1 / n) / 2.
        check("plain", KEYS, this::forward, this::backward);
        check("masked", KEYS / 2, this::maskedForward, this::maskedBackward);
        check("causal", KEYS, this::causalForward, this::causalBackward);
        near("what the first query must not see", 0, at(probabilities, 1), 0);
    }

    /** Looks at the last query, which sees {@code seen} keys. */
    private void check(String what, int seen, Runnable forward, Runnable backward) {
        int row = (KEYS - 1) * KEYS;
        forward.run();
        near(what + " forward", 1, seen * at(probabilities, row), 0.01);
        backward.run();
        double expected = 0.5 / seen * (1 - 1.0 / seen);
        near(what + " backward", 1, at(dscores, row) / expected, 0.01);
        double sum = 0;
        for (float value : read(dscores, row, KEYS)) {
            sum += value;
        }
        near(what + " backward, summed", 0, seen * sum, 0.01);
    }

    /** Plain. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void forward() {
        repeat(() -> Softmax.SCALED.forward(scores, null, probabilities, 0.5f, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backward() {
        repeat(() -> Softmax.SCALED.backward(gradient, probabilities, dscores, 0.5f, stream));
    }

    /** Masked by element. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void maskedForward() {
        repeat(() -> Softmax.MASKED.forward(scores, mask, probabilities, 0.5f, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void maskedBackward() {
        repeat(() -> Softmax.MASKED.backward(gradient, probabilities, dscores, 0.5f, stream));
    }

    /** Causal, the last query on the last key. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void causalForward() {
        repeat(() -> Softmax.ALIGNED_CAUSAL_MASKED.forward(scores, null, probabilities, 0.5f, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void causalBackward() {
        repeat(() -> Softmax.ALIGNED_CAUSAL_MASKED.backward(gradient, probabilities, dscores, 0.5f, stream));
    }
}
