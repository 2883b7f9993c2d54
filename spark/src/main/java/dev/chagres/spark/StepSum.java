package dev.chagres.spark;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import java.lang.foreign.ValueLayout;

/**
 * Adds up a number of each rank, on the host. It has a stream and a communicator of its own, so that it does not wait for the step that
 * is under way.
 *
 * <p>Threading: the device's thread.
 */
final class StepSum implements AutoCloseable {
    private final Communicator communicator;
    private final Stream stream;
    private final Scope scope;
    private final Tensor number;
    private final HostBuffer host;

    /** Makes what adds up; every rank does. */
    StepSum(Rank rank) {
        communicator = rank.communicator()
                .split(0, rank.index(), rank.communicator().config().withName("sums"));
        stream = rank.device().openStream();
        scope = rank.device().openScope(stream);
        number = scope.tensor(DType.INT64, 1);
        host = HostBuffer.pinned(rank.device(), Long.BYTES);
    }

    /** Returns the sum over all ranks; every rank calls it. */
    long of(long own) {
        host.segment().set(ValueLayout.JAVA_LONG, 0, own);
        number.copyFrom(stream, host);
        communicator.allReduce(number, number, Reduction.SUM, stream);
        number.copyTo(stream, host);
        communicator.synchronize(stream);
        return host.segment().get(ValueLayout.JAVA_LONG, 0);
    }

    @Override
    public void close() {
        host.close();
        scope.close();
        stream.close();
        communicator.close();
    }
}
