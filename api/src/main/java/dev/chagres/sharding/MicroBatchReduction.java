package dev.chagres.sharding;

import dev.chagres.Stream;
import dev.chagres.internal.Opened;
import dev.chagres.internal.ranks.SameMicroBatches;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.Parameters;
import dev.chagres.sharding.ShardedGradients.MicroBatch;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * Reduces the gradients of each micro-batch, or of the last one of a step, as their {@link GradientSync} says, and checks that all ranks
 * compute equally many if they must.
 *
 * <p>Threading: the device's thread.
 *
 * @param equal null if ranks may compute different numbers of micro-batches
 */
record MicroBatchReduction(
        ShardedGradients gradients,
        GradientSync sync,
        @Nullable EqualMicroBatches equal) implements AutoCloseable {
    /** A step begins, or its gradients are forgotten. */
    void restart() {
        if (equal != null) {
            equal.restart();
        }
        gradients.restart();
    }

    /** Backward of a micro-batch has completed the gradients of a group. */
    void complete(int group, MicroBatch which) {
        if (which == MicroBatch.LAST || sync == GradientSync.EACH_MICRO_BATCH) {
            try {
                gradients.complete(group, which);
            } catch (RankFailedException failed) {
                throw explained(failed);
            }
        }
        if (equal != null) {
            equal.completed(group);
        }
    }

    /** Enqueues the step's remaining sums. */
    void finish() {
        try {
            if (equal != null) {
                equal.ensureSame();
            }
            gradients.finish();
        } catch (RankFailedException failed) {
            throw explained(failed);
        }
    }

    /** Returns {@code failed}, with different numbers of micro-batches as reason if that is likely. */
    RankFailedException explained(RankFailedException failed) {
        return equal == null ? failed : equal.explained(failed);
    }

    @Override
    public void close() {
        gradients.close();
        if (equal != null) {
            equal.close();
        }
    }

    /**
     * Checks that ranks with sharded weights compute equally many micro-batches in a step. Their numbers are compared before the sums of a step
     * are used, unless this rank's number is that of the previous step. The comparison has its own stream and communicator, so that it does not
     * wait on the device behind a call of another micro-batch.
     *
     * <p>Ranks whose host waits in each collective do not reach this check: their exceptions say so.
     */
    static final class EqualMicroBatches implements AutoCloseable {
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
}
