package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.SituGlu;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does SiTU-GLU cost between the products of a layer's MLP, in BFLOAT16? */
@NullUnmarked
public class SituGluBenchmark extends OperationBenchmark {
    private final SituGlu situ = SituGlu.standard();
    private Tensor x;
    private Tensor y;
    private Tensor dy;
    private Tensor dx;

    /** For JMH. */
    public SituGluBenchmark() {}

    @Override
    void prepare() {
        long tokens = shape.tokens();
        x = normal(DType.BFLOAT16, tokens, 2 * shape.inner());
        y = empty(DType.BFLOAT16, tokens, shape.inner());
        dy = normal(DType.BFLOAT16, tokens, shape.inner());
        dx = empty(DType.BFLOAT16, tokens, 2 * shape.inner());
        forward();
        double a = at(x, 0);
        double b = at(x, shape.inner());
        near("forward", value(a, b), at(y, 0), 0.02);
        backward();
        double slope = (value(a + 1e-4, b) - value(a - 1e-4, b)) / 2e-4;
        near("backward", at(dy, 0) * slope, at(dx, 0), 0.02);
    }

    private double value(double a, double b) {
        return situ.beta1()
                * Math.tanh(a / situ.beta1())
                / (1 + Math.exp(-a))
                * situ.beta2()
                * Math.tanh(b / situ.beta2());
    }

    /** Forward. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void forward() {
        repeat(() -> situ.forward(x, y, stream));
    }

    /** Backward. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backward() {
        repeat(() -> situ.backward(dy, x, dx, stream));
    }
}
