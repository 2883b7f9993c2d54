package dev.chagres.batch;

import dev.chagres.DType;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.batch.ModelInput.DeviceShare;
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
    final StepBucket bucket;
    private final Scope scope;
    private final FixedMemory memory;
    private final List<CuSeqlens> cuSeqlens = new ArrayList<>();
    final List<ModelInput> microBatches;

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

    @Override
    public void close() {
        scope.close();
    }

    /**
     * The shape that all micro-batches of batches of about one size are padded to, so that one graph serves them all.
     *
     * @param layout of the batch; padded ones have rows of {@code longest} tokens, one for each sequence
     * @param microBatches of the batch
     * @param tokens of each micro-batch, padding included: a multiple of {@link BatchShape#TOKEN_MULTIPLE}
     * @param sequences of each micro-batch, those that pad and empty ones included
     * @param longest tokens that no sequence exceeds
     */
    record StepBucket(BatchLayout layout, int microBatches, int tokens, int sequences, int longest) {
        /** cuDNN's plans are made for a longest sequence rounded up to a multiple of this. */
        static final int LENGTH_MULTIPLE = 128;

        /** Token counts are rounded up to this part of the largest. */
        private static final int PARTS = 8;

        private static final int LEAST_SEQUENCES = 16;

        /** Rows of padded micro-batches, rounded up. */
        static int rows(int count, BatchShape shape) {
            int most = shape.maxSequences();
            return Math.min(most, roundUp(Math.max(count, 1), (most + PARTS - 1) / PARTS));
        }

        static int tokens(int count, BatchShape shape) {
            int most = shape.tokensPerMicroBatch();
            int part = roundUp((most + PARTS - 1) / PARTS, BatchShape.TOKEN_MULTIPLE);
            return Math.min(most, roundUp(Math.max(count, 1), part));
        }

        static int longest(int length, BatchShape shape) {
            return Math.min(Math.max(shape.context(), length), roundUp(Math.max(length, 1), LENGTH_MULTIPLE));
        }

        /**
         * Sequences of micro-batches that are padded to the same tokens, rounded up.
         *
         * @param needed the most that one of them {@linkplain #needed needs}
         */
        static int sequences(int needed) {
            return Math.max(LEAST_SEQUENCES, Integer.highestOneBit(Math.max(1, needed - 1)) << 1);
        }

        /** Sequences of a micro-batch of {@code count} that end at token {@code end} and of padding up to {@code tokens}. */
        static int needed(int count, int end, int tokens, int longest) {
            return count + (tokens - end + longest - 1) / longest;
        }

        private static int roundUp(int count, int multiple) {
            return (count + multiple - 1) / multiple * multiple;
        }

        @Override
        public String toString() {
            return (microBatches == 1 ? "" : microBatches + " micro-batches of ") + tokens + " tokens in " + rows();
        }

        private String rows() {
            if (layout == BatchLayout.PADDED) {
                return sequences + " rows of " + longest;
            }
            return (long) sequences * longest == tokens
                    ? sequences + (sequences == 1 ? " sequence of " : " sequences of exactly ") + longest
                    : "up to " + sequences + " sequences of up to " + longest;
        }
    }
}
