package dev.chagres.spark;

import java.io.Serializable;
import java.util.List;

/**
 * What a rank tells the driver.
 *
 * <p>Threading: immutable.
 *
 * @param rank from 0 to N - 1
 * @param executor of Spark, in which the rank ran
 * @param sequences that its partition had, each of which it has taken once
 * @param losses of each step, this rank's part; the parts of all ranks add up
 * @param gradNorms of each step, of the gradients of all ranks, before clipping
 */
public record RankReport(int rank, String executor, long sequences, List<Double> losses, List<Double> gradNorms)
        implements Serializable {
    /** Copies the lists. */
    public RankReport {
        losses = List.copyOf(losses);
        gradNorms = List.copyOf(gradNorms);
    }
}
