package dev.chagres.train;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import java.lang.foreign.MemorySegment;

/**
 * The inputs of one bucket's steps, at addresses that do not change.
 *
 * <p>Threading: the device's thread.
 */
final class FixedInput implements AutoCloseable {
    private final StepBucket bucket;
    private final Scope scope;
    /** Ids and labels of a whole micro-batch, of which the bucket's tokens count. */
    private final Tensor tokens;
    /** Where the offsets are written; kernels read them through {@link CuSeqlens#offsets()}. */
    private final Tensor offsets;

    private final CuSeqlens cuSeqlens = new CuSeqlens();
    private final Sequences sequences = Sequences.packed(cuSeqlens);
    private final ModelInput input;

    FixedInput(Stream stream, StepBucket bucket, Tensor tokens, Tensor offsets) {
        this.bucket = bucket;
        this.tokens = tokens;
        scope = stream.device().openScope(stream);
        this.offsets = scope.view(offsets, 0, bucket.sequences() + 1L);
        input = new ModelInput(
                scope.view(tokens, 0, bucket.tokens()), scope.view(tokens, tokens.size(1), bucket.tokens()), sequences);
        cuSeqlens.fixed(scope.reinterpret(offsets, DType.INT32, 0, bucket.sequences() + 1L));
    }

    StepBucket bucket() {
        return bucket;
    }

    /** Returns INT32 [2, capacity]: ids, then labels. */
    Tensor tokens() {
        return tokens;
    }

    Stream stream() {
        return scope.stream();
    }

    /** Enqueues the copy of the bucket's offsets, which must stay until the stream has passed it. */
    void setOffsets(MemorySegment source) {
        cuSeqlens.set(stream(), offsets, source, bucket.sequences(), bucket.longest());
    }

    ModelInput modelInput() {
        return input;
    }

    @Override
    public void close() {
        scope.close();
    }
}
