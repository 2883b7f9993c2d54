package dev.chagres.batch;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.HostBuffer;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.batch.FixedInputs.StepBucket;
import dev.chagres.internal.Opened;
import dev.chagres.parallel.ContextParallel;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Memory for the upload of one batch.
 *
 * <p>Threading: the device's thread.
 */
final class UploadSlot implements AutoCloseable {
    private final Stream copies;
    private final Scope scope;
    private final HostBuffer hostTokens;
    private final HostBuffer hostOffsets;
    /** The offsets of each micro-batch, within {@link #hostOffsets}. */
    private final MemorySegment[] offsets;

    private final int[] tokens;
    private final int[] sequences;
    private final int[] longest;
    private final double[] shares;
    /** The most tokens of a micro-batch: places do not depend on the actual number, so that addresses repeat. */
    private final int capacity;
    /** Ids and labels of all micro-batches: INT32 [micro-batches, 2, capacity]. */
    private final Tensor whole;
    /** The ids and labels of each micro-batch: views of {@link #whole}. */
    private final Tensor[] staged;

    /** {@link #shares} on the device for graphs, FLOAT32 [micro-batches], and their host buffer. */
    private final Tensor deviceShares;

    private final HostBuffer hostShares;

    /** The id that is written behind the batch's tokens; negative: none. */
    private final int padding;

    /** The ranks that split the tokens. */
    private final ContextParallel ranks;

    private final Event copied;
    private final Event brought;
    private int microBatches;
    private int next;

    UploadSlot(Device device, Stream copies, BatchShape shape, int padding, ContextParallel ranks) {
        this.padding = padding;
        this.ranks = ranks;
        this.copies = copies;
        int count = shape.microBatches();
        // Room for the padding sequences of a bucket.
        long offsetBytes = Integer.BYTES * (padding < 0 ? shape.maxSequences() + 1L : 2L * shape.maxSequences() + 33);
        offsets = new MemorySegment[count];
        tokens = new int[count];
        sequences = new int[count];
        longest = new int[count];
        shares = new double[count];
        capacity = shape.tokensPerMicroBatch();
        staged = new Tensor[count];
        try (Opened opened = new Opened()) {
            hostTokens = opened.add(HostBuffer.pinned(device, 2L * Integer.BYTES * shape.tokensPerStep()));
            hostOffsets = opened.add(HostBuffer.pinned(device, offsetBytes * count));
            for (int i = 0; i < count; i++) {
                offsets[i] = hostOffsets.segment().asSlice(i * offsetBytes, offsetBytes);
            }
            hostShares = opened.add(HostBuffer.pinned(device, (long) Float.BYTES * count));
            scope = opened.add(device.openScope(copies)).countedAs(MemoryUse.Holder.BATCHES);
            deviceShares = scope.tensor(DType.FLOAT32, count);
            whole = scope.tensor(DType.INT32, count, 2, capacity);
            for (int i = 0; i < count; i++) {
                staged[i] = scope.view(whole, 2L * i * capacity, 2, capacity);
            }
            copied = opened.add(device.openEvent());
            brought = opened.add(device.openEvent());
            opened.keep();
        }
    }

    /** Whether every micro-batch was copied to a model, so that the slot can take another batch. */
    boolean isFree() {
        return next == microBatches;
    }

    /** Returns the number, in its batch, of the micro-batch that {@link #bring} takes next. */
    int number() {
        return next;
    }

    /** Returns how many micro-batches come after the one that {@link #bring} takes next. */
    int following() {
        return microBatches - 1 - next;
    }

    int tokens() {
        return tokens[next];
    }

    boolean isPadded() {
        return padding >= 0;
    }

    /** Returns the number of micro-batches. */
    int microBatches() {
        return microBatches;
    }

    int tokens(int microBatch) {
        return tokens[microBatch];
    }

    int sequences(int microBatch) {
        return sequences[microBatch];
    }

    int longest(int microBatch) {
        return longest[microBatch];
    }

    double share() {
        return shares[next];
    }

