package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Where ranks that are threads of one program know of each other: who has come, how far each is, and what made them fail.
 *
 * <p>Threading: thread-safe.
 */
final class Meeting {
    private final int ranks;
    /** The ranks' numbers for errors: those here or, of a shrunk communicator, those in the one it came from. */
    private final int[] names;

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    private final boolean[] came;
    private final Arrivals arrivals;
    private final List<Endpoint> endpoints = new ArrayList<>();
    private final Map<String, Meeting> children = new HashMap<>();
    private final Map<String, Meeting> rests = new HashMap<>();
    private final Comparisons comparisons = new Comparisons(this);
    private volatile @Nullable RankFailure failure;
    private int present;
    /** Ranks whose communicator was added so far. */
    private int added;
    /** Takes this out of the meeting that it was made from, once every rank has closed its communicator. */
    private final Runnable atEnd;

    Meeting(int ranks) {
        this(() -> {}, IntStream.range(0, ranks).toArray());
    }

    private Meeting(Runnable atEnd, int... names) {
        this.atEnd = atEnd;
        this.names = names;
        ranks = names.length;
        came = new boolean[ranks];
        arrivals = new Arrivals(this, ranks);
    }

    int ranks() {
        return ranks;
    }

    /** Returns why the ranks cannot go on, or null. */
    @Nullable
    RankFailure failure() {
        return failure;
    }

    Comparisons comparisons() {
        return comparisons;
    }

    /** Begins to look at what ranks share. */
    void lock() {
        lock.lock();
    }

    /** Ends that, and lets those who wait look again. */
    void unlock() {
        changed.signalAll();
        lock.unlock();
    }

    /** Waits until every rank has come. */
    void join(int rank, String waiting, long timeoutMillis) {
        lock();
        try {
            throwFailure();
            if (came[rank]) {
                throw new IllegalArgumentException(
                        "rank: expected one that has not opened this communicator, got " + rank + " a second time");
            }
            came[rank] = true;
            present++;
            changed.signalAll();
            await(() -> present == ranks, timeoutMillis, () -> RankFailure.late(waiting, absent(), timeoutMillis));
        } finally {
            unlock();
        }
    }

    private List<Integer> absent() {
        List<Integer> absent = new ArrayList<>();
        for (int rank = 0; rank < ranks; rank++) {
            if (!came[rank]) {
                absent.add(names[rank]);
            }
        }
        return absent;
    }

    /** Waits, with the lock held, until the condition holds; fails all ranks when the time is up, and throws why they failed. */
    void await(BooleanSupplier condition, long timeoutMillis, Supplier<RankFailure> late) {
        long left = TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        boolean interrupted = false;
        while (!condition.getAsBoolean() && failure == null) {
            if (left <= 0) {
                fail(late.get());
                break;
            }
            try {
                left = changed.awaitNanos(left);
            } catch (InterruptedException _) {
                // The wait has an end of its own; the thread finds the interrupt after it.
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        throwFailure();
    }

    private void throwFailure() {
        RankFailure present = failure;
        if (present != null) {
            throw present.exception();
        }
    }

    /** Adds the rank's communicator, which a failure revokes. */
    void add(Endpoint endpoint) {
        lock.lock();
        try {
            endpoints.add(endpoint);
            added++;
        } finally {
            lock.unlock();
        }
    }

    void remove(Endpoint endpoint) {
        boolean last;
        lock.lock();
        try {
            endpoints.remove(endpoint);
            last = added == ranks && endpoints.isEmpty();
        } finally {
            lock.unlock();
        }
        if (last) {
            atEnd.run();
        }
    }

    /** Returns how many communicators that were made from this one are known here. */
    int below() {
        lock.lock();
        try {
            return children.size() + rests.size();
        } finally {
            lock.unlock();
        }
    }

    private void forget(Map<String, Meeting> made, String key) {
        lock.lock();
        try {
            made.remove(key);
        } finally {
            lock.unlock();
        }
    }

    /** Says that {@code rank} has come to the collective of that number; {@link #wake} follows. */
    void entered(int rank, long number) {
        arrivals.entered(rank, number);
    }

    /** Says that {@code rank} has come to the transfer of that number between it and {@code peer}; {@link #wake} follows. */
    void transferred(int rank, int peer, long number) {
        arrivals.transferred(rank, peer, number);
    }

    /** Lets the peers of {@code rank} look again. */
    void wake(int rank) {
        arrivals.wake(rank);
    }

    /** Waits until every rank has come to the collective of that number. */
    void awaitCollectives(int rank, long number) {
        arrivals.await(rank, Arrivals.ALL, number);
    }

    /** Waits until {@code peer} has come to the transfer of that number between it and {@code rank}. */
    void awaitTransfers(int rank, int peer, long number) {
        arrivals.await(rank, peer, number);
    }

    /** Returns whether {@code peer} has come to the transfer of that number between it and {@code rank}. */
    boolean hasTransferred(int rank, int peer, long number) {
        return arrivals.haveCome(rank, peer, number);
    }

    /** Returns the ranks that have not come to the collective of that number. */
    List<Integer> behind(int rank, long number) {
        return arrivals.behind(rank, number);
    }

    /** Ends every wait of these ranks, here and in NCCL, for good. The first failure stays. */
    void fail(RankFailure first) {
        RankFailure told;
        List<Endpoint> revoked;
        List<Meeting> below;
        lock.lock();
        try {
            told = failure == null ? first.recorded(endpoints) : failure;
            failure = told;
            changed.signalAll();
            arrivals.wakeAll();
            revoked = List.copyOf(endpoints);
            below = List.copyOf(children.values());
        } finally {
            lock.unlock();
        }
        for (Endpoint endpoint : revoked) {
            endpoint.revokeFromOutside();
        }
        for (Meeting child : below) {
            child.fail(told);
        }
    }

    /** Fails these ranks, and those that were shrunk from them with {@code rank} among them. */
    void thrown(int rank, Throwable cause) {
        fail(RankFailure.thrown(rank, cause));
        List<Meeting> below;
        lock.lock();
        try {
            below = List.copyOf(rests.values());
        } finally {
            lock.unlock();
        }
        for (Meeting rest : below) {
            int place = Arrays.binarySearch(rest.names, rank);
            if (place >= 0) {
                rest.thrown(place, cause);
            }
        }
    }

    /** Returns where the ranks of a communicator meet that is made from this one; {@code key} is the same on each. */
    Meeting split(String key, int childRanks) {
        lock.lock();
        try {
            Meeting child = children.computeIfAbsent(
                    key,
                    _ -> new Meeting(
                            () -> forget(children, key),
                            IntStream.range(0, childRanks).toArray()));
            if (child.failure == null) {
                child.failure = failure;
            }
            return child;
        } finally {
            lock.unlock();
        }
    }

    /** The same for the ranks that stay when others have failed: what failed here does not end it. */
    Meeting shrink(String key, int... staying) {
        lock.lock();
        try {
            return rests.computeIfAbsent(key, _ -> new Meeting(() -> forget(rests, key), staying));
        } finally {
            lock.unlock();
        }
    }
}
