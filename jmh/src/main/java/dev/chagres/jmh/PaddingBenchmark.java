package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.Padding;
import dev.chagres.te.SplitsToOffsets;
import java.util.Arrays;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does it cost to pad eight parts of a layer's tokens to a multiple of 16 rows, and to compute the parts' offsets? */
@NullUnmarked
public class PaddingBenchmark extends OperationBenchmark {
    private static final int PARTS = 8;
    private static final int MULTIPLE = 16;
    private static final int SPLITS = 1024;

    private Tensor[] parts;
    private Tensor[] padded;
    private Tensor sizes;
    private Tensor offsets;
    private Tensor ends;
    private Tensor[] outputs;
    private final long[] strides = {1, 4096};

    /** For JMH. */
    public PaddingBenchmark() {}

    @Override
    void prepare() {
        long rows = shape.tokens() / PARTS - 1L;
        parts = new Tensor[PARTS];
        padded = new Tensor[PARTS];
        Arrays.setAll(parts, i -> normal(DType.BFLOAT16, rows, shape.hidden()));
        Arrays.setAll(padded, i -> normal(DType.BFLOAT16, (rows + MULTIPLE) / MULTIPLE * MULTIPLE, shape.hidden()));
        long[] lengths = new long[SPLITS];
        Arrays.setAll(lengths, i -> i % 7);
        sizes = empty(DType.INT64, SPLITS);
        sizes.set(stream, lengths);
        offsets = empty(DType.INT64, SPLITS + 1);
        ends = empty(DType.INT32, SPLITS);
        outputs = new Tensor[] {ends, offsets};
        check(lengths);
    }

    private void check(long[] lengths) {
        float first = at(parts[PARTS - 1], 0);
        multiPadding();
        Tensor last = padded[PARTS - 1];
        near("multiPadding", first, at(last, 0), 0);
        near("multiPadding's last row", 0, at(last, last.count() - 1), 0);
        multiUnpadding();
        near("multiUnpadding", first, at(parts[PARTS - 1], 0), 0);
        long sum = 0;
        long squares = 0;
        for (long length : lengths) {
            sum += length;
            squares += length * length;
        }
        splitsToOffsets();
        near("splitsToOffsets", 4096.0 * sum, offsets.toLongs(stream)[SPLITS], 0);
        splitsToOffsets2d();
        near("splitsToOffsets2d", squares, offsets.toLongs(stream)[SPLITS], 0);
        splitsToOffsetsMulti();
        near("splitsToOffsetsMulti", sum, ends.toInts(stream)[SPLITS - 1], 0);
    }

    /** Rows of zeros added to eight matrices. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void multiPadding() {
        repeat(() -> Padding.multiPadding(parts, padded, stream));
    }

    /** The rows removed again. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void multiUnpadding() {
        repeat(() -> Padding.multiUnpadding(padded, parts, stream));
    }

    /** Offsets of 1,024 parts. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void splitsToOffsets() {
        repeat(() -> SplitsToOffsets.splitsToOffsets(sizes, offsets, 4096, stream));
    }

    /** Offsets of 1,024 matrices. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void splitsToOffsets2d() {
        repeat(() -> SplitsToOffsets.splitsToOffsets2d(sizes, sizes, offsets, stream));
    }

    /** Offsets and ends of 1,024 parts. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void splitsToOffsetsMulti() {
        repeat(() -> SplitsToOffsets.splitsToOffsetsMulti(sizes, outputs, strides, stream));
    }
}
