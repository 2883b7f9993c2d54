package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.ops.Clip;
import dev.chagres.ops.DropPath;
import dev.chagres.ops.Dropout;
import dev.chagres.ops.ElementLoss;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.RowSum;
import dev.chagres.ops.TokenDropout;
import dev.chagres.ops.TokenPositions;
import dev.chagres.te.Output;
import dev.chagres.te.QkvFormat;
import java.util.stream.IntStream;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do our operations on elements and rows of a layer's tokens cost, in BFLOAT16? All are limited by memory bandwidth. */
@NullUnmarked
public class ElementwiseOpsBenchmark extends OperationBenchmark {
    private Tensor x;
    private Tensor residual;
    private Tensor bias;
    private Tensor y;
    private Tensor wide;
    private Tensor sum;
    private Tensor mask;
    private Tensor state;
    private final TokenPositions tokens = new TokenPositions();
    private Tensor sequenceFactors;
    private Tensor ids;
    private Tensor cuSeqlens;
    private Tensor tokenFactors;
    private Tensor norm;
    private Tensor scale;
    private Tensor amax;

    /** For JMH. */
    public ElementwiseOpsBenchmark() {}

    @Override
    void prepare() {
        long tokens = shape.tokens();
        x = normal(DType.BFLOAT16, tokens, shape.hidden());
        residual = normal(DType.BFLOAT16, tokens, shape.hidden());
        bias = normal(DType.BFLOAT16, shape.hidden());
        y = empty(DType.BFLOAT16, tokens, shape.hidden());
        wide = empty(DType.FLOAT32, tokens, shape.hidden());
        sum = empty(DType.FLOAT32, shape.hidden());
        mask = empty(DType.BYTE, Dropout.maskBytes(x.count()));
        state = zeros(DType.INT64, 2);
        sequenceFactors = empty(DType.FLOAT32, shape.batch());
        ids = zeros(DType.INT32, tokens);
        cuSeqlens = empty(DType.INT32, shape.batch() + 1);
        cuSeqlens.set(
                stream,
                IntStream.rangeClosed(0, shape.batch())
                        .map(b -> b * shape.length())
                        .toArray());
        tokenFactors = empty(DType.FLOAT32, tokens);
        norm = empty(DType.FLOAT32, 1);
        norm.set(stream, 4f);
        scale = empty(DType.FLOAT32, 1);
        amax = zeros(DType.FLOAT32, 1);
        float first = at(x, 0);
        float other = at(residual, 0);
        add();
        near("add", first + other, at(y, 0), 0.01);
        subtract();
        near("subtract", first - other, at(y, 0), 0.01);
        multiply();
        near("multiply", first * other, at(y, 0), 0.01 * (1 + Math.abs(first * other)));
        biasAdd();
        near("biasAdd", first + at(bias, 0) + other, at(y, 0), 0.01);
        reciprocal();
        near("reciprocal", 1 / first, at(y, 0), 0.01 / Math.abs(first));
        geluErf();
        near("geluErf", first * 0.5 * (1 + erf(first / Math.sqrt(2))), at(y, 0), 0.02);
        geluErfAmax();
        near("geluErfAmax", first * 0.5 * (1 + erf(first / Math.sqrt(2))), at(y, 0), 0.02);
        geluErfBackward();
        double slope =
                0.5 * (1 + erf(first / Math.sqrt(2))) + first * Math.exp(-first * first / 2) / Math.sqrt(2 * Math.PI);
        near("geluErfBackward", other * slope, at(y, 0), 0.02 + 0.01 * Math.abs(other));
        tanh();
        near("tanh", Math.tanh(first), at(y, 0), 0.02);
        tanhBackward();
        near("tanhBackward", other * (1 - first * first), at(y, 0), 0.02 * (1 + Math.abs(other * first * first)));
        sigmoid();
        near("sigmoid", 1 / (1 + Math.exp(-first)), at(y, 0), 0.01);
        sigmoidBackward();
        near(
                "sigmoidBackward",
                other * first * (1 - first),
                at(y, 0),
                0.02 * (1 + Math.abs(other) * (1 + first * first)));
        erf();
        near("erf", erf(first), at(y, 0), 0.01);
        erfBackward();
        near(
                "erfBackward",
                other * 2 / Math.sqrt(Math.PI) * Math.exp(-first * first),
                at(y, 0),
                0.02 * (1 + Math.abs(other)));
        squaredError();
        near(
                "squaredError",
                (first - other) * (first - other),
                at(y, 0),
                0.02 * (1 + (first - other) * (first - other)));
        squaredErrorBackward();
        near(
                "squaredErrorBackward",
                2 * other * (first - other),
                at(y, 0),
                0.02 * (1 + Math.abs(other * (first - other))));
        binaryCrossEntropy();
        near(
                "binaryCrossEntropy",
                Math.max(first, 0) - first * other + Math.log1p(Math.exp(-Math.abs(first))),
                at(y, 0),
                0.02 * (1 + Math.abs(first) * (1 + Math.abs(other))));
        binaryCrossEntropyBackward();
        near(
                "binaryCrossEntropyBackward",
                other * (1 / (1 + Math.exp(-first)) - other),
                at(y, 0),
                0.02 * (1 + other * other));
        accumulate();
        near("accumulate", first, at(wide, 0), 0);
        cast();
        near("cast", first, at(y, 0), 0);
        rowSum();
        near("rowSum", columnSum(x), at(sum, 0), 1e-3);
        clipScale();
        near("clipScale", 0.25, at(scale, 0), 1e-5);
        checkDropping(first, other);
    }

