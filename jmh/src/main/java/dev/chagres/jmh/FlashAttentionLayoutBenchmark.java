package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.FlashAttentionLayout;
import dev.chagres.te.QkvFormat;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do copies of a layer's queries, keys and values into the layouts that FlashAttention reads cost, in BFLOAT16? */
@NullUnmarked
public class FlashAttentionLayoutBenchmark extends OperationBenchmark {
    private static final int HEAD_DIM = 128;

    private Tensor qkvi;
    private Tensor qkv;
    private Tensor q;
    private Tensor[] heads;
    private Tensor[] transposed;
    private Tensor[] rows;
    private Tensor[] longer;

    /** For JMH. */
    public FlashAttentionLayoutBenchmark() {}

    @Override
    void prepare() {
        long count = Math.max(1, shape.hidden() / HEAD_DIM);
        qkvi = normal(DType.BFLOAT16, shape.length(), shape.batch(), count, 3 * HEAD_DIM);
        qkv = empty(DType.BFLOAT16, 3L * shape.batch(), shape.length(), count, HEAD_DIM);
        q = normal(DType.BFLOAT16, shape.batch(), shape.length(), count, HEAD_DIM);
        heads = new Tensor[] {q};
        transposed = new Tensor[] {empty(DType.BFLOAT16, shape.batch(), count, shape.length(), HEAD_DIM)};
        rows = new Tensor[] {normal(DType.BFLOAT16, shape.tokens(), HEAD_DIM - 1)};
        longer = new Tensor[] {empty(DType.BFLOAT16, shape.tokens(), HEAD_DIM)};
        float value = at(qkvi, 2 * HEAD_DIM);
        FlashAttentionLayout.prepareFlashAttnFwd(qkvi, qkv, stream);
        near("first value", value, at(qkv, 2 * q.count()), 0);
        FlashAttentionLayout.prepareFlashAttnBwd(q, q, q, qkvi, stream);
        near("gradient of the first value", at(q, 0), at(qkvi, 2 * HEAD_DIM), 0);
        copies();
        near("second token", at(q, count * HEAD_DIM), at(transposed[0], HEAD_DIM), 0);
        near("second row", at(rows[0], HEAD_DIM - 1), at(longer[0], HEAD_DIM), 0);
        near("what is added to a row", 0, at(longer[0], HEAD_DIM - 1), 0);
    }

    /** Queries, keys and values split and joined. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void prepareBoth() {
        repeat(() -> {
            FlashAttentionLayout.prepareFlashAttnFwd(qkvi, qkv, stream);
            FlashAttentionLayout.prepareFlashAttnBwd(q, q, q, qkvi, stream);
        });
    }

    /** Heads moved before tokens, and rows padded. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void copies() {
        repeat(() -> {
            FlashAttentionLayout.multiTensorTransposeToBhsd(heads, transposed, QkvFormat.BSHD, stream);
            FlashAttentionLayout.multiTensorPadLastDim(rows, longer, stream);
        });
    }
}