    /** Enqueues the copy of a batch, which may change on return. */
    void copy(Batch batch) {
        // Usually done long ago: the data that is overwritten here must have been read.
        copied.synchronize();
        brought.synchronize();
        MemorySegment host = hostTokens.segment();
        for (int i = 0; i < batch.microBatches(); i++) {
            MicroBatch part = batch.microBatch(i);
            int count = Math.toIntExact(ranks.count(part.paddedTokens()));
            long ids = 2L * i * capacity * Integer.BYTES;
            long labels = ids + (long) capacity * Integer.BYTES;
            int labelled = 0;
            long copied = 0;
            for (int chunk = 0; chunk < ranks.chunks(); chunk++) {
                int number = ranks.chunk(ranks.rank(), chunk);
                int first = Math.toIntExact(ranks.chunkBegin(part.paddedTokens(), number));
                int end = Math.toIntExact(ranks.chunkBegin(part.paddedTokens(), number + 1));
                MemorySegment.copy(part.ids(), first, host, ValueLayout.JAVA_INT, ids + copied, end - first);
                MemorySegment.copy(part.labels(), first, host, ValueLayout.JAVA_INT, labels + copied, end - first);
                labelled += labelled(part, first, end);
                copied += (long) (end - first) * Integer.BYTES;
            }
            MemorySegment.copy(part.cuSeqlens(), 0, offsets[i], ValueLayout.JAVA_INT, 0, part.sequences() + 1);
            if (padding >= 0) {
                for (int token = count; token < capacity; token++) {
                    host.set(ValueLayout.JAVA_INT, ids + (long) token * Integer.BYTES, padding);
                    host.set(ValueLayout.JAVA_INT, labels + (long) token * Integer.BYTES, Batch.IGNORED);
                }
            }
            longest[i] = part.longest();
            tokens[i] = count;
            sequences[i] = part.sequences();
            shares[i] = share(batch, i, labelled);
            hostShares.segment().setAtIndex(ValueLayout.JAVA_FLOAT, i, (float) shares[i]);
        }
        whole.copyFrom(copies, hostTokens);
        if (padding >= 0) {
            deviceShares.copyFrom(copies, hostShares);
        }
        copied.record(copies);
        microBatches = batch.microBatches();
        next = 0;
    }

    /** Returns the labelled tokens of a part by those of the whole batch; without such tokens that of the whole micro-batch. */
    private double share(Batch batch, int index, int labelled) {
        long whole = batch.labelledOfStep();
        return ranks.isSplit() && whole != 0 ? (double) labelled / whole : batch.share(index);
    }

    private int labelled(MicroBatch part, int first, int end) {
        int count = 0;
        for (int token = first; ranks.isSplit() && token < end; token++) {
            count += part.labels()[token] == Batch.IGNORED ? 0 : 1;
        }
        return count;
    }

    /**
     * Enqueues, after the upload, the copy of the ids and labels of the next micro-batch into a scope's memory, at the same address for
     * every slot.
     *
     * @return INT32 [2, capacity]: ids, then labels, of which {@link #tokens} count
     */
    Tensor bringTokens(Scope target) {
        target.stream().await(copied);
        Tensor own = target.tensor(DType.INT32, 2, capacity);
        own.copyFrom(target.stream(), staged[next]);
        return own;
    }

    /** Enqueues the copy of the same micro-batch's offsets, some hundred bytes, and goes on to the one after it. */
    void bringOffsets(CuSeqlens cuSeqlens, Scope target) {
        cuSeqlens.set(target, offsets[next], sequences[next]);
        brought.record(target.stream());
        next++;
    }

    /**
     * Enqueues, after the upload, the copy of all micro-batches to fixed addresses, padded to their bucket. They stay the next ones until
     * {@link #advance}.
     */
    void bring(FixedInputs target) {
        Stream stream = target.stream();
        stream.await(copied);
        target.shares().copyFrom(stream, deviceShares);
        for (int i = 0; i < microBatches; i++) {
            pad(i, target.bucket);
            target.tokens(i).copyFrom(stream, staged[i]);
            target.setOffsets(i, offsets[i]);
            target.microBatches.get(i).set(shares[i], microBatches - 1 - i);
        }
        brought.record(stream);
    }

    /** Fills a micro-batch up to its bucket with padding sequences; in padded layouts these are rows with one token. */
    private void pad(int microBatch, StepBucket bucket) {
        MemorySegment all = offsets[microBatch];
        int end = tokens[microBatch];
        for (int i = sequences[microBatch] + 1; i <= bucket.sequences(); i++) {
            end = bucket.layout() == BatchLayout.PADDED
                    ? all.getAtIndex(ValueLayout.JAVA_INT, i - 1) + 1
                    : Math.min(bucket.tokens(), end + bucket.longest());
            all.setAtIndex(ValueLayout.JAVA_INT, i, end);
        }
    }

    /** Goes on to the next batch. */
    void advance() {
        next = microBatches;
    }

    /** Waits for the copies and frees the memory. */
    @Override
    public void close() {
        copied.synchronize();
        brought.synchronize();
        scope.close();
        copied.close();
        brought.close();
        hostShares.close();
        hostOffsets.close();
        hostTokens.close();
    }
}
