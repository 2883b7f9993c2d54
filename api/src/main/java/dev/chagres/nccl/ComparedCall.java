package dev.chagres.nccl;

import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * One rank's announcement of a call, which ranks compare.
 *
 * <p>Threading: immutable.
 *
 * @param key the same on each rank that calls it, and that of no other call of the communicator
 * @param title stands in the error
 * @param said what this rank calls
 * @param callers ranks that call it, in the order of the error
 */
record ComparedCall(String key, String title, String said, List<Integer> callers) {
    /** Throws if the callers' announcements differ; {@code all} is in their order. */
    void refuseDifference(List<@Nullable String> all) {
        boolean differs = false;
        StringBuilder text = new StringBuilder(title).append(": expected the same call on every rank, got ");
        for (int i = 0; i < all.size(); i++) {
            String one = all.get(i);
            differs |= one == null || !one.equals(all.getFirst());
            text.append(i == 0 ? "" : "; ")
                    .append("rank ")
                    .append(callers.get(i))
                    .append(": ")
                    .append(one);
        }
        if (differs) {
            throw new IllegalStateException(text.toString());
        }
    }
}
