package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.Topk;
import java.util.Arrays;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does it cost to find the 50 largest of 32,000 logits for 64 tokens, in FP32? */
@NullUnmarked
public class TopkBenchmark extends OperationBenchmark {
    private static final int ROWS = 64;
    private static final int LOGITS = 32_000;
    private static final int LARGEST = 50;

    private Tensor keys;
    private Tensor lengths;
    private Tensor found;
    private Tensor indices;

    /** For JMH. */
    public TopkBenchmark() {}

    @Override
    void prepare() {
        keys = normal(DType.FLOAT32, ROWS, LOGITS);
        int[] whole = new int[ROWS];
        Arrays.fill(whole, LOGITS);
        lengths = ints(whole);
        found = empty(DType.FLOAT32, ROWS, LARGEST);
        indices = empty(DType.INT32, ROWS, LARGEST);
        topk();
        float[] row = read(keys, 0, LOGITS);
        Arrays.sort(row);
        float[] largest = read(found, 0, LARGEST);
        Arrays.sort(largest);
        near("topk", row[LOGITS - LARGEST], largest[0], 0);
    }

    /** The largest of each row. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void topk() {
        repeat(() -> Topk.topk(keys, lengths, found, indices, stream));
    }
}
