package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.Activation;
import dev.chagres.te.ClampedSwiglu;
import dev.chagres.te.GluLayout;
import dev.chagres.te.ScaledActivation;
import dev.chagres.te.SituGlu;
import java.util.function.DoubleBinaryOperator;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do activations with a factor per row cost between the products of a layer's MLP, in BFLOAT16? */
@NullUnmarked
public class ScaledActivationBenchmark extends OperationBenchmark {
    private static final SituGlu SITU = SituGlu.standard();
    private static final ClampedSwiglu CLAMPED = ClampedSwiglu.standard();
    private static final GluLayout LAYOUT = GluLayout.HALVES;

    private Tensor x;
    private Tensor plain;
    private Tensor factors;
    private Tensor y;
    private Tensor dy;
    private Tensor dx;
    private Tensor plainGradient;
    private Tensor factorGradients;

    /** For JMH. */
    public ScaledActivationBenchmark() {}

    @Override
    void prepare() {
        long tokens = shape.tokens();
        x = normal(DType.BFLOAT16, tokens, 2 * shape.inner());
        plain = normal(DType.BFLOAT16, tokens, shape.inner());
        factors = normal(DType.FLOAT32, tokens);
        y = empty(DType.BFLOAT16, tokens, shape.inner());
        dy = normal(DType.BFLOAT16, tokens, shape.inner());
        dx = empty(DType.BFLOAT16, tokens, 2 * shape.inner());
        plainGradient = empty(DType.BFLOAT16, tokens, shape.inner());
        factorGradients = empty(DType.FLOAT32, tokens);
        double beta1 = SITU.beta1();
        double beta2 = SITU.beta2();
        check("swiglu", (a, b) -> a * sigmoid(a) * b, this::scaledSwiglu, this::scaledDswiglu);
        check(
                "situglu",
                (a, b) -> beta1 * Math.tanh(a / beta1) * sigmoid(a) * beta2 * Math.tanh(b / beta2),
                this::scaledSituglu,
                this::scaledDsituglu);
        check(
                "clamped swiglu",
                (a, b) -> a * sigmoid(CLAMPED.alpha() * a) * (b + CLAMPED.linearOffset()),
                this::scaledClampedSwiglu,
                this::scaledClampedDswiglu);
        float factor = at(factors, 0);
        double a = Math.max(0, at(plain, 0));
        scaledSrelu();
        near("srelu", factor * a * a, at(y, 0), 0.02);
        scaledDsrelu();
        near("srelu's gradient", at(dy, 0) * factor * 2 * a, at(plainGradient, 0), 0.02);
    }

    /** The first number of the result and of the gradient of the input; the drawn numbers are within the clamp. */
    private void check(String what, DoubleBinaryOperator value, Runnable forward, Runnable backward) {
        double a = at(x, 0);
        double b = at(x, shape.inner());
        double factor = at(factors, 0);
        forward.run();
        near(what, factor * value.applyAsDouble(a, b), at(y, 0), 0.02);
        backward.run();
        double slope = (value.applyAsDouble(a + 1e-4, b) - value.applyAsDouble(a - 1e-4, b)) / 2e-4;
        near(what + "'s gradient", at(dy, 0) * factor * slope, at(dx, 0), 0.02);
    }

    private static double sigmoid(double a) {
        return 1 / (1 + Math.exp(-a));
    }

    /** SwiGLU. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scaledSwiglu() {
        repeat(() -> ScaledActivation.forward(Activation.SWIGLU, x, factors, y, LAYOUT, stream));
    }

    /** Gradients of SwiGLU and of the factors. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scaledDswiglu() {
        repeat(() -> ScaledActivation.backward(Activation.SWIGLU, dy, x, factors, dx, factorGradients, LAYOUT, stream));
    }

    /** SiTU-GLU. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scaledSituglu() {
        repeat(() -> ScaledActivation.forward(SITU, x, factors, y, LAYOUT, stream));
    }

    /** Gradients of SiTU-GLU and of the factors. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scaledDsituglu() {
        repeat(() -> ScaledActivation.backward(SITU, dy, x, factors, dx, factorGradients, LAYOUT, stream));
    }

    /** Clamped SwiGLU. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scaledClampedSwiglu() {
        repeat(() -> ScaledActivation.forward(CLAMPED, x, factors, y, LAYOUT, stream));
    }

    /** Gradients of the clamped SwiGLU and of the factors. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scaledClampedDswiglu() {
        repeat(() -> ScaledActivation.backward(CLAMPED, dy, x, factors, dx, factorGradients, LAYOUT, stream));
    }

    /** Squared ReLU. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scaledSrelu() {
        repeat(() -> ScaledActivation.forward(Activation.SRELU, plain, factors, y, LAYOUT, stream));
    }

    /** Gradients of the squared ReLU and of the factors. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scaledDsrelu() {
        repeat(() -> ScaledActivation.backward(
                Activation.SRELU, dy, plain, factors, plainGradient, factorGradients, LAYOUT, stream));
    }
}
