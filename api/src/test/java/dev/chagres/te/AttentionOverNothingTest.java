package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Attention without queries or without keys: gradients are 0, and nothing is refused. */
@Tag("L0")
@Tag("L1")
class AttentionOverNothingTest {
    private static final AttentionProblem PACKED =
            AttentionProblem.of(QkvLayout.THD_THD_THD, 0.25f).withMask(MaskType.PADDING);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static Tensor heads(long... sizes) {
        return of(DType.BFLOAT16, sizes);
    }

    private static AttentionTensors of(int queries, int keys) {
        return new AttentionTensors()
                .query(heads(queries, 2, 16))
                .key(heads(keys, 2, 16))
                .value(heads(keys, 2, 16))
                .output(open.unwritten(DType.BFLOAT16, queries, 2, 16))
                .statistics(of(DType.FLOAT32, queries, 2, 1))
                .queryLengths(open.ints(0, queries), queries)
                .keyLengths(open.ints(0, keys), keys)
                .outputGradient(heads(queries, 2, 16))
                .queryGradient(open.unwritten(DType.BFLOAT16, queries, 2, 16))
                .keyGradient(open.unwritten(DType.BFLOAT16, keys, 2, 16))
                .valueGradient(open.unwritten(DType.BFLOAT16, keys, 2, 16));
    }

    private static void run(AttentionTensors tensors) {
        FusedAttention.forward(PACKED, tensors, open.stream());
        FusedAttention.backward(PACKED, tensors, open.stream());
    }

    @Test
    void withoutTokens() {
        run(of(0, 0));
        open.stream().synchronize();
    }

    @Test
    void withoutQueries() {
        AttentionTensors tensors = of(0, 4);
        run(tensors);
        assertArrayEquals(new float[128], open.read(tensors.keyGradient()));
        assertArrayEquals(new float[128], open.read(tensors.valueGradient()));
    }

    @Test
    void withoutKeys() {
        AttentionTensors tensors = of(4, 0);
        run(tensors);
        assertArrayEquals(new float[128], open.read(tensors.output()));
        assertArrayEquals(new float[128], open.read(tensors.queryGradient()));
    }

    /** Gradients of key and value in one buffer are zeroed to its end. */
    @Test
    void withoutQueriesAWholeBufferIsZero() {
        Tensor keys = heads(4 * 64);
        Tensor gradients = open.unwritten(DType.BFLOAT16, 4 * 64);
        AttentionTensors tensors = new AttentionTensors()
                .query(heads(0, 2, 16))
                .key(open.scope().view(keys, 0, 4, 2, 16))
                .value(open.scope().view(keys, 32, 4, 2, 16))
                .output(heads(0, 2, 16))
                .statistics(of(DType.FLOAT32, 0, 2, 1))
                .queryLengths(open.ints(0, 0), 0)
                .keyLengths(open.ints(0, 4), 4)
                .outputGradient(heads(0, 2, 16))
                .queryGradient(heads(0, 2, 16))
                .keyGradient(open.scope().view(gradients, 0, 4, 2, 16))
                .valueGradient(open.scope().view(gradients, 32, 4, 2, 16));
        FusedAttention.backward(PACKED.withLayout(QkvLayout.THD_T2HD), tensors, open.stream());
        assertArrayEquals(new float[4 * 64], open.read(gradients));
    }
}
