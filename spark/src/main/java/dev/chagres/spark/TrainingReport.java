package dev.chagres.spark;

import java.util.List;
import java.util.stream.IntStream;

/**
 * What a barrier stage has done.
 *
 * <p>Threading: immutable.
 *
 * @param ranks in their order
 */
public record TrainingReport(List<RankReport> ranks) {
    /** Copies the list. */
    public TrainingReport {
        ranks = List.copyOf(ranks);
    }

    /** Returns the loss of each step: the mean over the labelled tokens of all ranks. */
    public List<Double> losses() {
        return IntStream.range(0, ranks.getFirst().losses().size())
                .mapToObj(step -> ranks.stream()
                        .mapToDouble(rank -> rank.losses().get(step))
                        .sum())
                .toList();
    }

    /** Returns the norm of the gradients of each step, before clipping. */
    public List<Double> gradNorms() {
        return ranks.getFirst().gradNorms();
    }

    /** Returns how many sequences all ranks have taken. */
    public long sequences() {
        return ranks.stream().mapToLong(RankReport::sequences).sum();
    }
}
