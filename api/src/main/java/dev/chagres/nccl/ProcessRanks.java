package dev.chagres.nccl;

import dev.chagres.internal.ScopedLock;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * The state of ranks in other processes: the communicators that a rank shares with them, and which of them failed.
 *
 * <p>Threading: thread-safe.
 */
final class ProcessRanks {
    /** How long a rank that NCCL gave an error waits to be told why: NCCL may notice it before the others have said whose it was. */
    private static final long WORD_NANOS = TimeUnit.SECONDS.toNanos(1);

    private static final char SEPARATOR = ' ';

    private static final long PAUSE_NANOS = TimeUnit.MILLISECONDS.toNanos(1);

    /** A process that failed. */
    record Failed(int process, Throwable cause) {}

    private final ScopedLock lock = new ScopedLock();
    private final List<Endpoint> endpoints = new ArrayList<>();
    /** The announced calls of ranks in other processes. */
    final PeerCalls calls = new PeerCalls();

    private @Nullable Failed failed;
    private volatile @Nullable Function<String, List<Integer>> asking;
    private volatile @Nullable PeerAgreement agreeing;
    /** The latest decision, until a communicator is made of it. */
    private PeerAgreement.@Nullable Outcome decided;

    void add(Endpoint endpoint) {
        try (var _ = lock.hold()) {
            endpoints.add(endpoint);
        }
    }

    /** Forgets a communicator, and what other ranks have said about communicators that they split from it. */
    void remove(Endpoint endpoint) {
        Set<String> open = new HashSet<>();
        try (var _ = lock.hold()) {
            endpoints.remove(endpoint);
            for (Endpoint other : endpoints) {
                PeerPlace known = other.elsewhere;
                if (known != null) {
                    open.add(known.name());
                }
            }
        }
        calls.forgetIf(key -> PeerComparisons.isUnwanted(key, open));
    }

    /** Sets the function that finds out which ranks are behind. */
    void askThrough(Function<String, List<Integer>> asked) {
        asking = asked;
    }

    /** Sets the agreement on the remaining ranks. */
    void agreeThrough(PeerAgreement agreed) {
        agreeing = agreed;
    }

    /** Returns the remaining ranks; null without an agreement. */
    PeerAgreement.@Nullable Outcome agree(PeerAgreement.Proposal proposal) {
        PeerAgreement present = agreeing;
        PeerAgreement.Outcome outcome = present == null ? null : present.agree(proposal);
        try (var _ = lock.hold()) {
            decided = outcome;
        }
        return outcome;
    }

    /** Returns the latest decision once, if those processes remain in it; else null. */
    PeerAgreement.@Nullable Outcome takeDecided(List<Integer> left) {
        try (var _ = lock.hold()) {
            PeerAgreement.Outcome present = decided;
            if (present == null || !List.copyOf(present.left().keySet()).equals(left)) {
                return null;
            }
            decided = null;
            return present;
        }
    }

    /** Forgets failures before the decision on the remaining ranks. */
    void goOn() {
        try (var _ = lock.hold()) {
            failed = null;
        }
    }

    /**
     * Returns the processes that keep this rank waiting, as far as they can be found out.
     *
     * @param name of the communicator in which it waits
     * @param question what it waits for, for {@link #answer} there
     */
    List<Integer> behind(String name, String question) {
        Function<String, List<Integer>> present = asking;
        return present == null ? List.of() : present.apply(name + SEPARATOR + question);
    }

    /** Returns this rank's progress, for a question from another process. */
    PeerProgress answer(String question) {
        int end = question.lastIndexOf(SEPARATOR);
        String place = question.substring(0, Math.max(0, end));
        boolean waits = false;
        Endpoint asked = null;
        try (var _ = lock.hold()) {
            for (Endpoint endpoint : endpoints) {
                waits |= endpoint.calls.peerWait.isUnderWay()
                        || endpoint.state.waits().present() != 0;
                PeerPlace known = endpoint.elsewhere;
                asked = known != null && known.name().equals(place) ? endpoint : asked;
            }
        }
        if (asked == null || asked.calls.answers(question.substring(end + 1))) {
            return PeerProgress.CAME;
        }
        return waits ? PeerProgress.WAITS : PeerProgress.LATE;
    }

    /** Returns the first rank that failed, or null. */
    @Nullable
    Failed failed() {
        try (var _ = lock.hold()) {
            return failed;
        }
    }

    /** Ends the waits of the communicators that are open now. One that is shrunk from them later works. */
    void fail(int rank, Throwable cause) {
        List<Endpoint> open;
        try (var _ = lock.hold()) {
            if (failed == null) {
                failed = new Failed(rank, cause);
            }
            open = List.copyOf(endpoints);
        }
        for (Endpoint endpoint : open) {
            endpoint.failures.peerFailed(rank, cause);
        }
        calls.wake();
    }

    /** Waits a moment for the report of which rank failed: NCCL says only that one is gone. */
    void awaitWord(Endpoint endpoint) {
        awaitWord(() -> endpoint.failure() != null);
    }

    /** Waits a moment for the word that some process has failed; returns whether one has. */
    boolean awaitFailed() {
        awaitWord(() -> failed() != null);
        return failed() != null;
    }

    private static void awaitWord(BooleanSupplier told) {
        long end = System.nanoTime() + WORD_NANOS;
        while (!told.getAsBoolean() && System.nanoTime() < end) {
            LockSupport.parkNanos(PAUSE_NANOS);
        }
    }
}
