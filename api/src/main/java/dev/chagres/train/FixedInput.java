package dev.chagres.train;

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

    private final CuSeqlens cuSeqlens;
    private final ModelInput input;

    FixedInput(Stream stream, StepBucket bucket, Tensor tokens) {
        this.bucket = bucket;
        this.tokens = tokens;
        scope = stream.device().openScope(stream);
        cuSeqlens = CuSeqlens.fixed(scope, bucket.sequences(), bucket.longest(), bucket.tokens());
        input = new ModelInput(
                scope.view(tokens, 0, bucket.tokens()),
                scope.view(tokens, tokens.size(1), bucket.tokens()),
                Sequences.packed(cuSeqlens));
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
        cuSeqlens.set(source);
    }

    ModelInput modelInput() {
        return input;
    }

    @Override
    public void close() {
        scope.close();
    }
}
