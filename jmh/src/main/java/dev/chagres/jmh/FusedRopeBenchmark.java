package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.FusedRope;
import dev.chagres.te.FusedRope.Pairing;
import dev.chagres.te.QkvFormat;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does Transformer Engine's rotation of a query cost over padded sequences, in BFLOAT16? */
@NullUnmarked
public class FusedRopeBenchmark extends OperationBenchmark {
    private Tensor x;
    private Tensor y;
    private FusedRope rotation;

    /** For JMH. */
    public FusedRopeBenchmark() {}

    @Override
    void prepare() {
        long headDim = shape.hidden() / shape.heads();
        x = normal(DType.BFLOAT16, shape.batch(), shape.length(), shape.heads(), headDim);
        y = empty(DType.BFLOAT16, shape.batch(), shape.length(), shape.heads(), headDim);
        Tensor freqs = filled(DType.FLOAT32, 1, shape.length(), 1, 1, headDim);
        rotation = new FusedRope(freqs, Pairing.HALVES);
        float[] values = read(x, 0, headDim);
        double a = values[0];
        double b = values[Math.toIntExact(headDim / 2)];
        forward();
        near("forward", a * Math.cos(1) - b * Math.sin(1), at(y, 0), 0.02);
        backward();
        near("backward", a * Math.cos(1) + b * Math.sin(1), at(y, 0), 0.02);
    }

    /** The rotation. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void forward() {
        repeat(() -> rotation.forward(x, null, null, y, QkvFormat.BSHD, stream));
    }

    /** Its inverse. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backward() {
        repeat(() -> rotation.backward(x, null, null, y, QkvFormat.BSHD, stream));
    }
}
