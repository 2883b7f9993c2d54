package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.Transpose;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does the transpose of a weight under a flag on the device cost, and what if the flag skips it? */
@NullUnmarked
public class ConditionalTransposeBenchmark extends OperationBenchmark {
    private Tensor weight;
    private Tensor transposed;
    private Tensor go;
    private Tensor stay;

    /** For JMH. */
    public ConditionalTransposeBenchmark() {}

    @Override
    void prepare() {
        weight = normal(DType.BFLOAT16, shape.inner(), shape.hidden());
        transposed = zeros(DType.BFLOAT16, shape.hidden(), shape.inner());
        go = zeros(DType.FLOAT32, 1);
        stay = empty(DType.FLOAT32, 1);
        stay.set(stream, 1f);
        skipped();
        near("skipped", 0, at(transposed, 1), 0);
        transposeWithNoop();
        near("transposeWithNoop", at(weight, shape.hidden()), at(transposed, 1), 0);
    }

    /** A transpose that runs. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void transposeWithNoop() {
        repeat(() -> Transpose.transposeWithNoop(weight, go, transposed, stream));
    }

    /** One that leaves everything as it is. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void skipped() {
        repeat(() -> Transpose.transposeWithNoop(weight, stay, transposed, stream));
    }
}
