package dev.chagres.nccl;

import dev.chagres.internal.Checks;
import java.io.Serial;
import java.time.Duration;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Another rank failed, or did not come to a collective within the communicator's timeout. The communicator can only be closed or
 * shrunk.
 *
 * <p>Threading: immutable.
 */
public final class RankFailedException extends RuntimeException {
    @Serial
    private static final long serialVersionUID = 1;

    private final List<Integer> ranks;
    private final @Nullable String collective;
    private final @Nullable Duration waited;

    /** Says what happened, to which ranks, and what they threw where that is known. */
    public RankFailedException(String message, List<Integer> ranks, @Nullable Throwable cause) {
        this(message, ranks, null, null, cause);
    }

    /**
     * Says, too, in which collective that was.
     *
     * @param collective that a rank waited in, or had called last; null where there was none
     * @param waited how long the rank had waited in it, or how long ago it had called it; null where that is not known
     */
    public RankFailedException(
            String message,
            List<Integer> ranks,
            @Nullable String collective,
            @Nullable Duration waited,
            @Nullable Throwable cause) {
        super(message, cause);
        this.ranks = Checks.givenAll("ranks", ranks);
        this.collective = collective;
        this.waited = waited;
    }

    /** Says {@code message} of what {@code known} says: the same ranks, collective and time. */
    public RankFailedException(String message, RankFailedException known, @Nullable Throwable cause) {
        this(message, Checks.given("known", known).ranks, known.collective, known.waited, cause);
    }

    /**
     * Returns the ranks that failed or did not come, as the communicator numbers them that this one was split from; empty when nobody
     * knows.
     */
    public List<Integer> ranks() {
        return ranks;
    }

    /**
     * Returns the collective or transfer that this rank was in, or had called last, as {@code allReduce of 4 FLOAT32, SUM}; where ranks did
     * not come in time, that of the rank whose time was up first. Null of a rank that had called none, and where the failure is none of a
     * collective.
     */
    public @Nullable String collective() {
        return collective;
    }

    /**
     * Returns how long the rank had waited in {@link #collective()}; where it was not in it any more, the time since it had called it.
     * Null where there is no collective, or its time is not known.
     */
    public @Nullable Duration waited() {
        return waited;
    }
}
