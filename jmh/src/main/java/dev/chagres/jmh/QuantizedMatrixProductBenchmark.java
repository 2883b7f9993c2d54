package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.ProductPlan;
import dev.chagres.te.Cast;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.RecipeUpdates;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.Param;

/** What do the products of {@link QuantizedGemmBenchmark} cost with a {@link ProductPlan}? */
@NullUnmarked
public class QuantizedMatrixProductBenchmark extends OperationBenchmark {
    /** How the input is scaled; with block scaling the weight has BLOCK_2D. */
    @Param({"TENSOR", "BLOCK_1D"})
    public Scaling scaling;

    /** How cuBLASLt's kernel is chosen. */
    @Param({"FIRST", "MEASURED"})
    public ProductPlan plan;

    private QuantizedTensor x;
    private QuantizedTensor weight;
    private Tensor bias;
    private Tensor y;
    private Tensor dweight;
    private QuantizedTensor dy;

    /** For JMH. */
    public QuantizedMatrixProductBenchmark() {}

    @Override
    void prepare() {
        Tensor input = normal(DType.BFLOAT16, shape.tokens(), shape.hidden());
        Tensor matrix = normal(DType.BFLOAT16, shape.inner(), shape.hidden());
        x = quantized(input, scaling);
        weight = quantized(matrix, scaling == Scaling.TENSOR ? Scaling.TENSOR : Scaling.BLOCK_2D);
        Tensor outputGradient = normal(DType.BFLOAT16, shape.tokens(), shape.inner());
        dy = quantized(outputGradient, scaling);
        bias = zeros(DType.BFLOAT16, shape.inner());
        y = empty(DType.BFLOAT16, shape.tokens(), shape.inner());
        dweight = zeros(DType.FLOAT32, shape.inner(), shape.hidden());

        double sum = dot(read(input, 0, shape.hidden()), read(matrix, 0, shape.hidden()));
        // Each factor is off by up to 2^-4 of itself.
        double tolerance = 0.1 * Math.sqrt(shape.hidden());
        product();
        near("product", sum, at(y, 0), tolerance);
        productBias();
        near("productBias", sum, at(y, 0), tolerance);
        productAdding();
        double product = dot(column(outputGradient), column(input));
        near("productAdding", product, at(dweight, 0), 0.1 * Math.sqrt(shape.tokens()));
    }

    private QuantizedTensor quantized(Tensor plain, Scaling by) {
        QuantizedTensor tensor = scope.quantized(by, DType.FLOAT8_E4M3, plain.size(0), plain.size(1))
                .allocateRowwise(scope)
                .allocateColumnwise(scope);
        if (by == Scaling.TENSOR) {
            tensor.scale(empty(DType.FLOAT32, 1)).amax(empty(DType.FLOAT32, 1));
            RecipeUpdates.computeAmax(plain, tensor, QuantizationConfig.standard(), stream);
            RecipeUpdates.computeScaleFromAmax(tensor, QuantizationConfig.standard(), stream);
        }
        Cast.quantize(plain, tensor, stream);
        return tensor;
    }

    /** y = x W^T. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void product() {
        repeat(() -> MatrixProduct.of(Transpose.NO, Transpose.YES, plan)
                .product(x, weight, y, Output.OVERWRITE, accumulator(), stream));
    }

    /** y = x W^T + b. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void productBias() {
        repeat(() -> MatrixProduct.of(Transpose.NO, Transpose.YES, plan)
                .productBias(x, weight, bias, y, accumulator(), stream));
    }

    /** dw = dw + dy^T x, in FP32. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void productAdding() {
        repeat(() -> MatrixProduct.of(Transpose.YES, Transpose.NO, plan)
                .product(dy, x, dweight, Output.ADD, Accumulator.SPLIT, stream));
    }

    private Accumulator accumulator() {
        return scaling == Scaling.TENSOR ? Accumulator.FAST : Accumulator.SPLIT;
    }
}
