package dev.chagres.nccl;

import dev.chagres.internal.Checks;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Why the ranks of a communicator cannot go on.
 *
 * <p>Threading: immutable.
 *
 * @param ranks those that failed or did not come; empty when nobody knows
 * @param text what happened
 * @param cause what the rank threw, or null
 * @param records the files of what ranks have called before, or null
 */
record RankFailure(
        List<Integer> ranks,
        String text,
        @Nullable Throwable cause,
        @Nullable FailureRecords records) {
    RankFailure(List<Integer> ranks, String text, @Nullable Throwable cause) {
        this(ranks, text, cause, null);
    }

    static RankFailure thrown(int rank, Throwable cause) {
        return new RankFailure(List.of(rank), "rank " + rank + " failed: " + Checks.describe(cause), cause);
    }

    /** What {@code waiting} throws when others did not come in time. */
    static RankFailure late(String waiting, List<Integer> missing, long timeoutMillis) {
        String who = missing.isEmpty()
                ? "every rank that is known here has called it, and it did not complete"
                : names(missing) + " did not come";
        return new RankFailure(missing, waiting + " waited " + timeoutMillis + " ms: " + who, null);
    }

    static String names(List<Integer> ranks) {
        StringBuilder text = new StringBuilder(ranks.size() == 1 ? "rank " : "ranks ");
        for (int i = 0; i < ranks.size(); i++) {
            text.append(i == 0 ? "" : ", ").append(ranks.get(i));
        }
        return text.toString();
    }

    /** Returns the same with the files of these ranks, which it begins to write where the user wants them. */
    RankFailure recorded(List<Endpoint> endpoints) {
        if (records != null) {
            return this;
        }
        List<FlightRecorder> recorders =
                endpoints.stream().map(Endpoint::recorder).distinct().toList();
        return new RankFailure(ranks, text, cause, FailureRecords.begin(recorders, text));
    }

    RankFailedException exception() {
        return new RankFailedException(records == null ? text : text + "; " + records.note(), ranks, cause);
    }
}
