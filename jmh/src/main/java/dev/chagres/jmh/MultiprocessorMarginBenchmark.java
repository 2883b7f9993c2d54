package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.MultiprocessorMargin;
import dev.chagres.Tensor;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.NormFunction;
import dev.chagres.ops.ProductPlan;
import dev.chagres.ops.ResidualNorm;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Normalization;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.te.Output;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.Param;

/**
 * How much slower are norms and products in BFLOAT16 that leave multiprocessors unused? On a GPU: {@code -p margin=0,8,16,32}.
 */
@NullUnmarked
public class MultiprocessorMarginBenchmark extends OperationBenchmark {
    private static final float EPSILON = 1e-5f;
    private static final NormFunction NORM = new NormFunction(NormFunction.Kind.LAYER_NORM, Gamma.PLAIN, EPSILON);

    /** Multiprocessors that are left unused. */
    @Param({"0"})
    public int margin;

    private ResidualNorm residualNorm;
    private Tensor x;
    private Tensor residual;
    private Tensor gamma;
    private Tensor beta;
    private Normalization norm;
    private Tensor h;
    private Tensor y;
    private Tensor mean;
    private Tensor inverse;
    private Tensor dh;
    private Tensor dgamma;
    private Tensor dbeta;
    private Tensor dgammaOfType;
    private Tensor dbetaOfType;
    private Tensor weight;
    private Tensor product;

    /** For JMH. */
    public MultiprocessorMarginBenchmark() {}

    @Override
    void prepare() {
        device.multiprocessorMargin(new MultiprocessorMargin(margin, margin));
        long tokens = shape.tokens();
        long hidden = shape.hidden();
        x = normal(DType.BFLOAT16, tokens, hidden);
        residual = zeros(DType.BFLOAT16, tokens, hidden);
        gamma = normal(DType.BFLOAT16, hidden);
        beta = zeros(DType.BFLOAT16, hidden);
        norm = new Normalization(EPSILON, Gamma.PLAIN).gamma(gamma).beta(beta);
        h = empty(DType.BFLOAT16, tokens, hidden);
        y = empty(DType.BFLOAT16, tokens, hidden);
        mean = empty(DType.FLOAT32, tokens);
        inverse = empty(DType.FLOAT32, tokens);
        dh = empty(DType.BFLOAT16, tokens, hidden);
        dgamma = empty(DType.FLOAT32, hidden);
        dbeta = empty(DType.FLOAT32, hidden);
        residualNorm = new ResidualNorm(NORM)
                .parameters(gamma, beta)
                .statistics(mean, inverse)
                .sum(null, residual, h)
                .gradients(dgamma, dbeta, Output.OVERWRITE);
        dgammaOfType = empty(DType.BFLOAT16, hidden);
        dbetaOfType = empty(DType.BFLOAT16, hidden);
        weight = normal(DType.BFLOAT16, hidden, hidden);
        product = empty(DType.BFLOAT16, tokens, hidden);
        check(Math.toIntExact(hidden));
    }

    private void check(int hidden) {
        float[] values = read(x, 0, hidden);
        double sum = 0;
        double squares = 0;
        for (int i = 0; i < hidden; i++) {
            sum += values[i] / (double) hidden;
            squares += values[i] * (double) values[i] / hidden;
        }
        double expected = (values[0] - sum) / Math.sqrt(squares - sum * sum + EPSILON) * at(gamma, 0);
        residualNormForward();
        near("residualNormForward", expected, at(y, 0), 0.02);
        layernormFwd();
        near("layernormFwd", expected, at(y, 0), 0.02);
        double column = columnSum(y);
        residualNormBackward();
        near("residualNormBackward", column, at(dbeta, 0), 0.02);
        layernormBwd();
        near("layernormBwd", column, at(dbetaOfType, 0), 0.05);
        product();
        near("product", dot(values, read(weight, 0, hidden)), at(product, 0), 0.02);
    }

    /** Sum and norm. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void residualNormForward() {
        repeat(() -> residualNorm.forward(x, y, null, stream));
    }

    /** Their gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void residualNormBackward() {
        repeat(() -> residualNorm.backward(y, h, residual, dh, stream));
    }

    /** Transformer Engine's layer norm. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void layernormFwd() {
        repeat(() -> norm.layernormFwd(x, y, mean, inverse, stream));
    }

    /** Its gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void layernormBwd() {
        repeat(() -> norm.layernormBwd(y, x, mean, inverse, dh, dgammaOfType, dbetaOfType, stream));
    }

    /** A product by a square weight. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void product() {
        repeat(() -> MatrixProduct.of(Transpose.NO, Transpose.YES, ProductPlan.FIRST)
                .product(x, weight, product, Output.OVERWRITE, stream));
    }
}
