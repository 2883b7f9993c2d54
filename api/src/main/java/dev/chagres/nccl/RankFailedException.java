package dev.chagres.nccl;

import dev.chagres.internal.Checks;
import java.io.Serial;
import java.time.Duration;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Another rank failed, or did not call a collective within the communicator's timeout, or a thread was interrupted while it waited for other ranks. The
 * communicator can only be closed or shrunk.
 *
 * <p>Threading: immutable.
 */
public final class RankFailedException extends RuntimeException {
    @Serial
    private static final long serialVersionUID = 1;

    private final List<Integer> ranks;
    private final @Nullable String collective;
    private final @Nullable Duration waited;

    /** Makes an exception with a message, the failed ranks, and their exception as cause if that is known. */
    public RankFailedException(String message, List<Integer> ranks, @Nullable Throwable cause) {
        this(message, ranks, null, null, cause);
    }

    /**
     * Also takes the collective and the time waited.
     *
     * @param collective that a rank waited in, or had called last; null if there was none
     * @param waited how long the rank had waited in it, or how long ago it had called it; null if that is not known
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

    /** Makes an exception with another message and the ranks, collective and time of {@code known}. */
    public RankFailedException(String message, RankFailedException known, @Nullable Throwable cause) {
        this(message, Checks.given("known", known).ranks, known.collective, known.waited, cause);
    }

    /**
     * Returns the ranks that failed or did not call the collective, as numbered in the communicator from which this one was split; empty if
     * they are not known.
     */
    public List<Integer> ranks() {
        return ranks;
    }

    /**
     * Returns the collective or transfer that this rank was in, or had called last, as {@code allReduce of 4 FLOAT32, SUM}; after a
     * timeout, the collective of the rank whose time was up first. Null if the rank had called none, and if the failure did not concern a
     * collective.
     */
    public @Nullable String collective() {
        return collective;
    }

    /**
     * Returns how long the rank had waited in {@link #collective()}, or, if it was no longer in it, the time since the call. Null if there
     * is no collective, or its time is not known.
     */
    public @Nullable Duration waited() {
        return waited;
    }
}
