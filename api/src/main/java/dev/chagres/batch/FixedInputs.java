package dev.chagres.batch;

import dev.chagres.DType;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.te.QkvFormat;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * The micro-batches of one bucket's steps, at addresses that do not change.
 *
 * <p>Threading: the device's thread.
 */
final class FixedInputs implements AutoCloseable {
    private final StepBucket bucket;
    private final Scope scope;
    private final FixedMemory memory;
    private final List<CuSeqlens> cuSeqlens = new ArrayList<>();
    private final List<ModelInput> microBatches;

    FixedInputs(StepBucket bucket, FixedMemory memory) {
        this.bucket = bucket;
        this.memory = memory;
        scope = memory.stream().device().openScope(memory.stream()).countedAs(MemoryUse.Holder.BATCHES);
        List<ModelInput> all = new ArrayList<>();
        for (int i = 0; i < bucket.microBatches(); i++) {
            boolean packed = bucket.layout() == BatchLayout.PACKED;
            CuSeqlens offsets = packed
                    ? CuSeqlens.fixed(scope, bucket.sequences(), bucket.longest(), bucket.tokens())
                    : CuSeqlens.fixed(scope, bucket.sequences(), bucket.longest());
            Tensor both = memory.tokens(i);
            cuSeqlens.add(offsets);
            all.add(new ModelInput(
                    scope.view(both, 0, bucket.tokens()),
                    scope.view(both, both.size(1), bucket.tokens()),
                    packed ? Sequences.packed(offsets) : Sequences.padded(QkvFormat.BSHD, offsets, bucket.longest()),
                    memory.share(i)));
        }
        microBatches = List.copyOf(all);
    }

    /**
     * The tensors that all buckets share: ids and labels of the largest micro-batches, of which a bucket uses its tokens, and the shares.
     *
     * <p>Threading: the device's thread.
     */
    static final class FixedMemory implements AutoCloseable {
        private final Scope scope;
        private final Tensor shares;
        private final List<Tensor> tokens = new ArrayList<>();
        private final List<DeviceShare> share = new ArrayList<>();

        FixedMemory(Stream stream, BatchShape shape) {
            scope = stream.device().openScope(stream).countedAs(MemoryUse.Holder.BATCHES);
            shares = scope.tensor(DType.FLOAT32, shape.microBatches());
            Tensor scaled = scope.tensor(DType.FLOAT32, shape.microBatches());
            Tensor infinite = scope.tensor(DType.INT32, 1);
            infinite.zero(stream);
            for (int i = 0; i < shape.microBatches(); i++) {
                tokens.add(scope.tensor(DType.INT32, 2, shape.tokensPerMicroBatch()));
                share.add(new DeviceShare(scope.view(shares, i, 1), scope.view(scaled, i, 1), infinite));
            }
        }

        Stream stream() {
            return scope.stream();
        }

        private Tensor tokens(int microBatch) {
            return tokens.get(microBatch);
        }

        private DeviceShare share(int microBatch) {
            return share.get(microBatch);
        }

        @Override
        public void close() {
            share.forEach(DeviceShare::close);
            scope.close();
        }
    }

    StepBucket bucket() {
        return bucket;
    }

    /** Returns INT32 [2, capacity]: ids, then labels. */
    Tensor tokens(int microBatch) {
        return memory.tokens(microBatch);
    }

    /** Returns the share of each micro-batch in the loss, FLOAT32 [most micro-batches]. */
    Tensor shares() {
        return memory.shares;
    }

    Stream stream() {
        return scope.stream();
    }

    /** Enqueues the copy of a micro-batch's offsets, which must stay unchanged until the stream has done it. */
    void setOffsets(int microBatch, MemorySegment source) {
        cuSeqlens.get(microBatch).set(source);
        microBatches.get(microBatch).sequences().follow();
    }

    List<ModelInput> microBatches() {
        return microBatches;
    }

    @Override
    public void close() {
        scope.close();
    }
}
