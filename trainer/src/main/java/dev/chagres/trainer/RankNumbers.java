package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.nccl.Communicator;

/**
 * Tells every rank a few numbers of all others, where ranks are processes. It has a stream and a communicator of its own, so that it does
 * not wait for the steps that are under way.
 *
 * <p>Threading: the device's thread.
 */
final class RankNumbers implements AutoCloseable {
    private final Communicator communicator;
    private final Stream stream;
    private final Scope scope;
    private final Tensor own;
    private final Tensor all;

    /** Makes what gathers {@code count} numbers of each rank; every rank does. */
    RankNumbers(Rank rank, int count) {
        communicator = rank.communicator()
                .split(0, rank.index(), rank.communicator().config().withName("numbers"));
        stream = rank.device().openStream();
        scope = rank.device().openScope(stream);
        own = scope.tensor(DType.INT64, count);
        all = scope.tensor(DType.INT64, (long) count * rank.count());
    }

    /** Returns the numbers of all ranks, in their order; every rank calls it. */
    long[] gather(long... numbers) {
        own.set(stream, numbers);
        communicator.allGather(own, all, stream);
        communicator.synchronize(stream);
        return all.toLongs(stream);
    }

    @Override
    public void close() {
        scope.close();
        stream.close();
        communicator.close();
    }
}
