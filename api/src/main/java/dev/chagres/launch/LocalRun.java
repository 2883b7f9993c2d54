package dev.chagres.launch;

import dev.chagres.Device;
import dev.chagres.internal.Checks;
import dev.chagres.internal.ScopedLock;
import dev.chagres.internal.memory.Uninterruptibles;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.UniqueId;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * One run of a body on ranks that are threads: starts them, releases the others when one fails, and tells which it was.
 *
 * <p>Threading: thread-safe.
 */
final class LocalRun<T> {
    /** How long a rank that waits may take to end after the newest failure, before its thread is interrupted, and again after that. */
    private static final Duration GRACE = Duration.ofSeconds(2);

    /** The same for one that computes, which learns of the failure at its next collective. */
    private static final Duration COMPUTING = Duration.ofSeconds(30);

    private static final long LOOK_MILLIS = 20;

    /** What a rank threw. */
    private record Thrown(int rank, Throwable failure) {}

    private final CommunicatorConfig config;
    private final UniqueId id;
    private final Rank.Body<T> body;
    private final List<Thread> threads = new ArrayList<>();
    private final @Nullable Object[] results;
    private final ScopedLock lock = new ScopedLock();
    private final Condition changed = lock.newCondition();
    private final List<Thrown> thrown = new ArrayList<>();
    /** Ranks that were told to end; their exceptions are not causes. */
    private final Set<Integer> interrupted = new HashSet<>();

    /** Ranks that have finished after they had agreed to go on without others. */
    private final Set<Integer> wentOn = new TreeSet<>();

    private int finished;
    /** Whether a rank has failed, also where its failure could not be kept, as in a full heap. */
    private boolean hasFailed;

    LocalRun(int count, CommunicatorConfig config, UniqueId id, Rank.Body<T> body) {
        this.config = config;
        this.id = id;
        this.body = body;
        results = new Object[count];
        for (int i = 0; i < count; i++) {
            int rank = i;
            threads.add(Thread.ofPlatform().daemon().name("rank-" + rank).unstarted(() -> runRank(rank)));
        }
    }

    /** Starts the ranks, waits for them and returns what they made. */
    List<T> results() {
        threads.forEach(Thread::start);
        boolean failed = awaitPeers();
        List<Integer> lost = failed ? end() : List.of();
        if (!failed) {
            threads.forEach(thread -> isEnded(thread, Duration.ofDays(1)));
        }
        try (var _ = lock.hold()) {
            if (hasFailed && wentOn.isEmpty()) {
                throw failure(lost);
            }
        }
        List<T> all = new ArrayList<>();
        for (int rank = 0; rank < results.length; rank++) {
            if (!failed || wentOn.contains(rank)) {
                @SuppressWarnings("unchecked") // Only the body's results are put there.
                T typed = (T) results[rank];
                all.add(typed);
            }
        }
        return all;
    }

    private void runRank(int rank) {
        try (Device device = Device.open(rank);
                Communicator communicator = Communicator.open(device, id, threads.size(), rank, config)) {
            runBody(new Rank(rank, threads.size(), device, communicator));
            // Closing a communicator while a peer still uses it is an error at the peer.
            if (awaitPeers()) {
                awaitThoseThatGoOn();
            }
        } catch (Throwable failure) {
            failed(rank, failure);
        }
    }

    /** Tells the others of a failure before the communicator is closed, which would be another error for them. */
    private void runBody(Rank rank) throws Exception {
        try {
            results[rank.index()] = body.run(rank);
            rank.device().synchronize();
            boolean goesOn = id.goesOn(rank.index());
            id.finish(rank.index());
            finished(rank.index(), goesOn);
        } catch (Throwable failure) {
            failed(rank.index(), failure);
            throw failure;
        }
    }

    private void finished(int rank, boolean goesOn) {
        try (var _ = lock.hold()) {
            finished++;
            if (goesOn) {
                wentOn.add(rank);
            }
            changed.signalAll();
        }
    }

