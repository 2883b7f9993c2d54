package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.HadamardTransform;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does the random Hadamard transform of a layer's tokens cost, with their transpose? */
@NullUnmarked
public class HadamardTransformBenchmark extends OperationBenchmark {
    private static final int MASK = 0x5a3c;

    private Tensor x;
    private Tensor y;

    /** For JMH. */
    public HadamardTransformBenchmark() {}

    @Override
    void prepare() {
        x = normal(DType.BFLOAT16, shape.tokens(), shape.hidden());
        y = empty(DType.BFLOAT16, shape.hidden(), shape.tokens());
        hadamardTransform();
        float[] values = column(x);
        double first = 0;
        for (int i = 0; i < HadamardTransform.SIZE; i++) {
            double value = values[i] / 4.0;
            first += (MASK >> i & 1) == 0 ? value : -value;
        }
        near("hadamardTransform", first, at(y, 0), 0.02);
    }

    /** The transform along the tokens. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void hadamardTransform() {
        repeat(() -> HadamardTransform.hadamardTransform(x, y, MASK, stream));
    }
}
