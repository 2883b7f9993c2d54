package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.Dropout;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does Transformer Engine's dropout of a layer's tokens cost, in BFLOAT16? */
@NullUnmarked
public class DropoutBenchmark extends OperationBenchmark {
    private static final float PROBABILITY = 0.25f;

    private Tensor x;
    private Tensor y;
    private Tensor dx;
    private Tensor mask;
    private Tensor state;

    /** For JMH. */
    public DropoutBenchmark() {}

    @Override
    void prepare() {
        x = normal(DType.BFLOAT16, shape.tokens(), shape.hidden());
        y = empty(DType.BFLOAT16, shape.tokens(), shape.hidden());
        dx = empty(DType.BFLOAT16, shape.tokens(), shape.hidden());
        mask = empty(DType.BYTE, x.count() / 8);
        state = empty(DType.INT64, 2);
        state.set(stream, 5L, 8L);
        dropoutFwd();
        dropoutBwd();
        float[] before = read(x, 0, shape.hidden());
        float[] dropped = read(y, 0, shape.hidden());
        float[] gradient = read(dx, 0, shape.hidden());
        int first = 0;
        while (dropped[first] == 0) {
            first++;
        }
        near("dropoutFwd", before[first] / (1 - PROBABILITY), dropped[first], 0.01);
        near("dropoutBwd", dropped[first] / (1 - PROBABILITY), gradient[first], 0.01);
    }

    /** Forward. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void dropoutFwd() {
        repeat(() -> Dropout.dropoutFwd(x, y, mask, state, PROBABILITY, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void dropoutBwd() {
        repeat(() -> Dropout.dropoutBwd(y, mask, dx, PROBABILITY, stream));
    }
}
