package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.ops.Attention;
import dev.chagres.ops.AttentionScores;
import dev.chagres.ops.QkvHeads;
import dev.chagres.ops.Rotary;
import dev.chagres.ops.Rotary.Direction;
import dev.chagres.ops.RotaryTable;
import dev.chagres.ops.SequencePool;
import dev.chagres.ops.TokenPositions;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedRope.Pairing;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do our operations inside a layer cost: the rotation in BFLOAT16, attention in FLOAT32? */
@NullUnmarked
public class LayerOpsBenchmark extends OperationBenchmark {
    private Tensor qkv;
    private QkvHeads heads;
    private RotaryTable table;
    private TokenPositions positions;
    private Tensor q;
    private Tensor k;
    private Tensor v;
    private AttentionProblem problem;
    private AttentionTensors tensors;
    private Tensor delta;
    private AttentionScores scores;
    private Tensor lengths;
    private Tensor pooled;

    /** For JMH. */
    public LayerOpsBenchmark() {}

    @Override
    void prepare() {
        prepareRotation();
        preparePooling();
        problem = AttentionBuffers.problem(shape, QkvLayout.T3HD).withMask(MaskType.PADDING);
        tensors = AttentionBuffers.tensors(this, problem, DType.FLOAT32);
        delta = scope.like(tensors.statistics());
        attentionForward();
        AttentionBuffers.checkForward(this, tensors);
        attentionBackward();
        AttentionBuffers.checkBackward(this, tensors);
        // A bias of 0 leaves the weights equal, and so does a soft cap of equal scores.
        Tensor bias = zeros(DType.FLOAT32, 1, shape.heads(), shape.length(), shape.length());
        scores = new AttentionScores().softcap(30).bias(bias);
        attentionOfScoresForward();
        AttentionBuffers.checkForward(this, tensors);
        attentionOfScoresBackward();
        AttentionBuffers.checkBackward(this, tensors);
    }

    private void prepareRotation() {
        long headDim = shape.hidden() / shape.heads();
        qkv = normal(DType.BFLOAT16, shape.tokens(), 3 * shape.hidden());
        int headCount = Math.toIntExact(shape.heads());
        heads = new QkvHeads(headCount, headCount, Math.toIntExact(headDim));
        Tensor angles = filled(DType.FLOAT32, 1, shape.length(), headDim);
        table = new RotaryTable(angles, Pairing.HALVES);
        positions = new TokenPositions().padded(QkvFormat.BSHD, shape.length());
        float[] before = read(qkv, 0, headDim);
        rotate();
        double expected = before[0] * Math.cos(1) - before[Math.toIntExact(headDim / 2)] * Math.sin(1);
        near("rotaryPacked", expected, at(qkv, 0), 0.02);
        q = empty(DType.BFLOAT16, shape.tokens(), shape.hidden());
        k = empty(DType.BFLOAT16, shape.tokens(), shape.hidden());
        v = empty(DType.BFLOAT16, shape.tokens(), shape.hidden());
        long value = 2 * shape.hidden();
        float[] packed = read(qkv, 0, value + 1);
        split();
        near("rotarySplit", packed[Math.toIntExact(value)], at(v, 0), 0);
        join();
        near("rotaryJoin", packed[0], at(qkv, 0), 0.05);
    }

    private void preparePooling() {
        int batch = Math.toIntExact(shape.tokens() / shape.length());
        int[] ends = new int[batch + 1];
        for (int b = 1; b <= batch; b++) {
            ends[b] = b * Math.toIntExact(shape.length());
        }
        lengths = scope.tensor(DType.INT32, batch + 1L);
        lengths.set(stream, ends);
        pooled = empty(DType.BFLOAT16, batch, shape.hidden());
        double mean = 0;
        float[] column = read(q, 0, shape.length() * shape.hidden());
        for (int t = 0; t < shape.length(); t++) {
            mean += column[Math.toIntExact(t * shape.hidden())] / (double) shape.length();
        }
        pool();
        near("sequencePool", mean, at(pooled, 0), 0.02);
        poolGradient();
        near("sequencePool gradient", at(pooled, 0) / shape.length(), at(k, 0), 0.02);
    }

    private void pool() {
        SequencePool.forward(q, lengths, null, QkvFormat.BSHD, SequencePool.Kind.MEAN, pooled, null, stream);
    }

    private void poolGradient() {
        SequencePool.backward(pooled, lengths, null, QkvFormat.BSHD, SequencePool.Kind.MEAN, null, k, stream);
    }

    /** The mean of each sequence. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void sequencePoolForward() {
        repeat(this::pool);
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void sequencePoolBackward() {
        repeat(this::poolGradient);
    }

    private void rotate() {
        Rotary.rotaryPacked(qkv, heads, table, positions, Direction.FORWARD, stream);
    }

    private void split() {
        Rotary.rotarySplit(qkv, heads, table, positions, q, k, v, stream);
    }

    private void join() {
        Rotary.rotaryJoin(q, k, v, heads, table, positions, qkv, stream);
    }

    /** Query and key rotated in place. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void rotaryPacked() {
        repeat(this::rotate);
    }

    /** Query, key and value split and rotated. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void rotarySplit() {
        repeat(this::split);
    }

    /** Their gradients rotated back and joined. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void rotaryJoin() {
        repeat(this::join);
    }

    /** Our own attention. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void attentionForward() {
        repeat(() -> Attention.forward(problem, tensors, stream));
    }

    /** Its gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void attentionBackward() {
        repeat(() -> Attention.backward(problem, tensors, delta, stream));
    }

    /** Our own attention with a soft cap and a bias of each head. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void attentionOfScoresForward() {
        repeat(() -> Attention.forward(problem, tensors, scores, stream));
    }

    /** Its gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void attentionOfScoresBackward() {
        repeat(() -> Attention.backward(problem, tensors, scores, delta, stream));
    }
}
