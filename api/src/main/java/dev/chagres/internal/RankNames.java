package dev.chagres.internal;

import java.util.Collection;
import java.util.stream.Collectors;

/**
 * Ranks in a sentence.
 *
 * <p>Threading: thread-safe.
 */
public final class RankNames {
    private RankNames() {}

    /** Returns {@code rank 3} or {@code ranks 1, 3}, in ascending order. */
    public static String of(Collection<Integer> ranks) {
        return (ranks.size() == 1 ? "rank " : "ranks ")
                + ranks.stream().sorted().map(String::valueOf).collect(Collectors.joining(", "));
    }
}
