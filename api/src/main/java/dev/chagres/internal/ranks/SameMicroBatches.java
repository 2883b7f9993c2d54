package dev.chagres.internal.ranks;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.nccl.Communicator;
import java.util.function.LongFunction;

/**
 * Compares ranks' numbers of micro-batches, in the first run and in each run in which a rank's own number changes: while none changes, all
 * stay equal.
 *
 * <p>Threading: the device's thread.
 */
public final class SameMicroBatches {
    private static final int UNKNOWN = Integer.MIN_VALUE;

    private final Communicator ranks;
    private final Stream stream;
    private final Tensor own;
    private final Tensor all;
    /** The number of all ranks at the last comparison. */
    private int agreed = UNKNOWN;

    private long[] gathered = new long[0];

    /** Uses a few bytes of {@code memory}, which outlives this: a separate scope would take a whole chunk of device memory. */
    public SameMicroBatches(Scope memory, Communicator ranks, Stream stream) {
        this.ranks = ranks;
        this.stream = stream;
        own = memory.tensor(DType.INT64, 1);
        all = memory.tensor(DType.INT64, ranks.ranks());
    }

    /** Returns whether all ranks have {@code microBatches}; waits for the device unless that is known. */
    public boolean areSame(int microBatches) {
        if (microBatches == agreed || ranks.ranks() == 1) {
            return true;
        }
        agreed = UNKNOWN;
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

    /** Returns which numbers differ, after {@link #areSame} has returned false. */
    public String difference() {
        return difference(Long::toString);
    }

    /** Returns which numbers differ, each formatted by {@code text}. */
    public String difference(LongFunction<String> text) {
        int other = 1;
        while (gathered[other] == gathered[0]) {
            other++;
        }
        return text.apply(gathered[other]) + " on rank " + other + " and " + text.apply(gathered[0]) + " on rank 0";
    }
}
