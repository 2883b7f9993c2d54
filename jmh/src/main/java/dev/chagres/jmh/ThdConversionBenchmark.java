package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.ThdConversion;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do copies of heads between packed and padded tokens cost, in BFLOAT16, of sequences half as long as the padding? */
@NullUnmarked
public class ThdConversionBenchmark extends OperationBenchmark {
    private Tensor thd;
    private Tensor back;
    private Tensor cuSeqlens;
    private Tensor bshd;

    /** For JMH. */
    public ThdConversionBenchmark() {}

    @Override
    void prepare() {
        long width = shape.hidden() / shape.heads();
        int half = shape.length() / 2;
        int[] offsets = new int[shape.batch() + 1];
        for (int i = 1; i < offsets.length; i++) {
            offsets[i] = i * half;
        }
        cuSeqlens = ints(offsets);
        thd = normal(DType.BFLOAT16, (long) shape.batch() * half, shape.heads(), width);
        back = empty(DType.BFLOAT16, (long) shape.batch() * half, shape.heads(), width);
        bshd = empty(DType.BFLOAT16, shape.batch(), shape.length(), shape.heads(), width);
        thdToBshd();
        long last = (shape.batch() - 1) * half * shape.hidden();
        long lastPadded = (long) (shape.batch() - 1) * shape.length() * shape.hidden();
        near("thdToBshd", at(thd, last), at(bshd, lastPadded), 0);
        near("padding", 0, at(bshd, bshd.count() - 1), 0);
        bshdToThd();
        near("bshdToThd", at(thd, thd.count() - 1), at(back, back.count() - 1), 0);
    }

    /** Packed tokens padded. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void thdToBshd() {
        repeat(() -> ThdConversion.convertThdToBshd(thd, cuSeqlens, bshd, stream));
    }

    /** Padded tokens packed. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void bshdToThd() {
        repeat(() -> ThdConversion.convertBshdToThd(bshd, cuSeqlens, back, stream));
    }
}
