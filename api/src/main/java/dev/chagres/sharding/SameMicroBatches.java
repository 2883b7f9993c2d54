package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.nccl.Communicator;

/**
 * Compares the numbers of micro-batches of a pipeline's ranks, in the first run and in each run in which a rank's own number is another
 * one than before: while none changes, all stay the same.
 *
 * <p>Threading: the device's thread.
 */
final class SameMicroBatches implements AutoCloseable {
    private final Communicator ranks;
    private final Stream stream;
    private final Scope scope;
    private final Tensor own;
    private final Tensor all;
    /** The number that all ranks had when they were compared last; 0 where it is not known. */
    private int agreed;

    private long[] gathered = new long[0];

    SameMicroBatches(Communicator ranks, Stream stream) {
        this.ranks = ranks;
        this.stream = stream;
        scope = stream.device().openScope(stream);
        own = scope.tensor(DType.INT64, 1);
        all = scope.tensor(DType.INT64, ranks.ranks());
    }

    /** Returns whether all ranks have {@code microBatches}; waits for the device where that is not known. */
    boolean areSame(int microBatches) {
        if (microBatches == agreed || ranks.ranks() == 1) {
            return true;
        }
        agreed = 0;
        own.set(stream, (long) microBatches);
        ranks.allGather(own, all, stream);
        ranks.synchronize(stream);
        gathered = all.toLongs(stream);
        for (long number : gathered) {
            if (number != gathered[0]) {
                return false;
            }
        }
        agreed = microBatches;
        return true;
    }

    /** Returns what to throw on ranks that are not the same. */
    IllegalArgumentException refusal() {
        int other = 1;
        while (gathered[other] == gathered[0]) {
            other++;
        }
        return new IllegalArgumentException("microBatches: expected the same on all ranks of the pipeline, got "
                + gathered[other] + " on rank " + other + " and " + gathered[0] + " on rank 0");
    }

    @Override
    public void close() {
        scope.close();
    }
}
