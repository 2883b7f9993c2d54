package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.Activation;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.Param;

/** What does an activation cost between the products of a layer's MLP, in BFLOAT16? */
@NullUnmarked
public class ActivationBenchmark extends OperationBenchmark {
    /** Which one. */
    @Param({"GELU", "SWIGLU"})
    public Activation activation;

    private Tensor x;
    private Tensor y;
    private Tensor dy;
    private Tensor dx;

    /** For JMH. */
    public ActivationBenchmark() {}

    @Override
    void prepare() {
        long tokens = shape.tokens();
        long columns = activation.inputColumns(shape.inner());

        x = empty(DType.BFLOAT16, tokens, columns);
        fill(x, 3, 1);
        y = empty(DType.BFLOAT16, tokens, shape.inner());
        dy = normal(DType.BFLOAT16, tokens, shape.inner());
        dx = empty(DType.BFLOAT16, tokens, columns);
        forward();
        double expected = value(3) * (activation.isGated() ? gate(3) : 1);
        near(activation.forwardFunction(), expected, at(y, 0), 0.02);
        backward();
        double slope = (value(3 + 1e-4) - value(3 - 1e-4)) / 2e-4 * (activation.isGated() ? gate(3) : 1);
        near(activation.backwardFunction(), at(dy, 0) * slope, at(dx, 0), 0.02);
    }

    private double value(double a) {
        return switch (activation) {
            case GELU, GEGLU -> a / 2 * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (a + 0.044715 * a * a * a)));
            case GLU -> 1 / (1 + Math.exp(-a));
            case QGELU, QGEGLU, CLAMPED_SWIGLU -> a / (1 + Math.exp(-1.702 * a));
            case RELU, REGLU -> a;
            case SRELU, SREGLU -> a * a;
            case SILU, SWIGLU -> a / (1 + Math.exp(-a));
        };
    }

    private double gate(double b) {
        return activation == Activation.CLAMPED_SWIGLU ? b + 1 : b;
    }

    /** Forward. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void forward() {
        repeat(() -> activation.forward(x, y, stream));
    }

    /** Backward. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backward() {
        repeat(() -> activation.backward(dy, x, dx, stream));
    }
}
