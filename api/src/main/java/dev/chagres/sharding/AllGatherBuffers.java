package dev.chagres.sharding;

import dev.chagres.Event;
import dev.chagres.Stream;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.Parameters;
import dev.chagres.sharding.FlatBufferPool.Buffer;

/**
 * Weights of groups in one form, gathered on a separate stream into buffers that groups share in turn, or that each keeps until weights
 * change.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class AllGatherBuffers implements AutoCloseable permits UnshardedGroups, QuantizedGroups {
    /** One is read while the other is gathered. */
    private static final int BUFFERS = 2;

    final Communicator communicator;
    final Stream compute;
    final Stream gathers;
    /** On the computing stream: the shards have been updated by the last step. */
    final Event stepped;

    final FlatBufferPool buffers;
    final ByteCounts bytes;

    AllGatherBuffers(Parameters parameters, FlatBufferContent content, GatherStreams streams, ByteCounts bytes) {
        communicator = streams.ranks().communicator;
        compute = streams.compute();
        gathers = streams.gathers();
        stepped = streams.stepped();
        this.bytes = bytes;
        buffers = new FlatBufferPool(
                parameters,
                content,
                streams.reshard() == Reshard.AFTER_STEP ? Integer.MAX_VALUE : BUFFERS,
                streams.ranks().windows());
    }

    /**
     * Makes the computing stream wait for the weights of {@code group}, which stay until {@link #release}. If it throws, nothing is held.
     */
    final void use(int group) {
        Buffer buffer = buffers.held(group);
        if (buffer == null) {
            buffer = buffers.take(group);
            gather(group, buffer);
        }
        if (!buffer.awaited) {
            compute.await(buffer.ready);
            buffer.awaited = true;
        }
        buffer.pins++;
    }

    /** Prefetches the group that will be used next, if a buffer is idle. */
    final void prefetch(int group) {
        if (buffers.held(group) == null) {
            Buffer idle = buffers.takeIdle(group);
            if (idle != null) {
                gather(group, idle);
            }
        }
    }

    private void gather(int group, Buffer buffer) {
        boolean done = false;
        try {
            gathers.await(buffer.free);
            gathers.await(stepped);
            enqueue(group, buffer);
            buffer.ready.record(gathers);
            done = true;
        } finally {
            if (!done) {
                // It holds another group's weights, or a part of this one's.
                buffers.takeBack(buffer);
            }
        }
    }

    /** Enqueues the gather of a group. */
    abstract void enqueue(int group, Buffer buffer);

    /** Records that a call has enqueued all reads of the weights of {@code group}. */
    final void release(int group) {
        Buffer buffer = buffers.held(group);
        if (buffer != null && buffer.pins > 0 && --buffer.pins == 0) {
            buffer.free.record(compute);
            buffers.release(buffer);
        }
    }

    /** Marks gathered weights as outdated. */
    final void changed() {
        buffers.takeBackAll();
    }

    long byteSize() {
        return buffers.byteSize();
    }

    @Override
    public void close() {
        buffers.close();
    }

    /**
     * The streams and memory of gathers.
     *
     * @param ranks that have a part each
     * @param compute the stream of layers
     * @param gathers the stream on which weights travel
     * @param stepped recorded on the stream of layers once the parts were written
     * @param reshard when gathered weights are resharded
     */
    record GatherStreams(GatherRanks ranks, Stream compute, Stream gathers, Event stepped, Reshard reshard) {}
}
