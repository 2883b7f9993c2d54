package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.ops.GatedGradient;
import dev.chagres.te.Activation;
import dev.chagres.te.Cast;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.RecipeUpdates;
import dev.chagres.te.Transpose;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.Param;

/** What is gained if an activation itself casts its output, or its gradient, to rowwise and columnwise data? */
@NullUnmarked
public class QuantizedActivationBenchmark extends OperationBenchmark {
    /** Which one. */
    @Param({"GELU", "SWIGLU"})
    public Activation activation;

    private Tensor x;
    private Tensor dy;
    private Tensor dx;
    private Tensor dbias;
    private QuantizedTensor output;
    private QuantizedTensor gradient;

    /** For JMH. */
    public QuantizedActivationBenchmark() {}

    @Override
    void prepare() {
        long columns = activation.inputColumns(shape.inner());
        x = normal(DType.BFLOAT16, shape.tokens(), columns);
        dy = normal(DType.BFLOAT16, shape.tokens(), shape.inner());
        dbias = empty(DType.BFLOAT16, columns);
        dx = empty(DType.BFLOAT16, shape.tokens(), columns);
        output = both(DType.FLOAT8_E4M3, shape.inner());
        gradient = both(DType.FLOAT8_E5M2, columns);
        Tensor y = empty(DType.BFLOAT16, shape.tokens(), shape.inner());
        activation.forward(x, y, stream);
        forward();
        float largest = at(output.amax(), 0);
        near("forward", amax(y, output), largest, 0.01);
        backwardAndCast();
        largest = at(gradient.amax(), 0);
        double amax = amax(dx, gradient);
        near("backwardAndCast", amax, largest, 0.01);
        gradient.amax().zero(stream);
        backward();
        near("backward", amax, at(gradient.amax(), 0), 0.01);
        gradient.amax().zero(stream);
        backwardRounded();
        near("backwardRounded", amax, at(gradient.amax(), 0), 0.01);
        double column = columnSum(dx);
        backwardDbias();
        near("backwardDbias", column, at(dbias, 0), 0.02);
    }

    private QuantizedTensor both(DType dtype, long columns) {
        Tensor scale = empty(DType.FLOAT32, 1);
        scale.set(stream, 16f);
        return scope.quantized(Scaling.TENSOR, dtype, shape.tokens(), columns)
                .allocateRowwise(scope)
                .allocateColumnwise(scope)
                .scale(scale)
                .amax(zeros(DType.FLOAT32, 1));
    }

    /** Overwrites the amax of {@code quantized}. {@link CastBenchmark} checks this operation against plain Java. */
    private double amax(Tensor tensor, QuantizedTensor quantized) {
        RecipeUpdates.computeAmax(tensor, quantized, QuantizationConfig.standard(), stream);
        return at(quantized.amax(), 0);
    }

    /** Forward to rowwise and columnwise data. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void forward() {
        repeat(() -> activation.forward(x, output, stream));
    }

    /** The gradient to rowwise and columnwise data, by as few kernels as possible. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backward() {
        if (Transpose.fusesGradientOf(activation)) {
            repeat(() -> Transpose.dactCastTranspose(activation, dy, x, gradient, stream));
        } else {
            repeat(() -> activation.backward(dy, x, gradient, stream));
        }
    }

    /** The gradient, rounded before it is cast to rowwise and columnwise data, by as few kernels as possible. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backwardRounded() {
        if (activation.isGated()) {
            repeat(() -> GatedGradient.cast(activation, dy, x, gradient, stream));
        } else {
            backwardAndCast();
        }
    }

    /** The gradient to rowwise and columnwise data and the sums of its columns, by as few kernels as possible. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backwardDbias() {
        if (Cast.fusesGradientOf(activation)) {
            repeat(() -> Cast.quantizeDbiasDact(activation, dy, x, gradient, dbias, stream));
        } else {
            repeat(() -> {
                activation.backward(dy, x, dx, stream);
                Cast.quantizeDbias(dx, gradient, dbias, stream);
            });
        }
    }

    /** The gradient in BFLOAT16, and its cast to rowwise and columnwise data. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backwardAndCast() {
        repeat(() -> {
            activation.backward(dy, x, dx, stream);
            Cast.quantize(dx, gradient, stream);
        });
    }
}
