package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvLayout;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does cuDNN's attention cost over packed sequences inside one buffer, in BFLOAT16? */
@NullUnmarked
public class FusedAttentionBenchmark extends OperationBenchmark {
    private AttentionProblem problem;
    private AttentionTensors tensors;
    private Tensor state;
    private Tensor seed;
    private Tensor offset;

    /** For JMH. */
    public FusedAttentionBenchmark() {}

    @Override
    void prepare() {
        problem = AttentionBuffers.problem(shape, QkvLayout.T3HD).withMask(MaskType.PADDING);
        tensors = AttentionBuffers.tensors(this, problem, DType.BFLOAT16);
        forward();
        AttentionBuffers.checkForward(this, tensors);
        backward();
        AttentionBuffers.checkBackward(this, tensors);
        state = empty(DType.INT64, 2);
        seed = empty(DType.INT64, 1);
        offset = empty(DType.INT64, 1);
        seed.set(stream, 5L);
        offset.set(stream, 7L);
        extractSeedAndOffsetFromDevice();
        near("rngState", 8, state.toLongs(stream)[1], 0);
        populateRngState();
        near("seed", 5, state.toLongs(stream)[0], 0);
        extractSeedAndOffset();
        near("rngState", 6, state.toLongs(stream)[1], 0);
    }

    /** Output and log-sum-exp. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void forward() {
        repeat(() -> FusedAttention.forward(problem, tensors, stream));
    }

    /** The gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backward() {
        repeat(() -> FusedAttention.backward(problem, tensors, stream));
    }

    /** A random state from numbers of the host. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void extractSeedAndOffset() {
        repeat(() -> FusedAttention.extractSeedAndOffset(state, 5, 6, stream));
    }

    /** A random state from numbers on the device. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void extractSeedAndOffsetFromDevice() {
        repeat(() -> FusedAttention.extractSeedAndOffset(state, seed, offset, 1, stream));
    }

    /** A random state from a seed on the device and an offset that TE counts. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void populateRngState() {
        repeat(() -> FusedAttention.populateRngState(state, seed, stream));
    }
}