    private void failed(int rank, Throwable failure) {
        try {
            id.fail(rank, failure);
        } finally {
            try (var _ = lock.hold()) {
                hasFailed = true;
                changed.signalAll();
                if (thrown.stream().noneMatch(one -> one.rank == rank)) {
                    thrown.add(new Thrown(rank, failure));
                }
            }
        }
    }

    /** Waits until all ranks have run the body; true when one has failed before that. */
    private boolean awaitPeers() {
        try (var _ = lock.hold()) {
            while (finished < threads.size() && !hasFailed) {
                changed.awaitUninterruptibly();
            }
            return hasFailed;
        }
    }

    /** Waits for the ranks that go on without one that has failed. */
    private void awaitThoseThatGoOn() {
        lock.lock();
        try {
            while (goOn()) {
                // Ranks that fail during the agreement are not reported.
                var _ = changed.await(LOOK_MILLIS, TimeUnit.MILLISECONDS);
            }
        } catch (InterruptedException _) {
            Thread.currentThread().interrupt();
        } finally {
            lock.unlock();
        }
    }

    /** Waits for the ranks after one has failed, and returns those that do not end even when interrupted. */
    private List<Integer> end() {
        List<Integer> lost = new ArrayList<>();
        long begin = System.nanoTime();
        for (int rank = 0; rank < threads.size(); rank++) {
            Thread thread = threads.get(rank);
            if (!endsByItself(thread, begin)) {
                interrupt(rank);
                if (!isEnded(thread, GRACE)) {
                    lost.add(rank);
                }
            }
        }
        return lost;
    }

    /**
     * Waits for a rank while any goes on without those that have failed. After each failure a rank has a while to agree to that, since an
     * interrupt would end what it goes on with.
     *
     * @param begin when a rank had failed
     */
    private boolean endsByItself(Thread thread, long begin) {
        int failures;
        do {
            failures = id.failures();
            if (isEnded(thread, GRACE)) {
                return true;
            }
        } while (goOn()
                || id.failures() != failures
                || (thread.getState() == Thread.State.RUNNABLE && System.nanoTime() - begin < COMPUTING.toNanos()));
        return false;
    }

    private boolean goOn() {
        return IntStream.range(0, threads.size()).anyMatch(id::goesOn);
    }

    private void interrupt(int rank) {
        try (var _ = lock.hold()) {
            interrupted.add(rank);
            threads.get(rank).interrupt();
        }
    }

    private static boolean isEnded(Thread thread, Duration within) {
        return Uninterruptibles.await(within.toNanos(), left -> thread.join(Duration.ofNanos(left)));
    }

    /** Names the rank that failed first; failures that it caused in other ranks are not reported. */
    private RankFailedException failure(List<Integer> lost) {
        if (thrown.isEmpty()) {
            return new RankFailedException(
                    "a rank failed, and its failure could not be kept, as where the heap is full", List.of(), null);
        }
        List<Thrown> causes = thrown.stream()
                .filter(one -> !(one.failure instanceof RankFailedException) && !interrupted.contains(one.rank))
                .toList();
        Thrown first = causes.isEmpty() ? thrown.getFirst() : causes.getFirst();
        boolean known = first.failure instanceof RankFailedException;
        String text = known
                ? String.valueOf(first.failure.getMessage())
                : "rank " + first.rank + " of " + threads.size() + " failed: " + Checks.describe(first.failure);
        if (!lost.isEmpty()) {
            text += "; the threads of ranks " + lost + " have not ended, and their devices stay open";
        }
        RankFailedException failure = first.failure instanceof RankFailedException named
                ? new RankFailedException(text, named, named)
                : new RankFailedException(text, List.of(first.rank), first.failure);
        causes.stream().filter(one -> one != first).forEach(one -> failure.addSuppressed(one.failure));
        return failure;
    }
}
