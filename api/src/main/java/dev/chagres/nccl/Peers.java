package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * The state of ranks in other processes: the communicators that a rank shares with them, and which of them failed.
 *
 * <p>Threading: thread-safe.
 */
final class Peers {
    /** How long a rank that NCCL gave an error waits to be told why: NCCL may notice it before the others have said whose it was. */
    private static final long WORD_NANOS = TimeUnit.SECONDS.toNanos(1);

    private static final char SEPARATOR = ' ';

    private static final long PAUSE_NANOS = TimeUnit.MILLISECONDS.toNanos(1);

    /** A process that failed. */
    record Failed(int process, Throwable cause) {}

    private final ReentrantLock lock = new ReentrantLock();
    private final List<Endpoint> endpoints = new ArrayList<>();
    private final PeerCalls calls = new PeerCalls();
    private @Nullable Failed failed;
    private volatile @Nullable Function<String, List<Integer>> asking;
    private volatile @Nullable PeerAgreement agreeing;
    /** The latest decision, until a communicator is made of it. */
    private PeerAgreement.@Nullable Outcome decided;

    void add(Endpoint endpoint) {
        lock.lock();
        try {
            endpoints.add(endpoint);
        } finally {
            lock.unlock();
        }
    }

    /** Forgets a communicator, and what other ranks have said about communicators that they split from it. */
    void remove(Endpoint endpoint) {
        Set<String> open = new HashSet<>();
        lock.lock();
        try {
            endpoints.remove(endpoint);
            for (Endpoint other : endpoints) {
                PeerPlace known = other.elsewhere();
                if (known != null) {
                    open.add(known.name());
                }
            }
        } finally {
            lock.unlock();
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
        lock.lock();
        try {
            decided = outcome;
        } finally {
            lock.unlock();
        }
        return outcome;
    }

    /** Returns the latest decision once, if those processes remain in it; else null. */
    PeerAgreement.@Nullable Outcome takeDecided(List<Integer> left) {
        lock.lock();
        try {
            PeerAgreement.Outcome present = decided;
            if (present == null || !List.copyOf(present.left().keySet()).equals(left)) {
                return null;
            }
            decided = null;
            return present;
        } finally {
            lock.unlock();
        }
    }

    /** Forgets failures before the decision on the remaining ranks. */
    void goOn() {
        lock.lock();
        try {
            failed = null;
        } finally {
            lock.unlock();
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

    /** Returns the announced calls of ranks in other processes. */
    PeerCalls calls() {
        return calls;
    }

    /** Returns this rank's progress, for a question from another process. */
    PeerProgress answer(String question) {
        int end = question.lastIndexOf(SEPARATOR);
        String place = question.substring(0, Math.max(0, end));
        boolean waits = false;
        Endpoint asked = null;
        lock.lock();
        try {
            for (Endpoint endpoint : endpoints) {
                waits |= endpoint.calls().peerWait().isUnderWay()
                        || endpoint.state().waits().present() != 0;
                PeerPlace known = endpoint.elsewhere();
                asked = known != null && known.name().equals(place) ? endpoint : asked;
            }
        } finally {
            lock.unlock();
        }
        if (asked == null || asked.calls().answers(question.substring(end + 1))) {
            return PeerProgress.CAME;
        }
        return waits ? PeerProgress.WAITS : PeerProgress.LATE;
    }

    /** Returns the first rank that failed, or null. */
    @Nullable
    Failed failed() {
        lock.lock();
        try {
            return failed;
        } finally {
            lock.unlock();
        }
    }

    /** Ends the waits of the communicators that are open now. One that is shrunk from them later works. */
    void fail(int rank, Throwable cause) {
        List<Endpoint> open;
        lock.lock();
        try {
            if (failed == null) {
                failed = new Failed(rank, cause);
            }
            open = List.copyOf(endpoints);
        } finally {
            lock.unlock();
        }
        for (Endpoint endpoint : open) {
            endpoint.failures().peerFailed(rank, cause);
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
