package dev.chagres.nccl;

import dev.chagres.internal.ScopedLock;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The meetings of communicators that were made from one by splits and shrinks.
 *
 * <p>Threading: thread-safe.
 */
final class SplitCommunicators {
    private final ThreadRanks origin;
    private final Splits splits;
    private final ScopedLock lock = new ScopedLock();
    private final Map<String, ThreadRanks> split = new HashMap<>();
    private final Map<String, ThreadRanks> shrunk = new HashMap<>();

    SplitCommunicators(ThreadRanks origin) {
        this.origin = origin;
        splits = new Splits(origin.ranks);
    }

    List<ThreadRanks> split() {
        return copy(split);
    }

    List<ThreadRanks> shrunk() {
        return copy(shrunk);
    }

    List<ThreadRanks> all() {
        List<ThreadRanks> all = new ArrayList<>(split());
        all.addAll(shrunk());
        return all;
    }

    private List<ThreadRanks> copy(Map<String, ThreadRanks> made) {
        try (var _ = lock.hold()) {
            return List.copyOf(made.values());
        }
    }

    private void forget(Map<String, ThreadRanks> made, String key) {
        try (var _ = lock.hold()) {
            made.remove(key);
        }
    }

    /** Records the arguments of {@code rank} in the split with that number among the collectives. */
    void say(long number, int rank, int color, int key) {
        try (var _ = lock.hold()) {
            splits.say(number, rank, color, key);
        }
    }

    /** Records that a rank was in that split without joining a part. */
    void splitWithoutPart(long number) {
        try (var _ = lock.hold()) {
            var _ = splits.of(number, Integer.MIN_VALUE);
        }
    }

    /** Returns the meeting of the ranks of {@code color} after the split with that number. */
    ThreadRanks split(long number, int color) {
        String key = "split " + number + " color " + color;
        ThreadRanks child;
        try (var _ = lock.hold()) {
            int[] numbers =
                    Arrays.stream(splits.of(number, color)).map(origin::number).toArray();
            child = split.computeIfAbsent(key, _ -> new ThreadRanks(() -> forget(split, key), origin, null, numbers));
        }
        // A failure is reported to existing meetings; an earlier one is reported to this one now.
        RankFailure failure = origin.failure();
        if (failure != null) {
            child.fail(failure);
        }
        return child;
    }

    /** The same for the ranks that remain after others have failed: earlier failures do not end it. */
    ThreadRanks shrink(String key, int... staying) {
        int[] numbers = Arrays.stream(staying).map(origin::number).toArray();
        try (var _ = lock.hold()) {
            return shrunk.computeIfAbsent(key, _ -> new ThreadRanks(() -> forget(shrunk, key), null, origin, numbers));
        }
    }

    /**
     * The arguments of ranks that are threads of one program in splits of a communicator, from which each knows the members of the new ones.
     */
    private static final class Splits {
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
}
