package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do the products of a layer's first MLP matrix cost, in BFLOAT16, with and without an epilogue? */
@NullUnmarked
public class GemmBenchmark extends OperationBenchmark {
    private Tensor x;
    private Tensor weight;
    private Tensor bias;
    private Tensor y;
    private Tensor preGelu;
    private Tensor dweight;
    private Tensor dbias;

    /** For JMH. */
    public GemmBenchmark() {}

    @Override
    void prepare() {
        long tokens = shape.tokens();
        x = normal(DType.BFLOAT16, tokens, shape.hidden());
        weight = normal(DType.BFLOAT16, shape.inner(), shape.hidden());
        bias = zeros(DType.BFLOAT16, shape.inner());
        y = empty(DType.BFLOAT16, tokens, shape.inner());
        preGelu = empty(DType.BFLOAT16, tokens, shape.inner());
        dweight = empty(DType.FLOAT32, shape.inner(), shape.hidden());
        dbias = empty(DType.FLOAT32, shape.inner());
        checkForward();
        checkGradients();
    }

    private void checkForward() {
        double sum = dot(read(x, 0, shape.hidden()), read(weight, 0, shape.hidden()));
        double tolerance = 0.01 * Math.sqrt(shape.hidden());
        gemm();
        near("gemm", sum, at(y, 0), tolerance);
        gemmBias();
        near("gemmBias", sum, at(y, 0), tolerance);
        gemmGelu();
        near("gemmGelu", gelu(sum), at(y, 0), tolerance);
        gemmBiasGelu();
        near("preGelu", sum, at(preGelu, 0), tolerance);
        near("gemmBiasGelu", gelu(at(preGelu, 0)), at(y, 0), tolerance);
        gemmGeluGradient();
        double before = at(preGelu, 0);
        double slope = (gelu(before + 1e-4) - gelu(before - 1e-4)) / 2e-4;
        near("gemmGeluGradient", sum * slope, at(y, 0), tolerance);
    }

    private void checkGradients() {
        double column = columnSum(y);
        gemmBiasGradient();
        near("gemmBiasGradient", column, at(dbias, 0), 1e-3);
        double once = at(dweight, 0);
        gemmAdding();
        near("gemmAdding", once * 2, at(dweight, 0), 1e-3);
    }

    private static double gelu(double x) {
        return x / 2 * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));
    }

    /** y = x W^T. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void gemm() {
        repeat(() -> Gemm.gemm(x, Transpose.NO, weight, Transpose.YES, y, Output.OVERWRITE, stream));
    }

    /** dw = dw + dy^T x, in FP32. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void gemmAdding() {
        repeat(() -> Gemm.gemm(y, Transpose.YES, x, Transpose.NO, dweight, Output.ADD, stream));
    }

    /** y = x W^T + b. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void gemmBias() {
        repeat(() -> Gemm.gemmBias(x, Transpose.NO, weight, Transpose.YES, bias, y, stream));
    }

    /** y = gelu(x W^T + b). */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void gemmBiasGelu() {
        repeat(() -> Gemm.gemmBiasGelu(x, Transpose.NO, weight, Transpose.YES, bias, preGelu, y, stream));
    }

    /** y = gelu(x W^T). */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void gemmGelu() {
        repeat(() -> Gemm.gemmGelu(x, Transpose.NO, weight, Transpose.YES, preGelu, y, stream));
    }

    /** y = (x W^T) gelu'(p). */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void gemmGeluGradient() {
        repeat(() -> Gemm.gemmGeluGradient(x, Transpose.NO, weight, Transpose.YES, preGelu, y, stream));
    }

    /** dw = dy^T x and db, in FP32. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void gemmBiasGradient() {
        repeat(() -> Gemm.gemmBiasGradient(y, x, Transpose.NO, dbias, dweight, stream));
    }
}
