package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The arguments of ranks that are threads of one program in splits of a communicator, from which each knows the members of the new ones.
 *
 * <p>Threading: under the lock of the {@link ThreadRanks}.
 */
final class Splits {
    private final int ranks;
    private final Map<Long, Split> open = new HashMap<>();

    /** A rank's arguments. */
    private record Said(int rank, int color, int key) {}

    private static final class Split {
        private final List<Said> said = new ArrayList<>();
        private int read;
    }

    Splits(int ranks) {
        this.ranks = ranks;
    }

    /** Records the arguments of {@code rank} in the split with that number among the communicator's collectives. */
    void say(long number, int rank, int color, int key) {
        open.computeIfAbsent(number, _ -> new Split()).said.add(new Said(rank, color, key));
    }

    /** Returns the ranks of {@code color}, in their order in the new communicator; each rank asks once, after all have said it. */
    int[] of(long number, int color) {
        Split split = open.get(number);
        if (split == null) {
            throw new IllegalStateException("split " + number + " was not said by any rank");
        }
        if (++split.read == ranks) {
            open.remove(number);
        }
        return split.said.stream()
                .filter(one -> one.color == color)
                .sorted(Comparator.comparingInt(Said::key).thenComparingInt(Said::rank))
                .mapToInt(Said::rank)
                .toArray();
    }
}
