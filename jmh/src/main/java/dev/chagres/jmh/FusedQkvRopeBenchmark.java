package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.FusedQkvRope;
import dev.chagres.te.FusedRope.Pairing;
import dev.chagres.te.QkvFormat;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does Transformer Engine's rotation of a whole projection cost over padded sequences, in BFLOAT16? */
@NullUnmarked
public class FusedQkvRopeBenchmark extends OperationBenchmark {
    private Tensor qkv;
    private Tensor q;
    private Tensor k;
    private Tensor v;
    private FusedQkvRope rotation;

    /** For JMH. */
    public FusedQkvRopeBenchmark() {}

    @Override
    void prepare() {
        long headDim = shape.hidden() / shape.heads();
        qkv = normal(DType.BFLOAT16, shape.batch(), shape.length(), shape.heads(), 3 * headDim);
        q = empty(DType.BFLOAT16, shape.batch(), shape.length(), shape.heads(), headDim);
        k = empty(DType.BFLOAT16, shape.batch(), shape.length(), shape.heads(), headDim);
        v = empty(DType.BFLOAT16, shape.batch(), shape.length(), shape.heads(), headDim);
        Tensor freqs = filled(DType.FLOAT32, 1, shape.length(), 1, 1, headDim);
        rotation = new FusedQkvRope(freqs, freqs, Pairing.HALVES);
        float[] values = read(qkv, 0, 3 * headDim);
        double a = values[0];
        double b = values[Math.toIntExact(headDim / 2)];
        forward();
        near("query", a * Math.cos(1) - b * Math.sin(1), at(q, 0), 0.02);
        near("value", values[Math.toIntExact(2 * headDim)], at(v, 0), 0);
        backward();
        near("gradient of the query", a, at(qkv, 0), 0.05);
        near("gradient of the value", values[Math.toIntExact(2 * headDim)], at(qkv, 2 * headDim), 0);
    }

    /** The rotation. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void forward() {
        repeat(() -> rotation.forward(qkv, null, q, k, v, QkvFormat.BSHD, stream));
    }

    /** Its inverse. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backward() {
        repeat(() -> rotation.backward(q, k, v, qkv, QkvFormat.BSHD, stream));
    }
}