    /** The sum of its series, for numbers of a normal distribution. */
    private static double erf(double x) {
        double term = x;
        double sum = x;
        for (int n = 1; n < 200; n++) {
            term *= -x * x / n;
            sum += term / (2 * n + 1);
        }
        return 2 / Math.sqrt(Math.PI) * sum;
    }

    private void checkDropping(float first, float other) {
        dropoutAdd();
        boolean kept = at(y, 0) != other;
        near("dropoutAdd", other + (kept ? 2 * first : 0), at(y, 0), 0.02);
        dropoutBackward();
        near("dropoutBackward", kept ? 2 * first : 0, at(y, 0), 0.02);
        dropPathFactors();
        double factor = at(sequenceFactors, 0);
        near("dropPathFactors", 1, Math.abs(factor - 1), 0);
        tokens.padded(QkvFormat.BSHD, shape.length());
        scaleSequencesAdd();
        near("scaleSequencesAdd", other + factor * first, at(y, 0), 0.02);
        factors();
        near("factors", 0.88, at(tokenFactors, 0), 1e-6);
        scale();
        near("scale", at(tokenFactors, 0) * first, at(y, 0), 0.02);
    }

    /** y = x + residual. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void add() {
        repeat(() -> Elementwise.add(x, residual, y, stream));
    }

    /** y = x - residual. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void subtract() {
        repeat(() -> Elementwise.subtract(x, residual, y, stream));
    }

    /** y = x residual. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void multiply() {
        repeat(() -> Elementwise.multiply(x, residual, y, stream));
    }

    /** y = (x + bias) + residual. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void biasAdd() {
        repeat(() -> Elementwise.biasAdd(x, bias, residual, y, stream));
    }

    /** y = 1 / x. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void reciprocal() {
        repeat(() -> Elementwise.reciprocal(x, y, stream));
    }

    /** The exact GELU. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void geluErf() {
        repeat(() -> Elementwise.geluErf(x, y, stream));
    }

    /** That with the amax from which a cast's scale follows. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void geluErfAmax() {
        repeat(() -> Elementwise.geluErf(x, y, amax, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void geluErfBackward() {
        repeat(() -> Elementwise.geluErfBackward(residual, x, y, stream));
    }

    /** y = tanh(x). */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void tanh() {
        repeat(() -> Elementwise.tanh(x, y, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void tanhBackward() {
        repeat(() -> Elementwise.tanhBackward(residual, x, y, stream));
    }

    /** y = 1 / (1 + exp(-x)). */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void sigmoid() {
        repeat(() -> Elementwise.sigmoid(x, y, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void sigmoidBackward() {
        repeat(() -> Elementwise.sigmoidBackward(residual, x, y, stream));
    }

    /** y = (x - residual)^2. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void squaredError() {
        repeat(() -> ElementLoss.squaredError(x, residual, y, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void squaredErrorBackward() {
        repeat(() -> ElementLoss.squaredErrorBackward(residual, x, residual, y, stream));
    }

    /** The binary cross-entropy of x and residual. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void binaryCrossEntropy() {
        repeat(() -> ElementLoss.binaryCrossEntropy(x, residual, y, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void binaryCrossEntropyBackward() {
        repeat(() -> ElementLoss.binaryCrossEntropyBackward(residual, x, residual, y, stream));
    }

    /** y = erf(x). */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void erf() {
        repeat(() -> Elementwise.erf(x, y, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void erfBackward() {
        repeat(() -> Elementwise.erfBackward(residual, x, y, stream));
    }

    /** BFLOAT16 into FP32. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void accumulate() {
        repeat(() -> Elementwise.accumulate(x, wide, Output.OVERWRITE, stream));
    }

    /** FP32 into BFLOAT16. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void cast() {
        repeat(() -> Elementwise.cast(wide, y, stream));
    }

    /** The sum of the rows. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void rowSum() {
        repeat(() -> RowSum.rowSum(x, sum, Output.OVERWRITE, stream));
    }

    /** The factor that clips. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void clipScale() {
        repeat(() -> Clip.clipScale(norm, 1, scale, stream));
    }

    /** Half of the values dropped. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void dropoutAdd() {
        repeat(() -> Dropout.dropoutAdd(x, residual, y, mask, state, 0.5f, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void dropoutBackward() {
        repeat(() -> Dropout.dropoutBackward(x, mask, y, 0.5f, stream));
    }

    /** Half of the sequences left out. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void dropPathFactors() {
        repeat(() -> DropPath.dropPathFactors(state, 0.5f, sequenceFactors, stream));
    }

    /** Their sum with a residual. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scaleSequencesAdd() {
        repeat(() -> DropPath.scaleSequencesAdd(x, residual, y, sequenceFactors, tokens, stream));
    }

    /** A factor for each token of masked sequences. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void factors() {
        repeat(() -> TokenDropout.factors(ids, cuSeqlens, null, QkvFormat.THD, 32, 0.88f, tokenFactors, stream));
    }

    /** Their product with the tokens. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scale() {
        repeat(() -> TokenDropout.scale(x, y, tokenFactors, 0, stream));
    }
}
