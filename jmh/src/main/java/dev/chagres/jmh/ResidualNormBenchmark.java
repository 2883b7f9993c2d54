package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.ops.NormFunction;
import dev.chagres.ops.ResidualNorm;
import dev.chagres.te.Normalization;
import dev.chagres.te.Output;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.Param;

/** What does the norm of a sum cost, in BFLOAT16? */
@NullUnmarked
public class ResidualNormBenchmark extends OperationBenchmark {
    /** Which norm. */
    @Param({"LAYER_NORM", "RMS_NORM"})
    public NormFunction.Kind norm;

    private NormFunction function;
    private ResidualNorm residualNorm;
    private Tensor x;
    private Tensor residual;
    private Tensor gamma;
    /** Null for RMS norm, as the two below. */
    private Tensor beta;

    private Tensor mean;
    private Tensor dbeta;
    private Tensor h;
    private Tensor y;
    private Tensor inverse;
    private Tensor dh;
    private Tensor dgamma;

    /** For JMH. */
    public ResidualNormBenchmark() {}

    @Override
    void prepare() {
        function = new NormFunction(norm, Normalization.Gamma.PLAIN, 1e-5f);
        long tokens = shape.tokens();
        boolean centred = norm == NormFunction.Kind.LAYER_NORM;
        x = normal(DType.BFLOAT16, tokens, shape.hidden());
        residual = normal(DType.BFLOAT16, tokens, shape.hidden());
        gamma = normal(DType.BFLOAT16, shape.hidden());
        beta = centred ? zeros(DType.BFLOAT16, shape.hidden()) : null;
        mean = centred ? empty(DType.FLOAT32, tokens) : null;
        dbeta = centred ? empty(DType.FLOAT32, shape.hidden()) : null;
        h = empty(DType.BFLOAT16, tokens, shape.hidden());
        y = empty(DType.BFLOAT16, tokens, shape.hidden());
        inverse = empty(DType.FLOAT32, tokens);
        dh = empty(DType.BFLOAT16, tokens, shape.hidden());
        dgamma = empty(DType.FLOAT32, shape.hidden());
        residualNorm = new ResidualNorm(function)
                .parameters(gamma, beta)
                .statistics(mean, inverse)
                .sum(null, residual, h)
                .gradients(dgamma, dbeta, Output.OVERWRITE);
        residualNormForward();
        near("sum", at(x, 0) + at(residual, 0), at(h, 0), 0.01);
        near("residualNormForward", normed(0) * at(gamma, 0), at(y, 0), 0.02);
        residualNormBackward();
        double column = 0;
        float[] dy = column(y);
        float[] sums = column(h);
        float[] inverses = read(inverse);
        float[] means = centred ? read(mean) : new float[Math.toIntExact(tokens)];
        for (int token = 0; token < tokens; token++) {
            column += dy[token] * (sums[token] - means[token]) * inverses[token];
        }
        near("residualNormBackward", column, at(dgamma, 0), 1e-3 * Math.abs(column));
    }

    private double normed(int row) {
        double centre = mean == null ? 0 : at(mean, row);
        return (at(h, row * shape.hidden()) - centre) * at(inverse, row);
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
}
