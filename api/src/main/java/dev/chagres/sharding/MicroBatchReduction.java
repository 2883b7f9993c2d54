package dev.chagres.sharding;

import dev.chagres.nccl.RankFailedException;
import dev.chagres.sharding.ShardedGradients.MicroBatch;
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
}
