package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.ProductPlan;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.Param;

/** What do the products of {@link GemmBenchmark} cost with a {@link ProductPlan}? */
@NullUnmarked
public class MatrixProductBenchmark extends OperationBenchmark {
    /** How cuBLASLt's kernel is chosen. */
    @Param({"FIRST", "MEASURED"})
    public ProductPlan plan;

    private Tensor x;
    private Tensor weight;
    private Tensor bias;
    private Tensor y;
    private Tensor preGelu;
    private Tensor dweight;
    private Tensor dbias;

    /** For JMH. */
    public MatrixProductBenchmark() {}

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
        product();
        near("product", sum, at(y, 0), tolerance);
        productBias();
        near("productBias", sum, at(y, 0), tolerance);
        productGelu();
        near("productGelu", gelu(sum), at(y, 0), tolerance);
        productBiasGelu();
        near("preGelu", sum, at(preGelu, 0), tolerance);
        near("productBiasGelu", gelu(at(preGelu, 0)), at(y, 0), tolerance);
        productGeluGradient();
        double before = at(preGelu, 0);
        double slope = (gelu(before + 1e-4) - gelu(before - 1e-4)) / 2e-4;
        near("productGeluGradient", sum * slope, at(y, 0), tolerance);
    }

    private void checkGradients() {
        double column = columnSum(y);
        productBiasGradient();
        near("productBiasGradient", column, at(dbias, 0), 1e-3);
        double once = at(dweight, 0);
        productAdding();
        near("productAdding", once * 2, at(dweight, 0), 1e-3);
    }

    private static double gelu(double x) {
        return x / 2 * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));
    }

    /** y = x W^T. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void product() {
        repeat(() ->
                MatrixProduct.of(Transpose.NO, Transpose.YES, plan).product(x, weight, y, Output.OVERWRITE, stream));
    }

    /** dw = dw + dy^T x, in FP32. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void productAdding() {
        repeat(() -> MatrixProduct.of(Transpose.YES, Transpose.NO, plan).product(y, x, dweight, Output.ADD, stream));
    }

    /** y = x W^T + b. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void productBias() {
        repeat(() -> MatrixProduct.of(Transpose.NO, Transpose.YES, plan).productBias(x, weight, bias, y, stream));
    }

    /** y = gelu(x W^T + b). */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void productBiasGelu() {
        repeat(() -> MatrixProduct.of(Transpose.NO, Transpose.YES, plan)
                .productBiasGelu(x, weight, bias, preGelu, y, stream));
    }

    /** y = gelu(x W^T). */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void productGelu() {
        repeat(() -> MatrixProduct.of(Transpose.NO, Transpose.YES, plan).productGelu(x, weight, preGelu, y, stream));
    }

    /** y = (x W^T) gelu'(p). */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void productGeluGradient() {
        repeat(() ->
                MatrixProduct.of(Transpose.NO, Transpose.YES, plan).productGeluGradient(x, weight, preGelu, y, stream));
    }

    /** dw = dy^T x and db, in FP32. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void productBiasGradient() {
        repeat(() ->
                MatrixProduct.of(Transpose.YES, Transpose.NO, plan).productBiasGradient(y, x, dbias, dweight, stream));
    }
}
