package dev.chagres.samples.train;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.samples.data.Batch;
import dev.chagres.samples.data.BatchShape;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * A batch on its way to the device: copied from pinned memory, on a stream of its own, while a step runs on another.
 *
 * <p>Its memory may be filled again once the step that read it is done.
 *
 * <p>Threading: the device's thread.
 */
final class BatchUpload implements AutoCloseable {
    private final Stream stream;
    private final Scope scope;
    private final HostBuffer hostTokens;
    private final HostBuffer hostOffsets;
    private final Event copied;
    private int sequences;
    private @Nullable Tensor tokens;

    /**
     * Takes pinned memory for the largest batch.
     *
     * @param stream copies; another one than that of the steps
     */
    BatchUpload(Device device, Stream stream, BatchShape shape) {
        this.stream = stream;
        hostTokens = HostBuffer.pinned(device, 8L * shape.tokensPerStep());
        hostOffsets = HostBuffer.pinned(device, 4L * (shape.maxSequences() + 1));
        copied = device.openEvent();
        scope = device.openScope(stream);
    }

    /** Enqueues the copy of a batch, which may change on return. */
    void copy(Batch batch) {
        int count = batch.paddedTokens();
        MemorySegment host = hostTokens.segment();
        MemorySegment.copy(batch.ids(), 0, host, ValueLayout.JAVA_INT, 0, count);
        MemorySegment.copy(batch.labels(), 0, host, ValueLayout.JAVA_INT, 4L * count, count);
        sequences = batch.sequences();
        MemorySegment.copy(batch.cuSeqlens(), 0, hostOffsets.segment(), ValueLayout.JAVA_INT, 0, sequences + 1);
        scope.restart();
        Tensor staged = scope.tensor(DType.INT32, 2L * count);
        staged.copyFrom(stream, hostTokens);
        copied.record(stream);
        tokens = staged;
    }

    /**
     * Enqueues, behind the copy, what brings ids and labels into a step's own memory, where they lie at the same place
     * whichever upload they came from.
     *
     * @return INT32 [2 T]: ids, then labels
     */
    Tensor tokens(Scope step) {
        Tensor staged = tokens;
        if (staged == null) {
            throw new IllegalStateException("no batch was uploaded yet");
        }
        step.stream().await(copied);
        Tensor own = step.like(staged);
        own.copyFrom(step.stream(), staged);
        return own;
    }

    /** Enqueues a copy of the sequences' offsets, some hundred bytes, into a step's own memory. */
    CuSeqlens cuSeqlens(Scope step) {
        return CuSeqlens.copyOf(step, hostOffsets.segment(), sequences);
    }

    @Override
    public void close() {
        scope.close();
        copied.close();
        hostOffsets.close();
        hostTokens.close();
    }
}
