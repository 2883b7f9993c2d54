package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.Normalization;
import dev.chagres.te.Normalization.Gamma;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do Transformer Engine's norms cost over the rows of a layer, in BFLOAT16? */
@NullUnmarked
public class NormalizationBenchmark extends OperationBenchmark {
    private static final float EPSILON = 1e-5f;

    private Tensor x;
    private Tensor gamma;
    private Tensor beta;
    private Normalization norm;
    private Tensor z;
    private Tensor mu;
    private Tensor rsigma;
    private Tensor dx;
    private Tensor dgamma;
    private Tensor dbeta;

    /** For JMH. */
    public NormalizationBenchmark() {}

    @Override
    void prepare() {
        long tokens = shape.tokens();
        x = normal(DType.BFLOAT16, tokens, shape.hidden());
        gamma = normal(DType.BFLOAT16, shape.hidden());
        beta = zeros(DType.BFLOAT16, shape.hidden());
        norm = new Normalization(EPSILON, Gamma.PLAIN).gamma(gamma).beta(beta);
        z = empty(DType.BFLOAT16, tokens, shape.hidden());
        mu = empty(DType.FLOAT32, tokens);
        rsigma = empty(DType.FLOAT32, tokens);
        dx = empty(DType.BFLOAT16, tokens, shape.hidden());
        dgamma = empty(DType.BFLOAT16, shape.hidden());
        dbeta = empty(DType.BFLOAT16, shape.hidden());

        float[] row = read(x, 0, shape.hidden());
        double sum = 0;
        double squares = 0;
        for (int i = 0; i < shape.hidden(); i++) {
            sum += row[i] / (double) shape.hidden();
            squares += row[i] * (double) row[i] / shape.hidden();
        }
        double factor = at(gamma, 0);
        layernormFwd();
        double scale = 1 / Math.sqrt(squares - sum * sum + EPSILON);
        near("layernormFwd", (row[0] - sum) * scale * factor, at(z, 0), 0.02);
        layernormBwd();
        near("layernormBwd", columnSum(z), at(dbeta, 0), 0.05);
        rmsnormFwd();
        near("rmsnormFwd", row[0] / Math.sqrt(squares + EPSILON) * factor, at(z, 0), 0.02);
        rmsnormBwd();
        // With z as the gradient that of gamma is the sum over the rows of z z / gamma.
        double expected = 0;
        for (double value : column(z)) {
            expected += value * value / factor;
        }
        near("rmsnormBwd", expected, at(dgamma, 0), 0.05);
        float alone = at(dx, 0);
        rmsnormBwdAdd();
        near("rmsnormBwdAdd", alone + row[0], at(dx, 0), 0.05);
    }

    /** Layer norm. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void layernormFwd() {
        repeat(() -> norm.layernormFwd(x, z, mu, rsigma, stream));
    }

    /** Its gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void layernormBwd() {
        repeat(() -> norm.layernormBwd(z, x, mu, rsigma, dx, dgamma, dbeta, stream));
    }

    /** RMS norm. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void rmsnormFwd() {
        repeat(() -> norm.rmsnormFwd(x, z, rsigma, stream));
    }

    /** Its gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void rmsnormBwd() {
        repeat(() -> norm.rmsnormBwd(z, x, rsigma, dx, dgamma, stream));
    }

    /** Its gradients, added to the gradient that bypasses the norm. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void rmsnormBwdAdd() {
        repeat(() -> norm.rmsnormBwdAdd(z, x, x, rsigma, dx, dgamma, stream));
    }
}
