package dev.chagres.sharding;

import dev.chagres.Event;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.layer.PassObserver.Direction;
import dev.chagres.model.GroupPiece;
import dev.chagres.model.Parameters;
import dev.chagres.nccl.Communicator;
import dev.chagres.sharding.GroupBuffers.Buffer;
import dev.chagres.sharding.GroupBuffers.Content;
import java.util.ArrayList;
import java.util.List;

/**
 * Weights of which each rank keeps a part: a group is gathered, on a stream and with a communicator of their own, into the memory that
 * its layers read, and the next group while they run.
 *
 * <p>Threading: the device's thread.
 */
final class ShardedWeights implements AutoCloseable {
    /** One is read while the other is gathered. */
    private static final int BUFFERS = 2;

    private final Communicator communicator;
    private final Stream compute;
    private final Stream gathers;
    private final Event stepped;
    private final GroupBuffers buffers;
    /** By group, this rank's part of each piece. */
    private final List<List<Tensor>> parts = new ArrayList<>();

    private final ByteCounts bytes;

    ShardedWeights(Parameters parameters, Communicator communicator, ByteCounts bytes) {
        this.bytes = bytes;
        this.communicator = communicator;
        Scope scope = parameters.scope();
        compute = scope.stream();
        gathers = compute.device().openStream();
        stepped = compute.device().openEvent();
        stepped.record(compute);
        buffers = new GroupBuffers(parameters, Content.WEIGHTS, BUFFERS);
        int ranks = communicator.ranks();
        for (int group = 0; group < parameters.sharing().groups().size(); group++) {
            List<Tensor> own = new ArrayList<>();
            for (GroupPiece piece : buffers.pieces(group)) {
                Tensor vector = parameters.sharing().vector(piece.dtype());
                own.add(scope.view(vector, piece.weightOffset() / ranks, piece.count() / ranks));
            }
            parts.add(own);
        }
        buffers.lendAll();
    }

    /** Lets the computing stream wait for the weights of {@code group}, and gathers what comes next. */
    void use(int group, Direction direction) {
        Buffer buffer = buffers.held(group);
        if (buffer == null) {
            buffer = buffers.take(group);
            gather(group, buffer);
        }
        buffer.pins++;
        if (!buffer.awaited) {
            buffer.awaited = true;
            compute.await(buffer.ready);
        }
        int next = direction == Direction.FORWARD ? group + 1 : group - 1;
        if (next >= 0 && next < parts.size() && buffers.held(next) == null) {
            Buffer idle = buffers.takeIdle(next);
            if (idle != null) {
                gather(next, idle);
            }
        }
    }

    private void gather(int group, Buffer buffer) {
        gathers.await(buffer.free);
        gathers.await(stepped);
        List<Tensor> own = parts.get(group);
        for (int i = 0; i < own.size(); i++) {
            communicator.allGather(own.get(i), buffer.vector(i), gathers);
            bytes.allGather(buffer.vector(i));
        }
        buffer.ready.record(gathers);
    }

    /** Says that a call has enqueued all that reads the weights of {@code group}. */
    void release(int group) {
        Buffer buffer = buffers.held(group);
        if (buffer != null && --buffer.pins == 0) {
            buffer.free.record(compute);
            buffers.letGo(buffer);
        }
    }

    /** Says that the parts were written: what was gathered is old. */
    void changed() {
        stepped.record(compute);
        buffers.takeBackAll();
    }

    long byteSize() {
        return buffers.byteSize();
    }

    @Override
    public void close() {
        gathers.close();
        stepped.close();
        buffers.close();
    }
}
