package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.ContextParallelCorrection;
import dev.chagres.te.ContextParallelCorrection.Extent;
import dev.chagres.te.ContextParallelCorrection.LseLayout;
import dev.chagres.te.ContextParallelCorrection.Update;
import dev.chagres.te.ContextParallelThd;
import dev.chagres.te.ContextParallelThd.Half;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do Transformer Engine's kernels around the attention of two context-parallel ranks cost, packed, in BFLOAT16? */
@NullUnmarked
public class ContextParallelBenchmark extends OperationBenchmark {
    private static final int RANKS = 2;

    private Tensor cuSeqlens;
    private Tensor x;
    private Tensor ranked;
    private Tensor back;
    private Tensor half;
    private Tensor lse;
    private Tensor halfLse;
    private ContextParallelCorrection correction;
    private Tensor indices;

    /** For JMH. */
    public ContextParallelBenchmark() {}

    @Override
    void prepare() {
        int tokens = shape.batch() * shape.length();
        long width = shape.hidden() / shape.heads();
        int[] offsets = new int[shape.batch() + 1];
        for (int i = 1; i < offsets.length; i++) {
            offsets[i] = i * shape.length();
        }
        cuSeqlens = ints(offsets);
        x = normal(DType.BFLOAT16, tokens, shape.heads(), width);
        ranked = empty(DType.BFLOAT16, tokens, shape.heads(), width);
        back = empty(DType.BFLOAT16, tokens, shape.heads(), width);
        half = empty(DType.BFLOAT16, tokens / 2, shape.heads(), width);
        lse = normal(DType.FLOAT32, shape.heads(), tokens);
        correction = new ContextParallelCorrection(lse, cuSeqlens, LseLayout.PACKED);
        halfLse = empty(DType.FLOAT32, shape.heads(), tokens / 2);
        indices = ints(new int[tokens / RANKS]);
        checkOrder();
        checkHalves();
    }

    private void checkOrder() {
        order();
        near("there and back", at(x, x.count() - 1), at(back, back.count() - 1), 0);
        int last = shape.batch() * shape.length() / RANKS - 1;
        near("rank 0's last token", shape.batch() * shape.length() - 1, indices.toInts(stream)[last], 0);
    }

    private void checkHalves() {
        long second = shape.length() / 2 * shape.hidden();
        float logarithm = at(lse, shape.length() / 2);
        ContextParallelThd.readHalfTensor(x, cuSeqlens, half, Half.SECOND, stream);
        near("second half", at(x, second), at(half, 0), 0);
        correction.readSecondHalfLse(halfLse, stream);
        near("its LSE", logarithm, at(halfLse, 0), 0);
        correction.secondHalfLseCorrection(halfLse, stream);
        near("twice the exponentials", logarithm + Math.log(2), at(lse, shape.length() / 2), 1e-4);
        ContextParallelCorrection.gradCorrection(back, half, cuSeqlens, Update.NONE, Update.ADD, stream);
        near("added gradient", 2 * at(x, second), at(back, second), 0);
        near("gradient left alone", at(x, 0), at(back, 0), 0);
    }

    /** Reordering to the order of ranks and back, the indices of a rank's tokens, and a copy without padding. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void order() {
        repeat(() -> {
            ContextParallelThd.sequenceOrderToCpRankOrder(x, cuSeqlens, ranked, RANKS, stream);
            ContextParallelThd.cpRankOrderToSequenceOrder(ranked, cuSeqlens, back, RANKS, stream);
            ContextParallelThd.getPartitionedIndices(cuSeqlens, indices, RANKS, 0, stream);
            ContextParallelThd.copyValidTokensFromPerSplitToRankLocal(x, cuSeqlens, cuSeqlens, back, stream);
        });
    }

    /** What a step of attention over second halves needs before and after it. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void forward() {
        repeat(() -> {
            ContextParallelThd.readHalfTensor(x, cuSeqlens, half, Half.SECOND, stream);
            correction.readSecondHalfLse(halfLse, stream);
            correction.secondHalfLseCorrection(halfLse, stream);
            correction.outCorrection(back, half, lse, halfLse, Extent.SECOND_HALVES, stream);
        });
    }

    /** Adding a step's gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void backward() {
        repeat(() -> ContextParallelCorrection.gradCorrection(back, half, cuSeqlens, Update.NONE, Update.ADD, stream));
    }
}
