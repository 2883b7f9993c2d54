package dev.chagres.nccl;

import dev.chagres.internal.Checks;
import java.io.Serial;
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

    /** Says what happened, to which ranks, and what they threw where that is known. */
    public RankFailedException(String message, List<Integer> ranks, @Nullable Throwable cause) {
        super(message, cause);
        this.ranks = Checks.givenAll("ranks", ranks);
    }

    /**
     * Returns the ranks that failed or did not come, as the communicator numbers them that this one was split from; empty when nobody
     * knows.
     */
    public List<Integer> ranks() {
        return ranks;
    }
}
