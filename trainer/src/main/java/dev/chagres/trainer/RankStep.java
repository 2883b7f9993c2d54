package dev.chagres.trainer;

import dev.chagres.nccl.Operation;
import java.util.EnumMap;
import java.util.Map;

/**
 * What one of several ranks says of a step.
 *
 * <p>Threading: immutable.
 *
 * @param rank its number
 * @param millis from the end of its step before to the end of this one, by its device's clock
 * @param bytes what its collectives and transfers have moved, by operation; without those that have moved nothing
 */
public record RankStep(int rank, double millis, Map<Operation, Long> bytes) {
    public RankStep {
        bytes = Map.copyOf(bytes);
    }

    /** Makes one whose bytes lie behind each other from {@code from} on, by the operation's ordinal. */
    static RankStep of(int rank, double millis, long[] numbers, int from) {
        Map<Operation, Long> bytes = new EnumMap<>(Operation.class);
        for (Operation operation : Operation.values()) {
            long moved = numbers[from + operation.ordinal()];
            if (moved > 0) {
                bytes.put(operation, moved);
            }
        }
        return new RankStep(rank, millis, bytes);
    }

    /** Returns the sum over all operations. */
    public long movedBytes() {
        return bytes.values().stream().mapToLong(Long::longValue).sum();
    }
}
