package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.ops.Attention;
import dev.chagres.ops.AttentionScores;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.BiasType;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.SoftmaxType;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.Param;

/**
 * What does causal attention with modified scores cost with cuDNN's kernels, and with our own? Padded sequences of full length in BFLOAT16;
 * backward also writes the gradients of bias and sinks.
 */
@NullUnmarked
public class AttentionScoresBenchmark extends OperationBenchmark {
    /** Whose kernels. */
    public enum Kernels {
        /** cuDNN's. */
        FUSED,
        /** Our own. */
        TILED
    }

    /** What is done with scores. */
    public enum Change {
        /** A bias of each head, which sequences share. */
        BIAS,
        /** Linear biases. */
        ALIBI,
        /** A learnable softmax. */
        SINKS
    }

    /** Whose kernels. */
    @Param({"FUSED", "TILED"})
    public Kernels kernels;

    /** What is done with scores. */
    @Param({"BIAS", "ALIBI", "SINKS"})
    public Change change;

    private AttentionProblem problem;
    private AttentionTensors tensors;
    private AttentionScores scores;
    private Tensor delta;

    /** For JMH. */
    public AttentionScoresBenchmark() {}

    @Override
    void prepare() {
        problem = AttentionBuffers.problem(shape, QkvLayout.BSHD_BSHD_BSHD)
                .withMask(MaskType.CAUSAL)
                .withWindow(-1, 0);
        tensors = denseTensors();
        tensors.statistics(FusedAttention.statistics(problem, tensors, scope));
        delta = scope.like(tensors.statistics());
        scores = new AttentionScores();
        switch (kernels) {
            case FUSED -> changeFused();
            case TILED -> changeTiled();
        }
        forward();
        // The first query sees one key, of value 3; its own sink of 0 has half the weight.
        near("output", change == Change.SINKS ? 1.5 : 3, at(tensors.output(), 0), 0.02);
        backward();
        // Its score's gradient is that of its weight w, w (3 d - 3 w d), and the query's that times 0.5 / sqrt(d).
        double headDim = (double) shape.hidden() / shape.heads();
        near("dq", change == Change.SINKS ? 0.375 * Math.sqrt(headDim) : 0, at(tensors.queryGradient(), 0), 0.02);
    }

    private AttentionTensors denseTensors() {
        int[] offsets = new int[shape.batch() + 1];
        for (int i = 1; i < offsets.length; i++) {
            offsets[i] = i * shape.length();
        }
        Tensor lengths = ints(offsets);
        return new AttentionTensors()
                .query(filled(0))
                .key(filled(0.5f))
                .value(filled(3))
                .output(filled(0))
                .outputGradient(filled(1))
                .queryGradient(filled(0))
                .keyGradient(filled(0))
                .valueGradient(filled(0))
                .queryLengths(lengths, shape.length())
                .keyLengths(lengths, shape.length());
    }

    private Tensor filled(float value) {
        return filled(
                DType.BFLOAT16, value, shape.batch(), shape.length(), shape.heads(), shape.hidden() / shape.heads());
    }

    private Tensor zeroBias() {
        return zeros(DType.BFLOAT16, 1, shape.heads(), shape.length(), shape.length());
    }

    private void changeFused() {
        switch (change) {
            case BIAS -> {
                problem = problem.withBiasType(BiasType.POST_SCALE_BIAS);
                tensors.bias(zeroBias()).biasGradient(zeroBias());
            }
            case ALIBI -> problem = problem.withBiasType(BiasType.ALIBI);
            case SINKS -> {
                problem = problem.withSoftmaxType(SoftmaxType.LEARNABLE);
                tensors.softmaxOffset(zeros(DType.FLOAT32, shape.heads()))
                        .softmaxOffsetGradient(zeros(DType.FLOAT32, shape.heads()));
            }
        }
    }

    private void changeTiled() {
        switch (change) {
            case BIAS -> scores.bias(zeroBias()).biasGradient(zeroBias());
            case ALIBI -> scores.alibi(Alibi.of(scope, shape.heads()).slopes(), AttentionScores.Alignment.TOP_LEFT);
            case SINKS ->
                scores.softmax(SoftmaxType.LEARNABLE, zeros(DType.FLOAT32, shape.heads()))
                        .sinksGradient(zeros(DType.FLOAT32, shape.heads()));
        }
    }

    /** Output and log-sum-exp. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void forward() {
        switch (kernels) {
            case FUSED -> repeat(() -> FusedAttention.forward(problem, tensors, stream));
            case TILED -> repeat(() -> Attention.forward(problem, tensors, scores, stream));
        }
    }

    /** The gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backward() {
        switch (kernels) {
            case FUSED -> repeat(() -> FusedAttention.backward(problem, tensors, stream));
            case TILED -> repeat(() -> Attention.backward(problem, tensors, scores, delta, stream));
        }
    }
}
