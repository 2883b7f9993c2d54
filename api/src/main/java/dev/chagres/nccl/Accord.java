package dev.chagres.nccl;

import java.util.Collection;
import java.util.Collections;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.function.IntPredicate;
import org.jspecify.annotations.Nullable;

/**
 * One agreement of ranks that are threads of one program. The remaining ranks are decided once.
 *
 * <p>Threading: under the lock of the {@link ThreadRanks}.
 */
final class Accord {
    /** Ranks that may take part: all, or those of the previous accord. */
    private final Collection<Integer> expected;

    private final SortedMap<Integer, Long> came = new TreeMap<>();
    private @Nullable SortedMap<Integer, Long> decided;

    Accord(Collection<Integer> expected) {
        this.expected = expected;
    }

    void come(int rank, long value) {
        if (decided == null && expected.contains(rank)) {
            came.put(rank, value);
        }
    }

    /** Returns whether {@code rank} has come, or is one of those that are left. */
    boolean has(int rank) {
        return came.containsKey(rank);
    }

    /** Decides when no further rank will come; returns whether it is decided. */
    boolean decide(IntPredicate isGone) {
        if (decided == null && expected.stream().allMatch(rank -> came.containsKey(rank) || isGone.test(rank))) {
            decideNow();
        }
        return decided != null;
    }

    /** Decides that the ranks that have come remain. */
    SortedMap<Integer, Long> decideNow() {
        SortedMap<Integer, Long> present = decided;
        if (present == null) {
            present = Collections.unmodifiableSortedMap(new TreeMap<>(came));
            decided = present;
        }
        return present;
    }
}
