package dev.chagres.trainer;

import dev.chagres.nccl.Operation;
import java.util.EnumMap;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * Sums over the steps of one of several ranks.
 *
 * <p>Threading: one thread at a time.
 */
final class RankTotals {
    private static final long KIB = 1024;

    private final int rank;
    private final Map<Operation, Long> bytes = new EnumMap<>(Operation.class);
    private double millis;

    RankTotals(int rank) {
        this.rank = rank;
    }

    void add(RankStep step) {
        millis += step.millis();
        step.bytes().forEach((operation, moved) -> bytes.merge(operation, moved, Long::sum));
    }

    int rank() {
        return rank;
    }

    /** Says how long the steps took, and what was moved: {@code rank 0: 1.5 s, allReduce 12.0 MiB}. */
    @Override
    public String toString() {
        String moved = bytes.entrySet().stream()
                .map(entry -> ", " + entry.getKey() + " " + size(entry.getValue()))
                .collect(Collectors.joining());
        return String.format(Locale.ROOT, "rank %d: %.1f s%s", rank, millis / 1e3, moved);
    }

    /** Returns a number of bytes in a unit of which it has at least one. */
    private static String size(long bytes) {
        if (bytes < KIB) {
            return bytes + " B";
        }
        return bytes < KIB * KIB
                ? String.format(Locale.ROOT, "%,.1f KiB", bytes / (double) KIB)
                : String.format(Locale.ROOT, "%,.1f MiB", bytes / (double) (KIB * KIB));
    }
}
