package dev.chagres.sharding;

import dev.chagres.Stream;
import dev.chagres.internal.Opened;
import dev.chagres.internal.ranks.SameMicroBatches;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.Parameters;
import java.util.Arrays;

/**
 * Checks that ranks with sharded weights compute equally many micro-batches in a step. Their numbers are compared before the sums of a step
 * are used, unless this rank's number is that of the previous step. The comparison has its own stream and communicator, so that it does not
 * wait on the device behind a call of another micro-batch.
 *
 * <p>Ranks whose host waits in each collective do not reach this check: their exceptions say so.
 *
 * <p>Threading: the device's thread.
 */
final class EqualMicroBatches implements AutoCloseable {
    private static final String WITHOUT_SEQUENCES =
            "let a rank without sequences compute one token without a label (see Strategy.needsEqualMicroBatches)";

    private final Communicator ranks;
    private final Stream stream;
    private final SameMicroBatches same;
    /** By group: how often backward has completed it in this step. */
    private final int[] completed;

    private int count;

    EqualMicroBatches(Communicator among, Parameters parameters) {
        try (Opened opened = new Opened()) {
            ranks = opened.add(among.split(
                    0,
                    among.rank(),
                    among.config().withName("micro-batches").withMinCtas(0).withMaxCtas(1)));
            stream = opened.add(parameters.scope().device().openStream());
            same = new SameMicroBatches(parameters.scope(), ranks, stream);
            opened.keep();
        }
        completed = new int[parameters.access().groups().size()];
    }

    /**
     * Says that backward of a micro-batch has completed a group. A micro-batch may leave groups out, so the highest count of any group is
     * the number of micro-batches.
     */
    void completed(int group) {
        count = Math.max(count, ++completed[group]);
    }

    /** A step begins, or its gradients are forgotten. */
    void restart() {
        Arrays.fill(completed, 0);
        count = 0;
    }

    /**
     * Compares the ranks' numbers.
     *
     * @throws IllegalStateException on each rank that compares them, when they differ
     */
    void ensureSame() {
        if (!same.areSame(count)) {
            throw new IllegalStateException("sumGradients: expected equally many micro-batches on all ranks, which"
                    + " gather weights from each other, got " + same.difference() + "; " + WITHOUT_SEQUENCES);
        }
    }

    /** Returns {@code failed}, with the likely reason if ranks have waited for each other in vain. */
    RankFailedException explained(RankFailedException failed) {
        if (failed.getCause() != null || ranks.ranks() == 1) {
            return failed;
        }
        RankFailedException explained = new RankFailedException(
                failed.getMessage()
                        + "; in ZeRO stage 3 all ranks must call the same layers, in evaluation too, and compute equally many"
                        + " micro-batches in a step; rank " + ranks.rank() + " has completed " + count
                        + ": compare the other ranks; "
                        + WITHOUT_SEQUENCES,
                failed,
                null);
        explained.setStackTrace(failed.getStackTrace());
        return explained;
    }

    @Override
    public void close() {
        stream.close();
        ranks.close();
    }
}
