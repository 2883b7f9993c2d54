package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Where ranks that are threads of one program know of each other: who has come, how far each is, and what made them fail.
 *
 * <p>Threading: thread-safe.
 */
final class Meeting {
    /** How long a rank that closes its communicator has to say why. */
    private static final long WORD_NANOS = TimeUnit.MILLISECONDS.toNanos(300);

    private static final long PAUSE_NANOS = TimeUnit.MILLISECONDS.toNanos(1);

    private static final int NOWHERE = -1;

    private final int ranks;
    /** Null but where this was split from another. */
    private final @Nullable Meeting parent;
    /** The ranks' numbers in the communicator that all are split from. */
    private final int[] numbers;
    /** The same, or those in the communicator that this was shrunk from. */
    private final int[] names;

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    private final boolean[] came;
    private final Arrivals arrivals;
    private final List<Endpoint> endpoints = new ArrayList<>();
    private final Comparisons comparisons = new Comparisons(this);
    private final Descendants descendants;
    private final Accords accords;
    private volatile @Nullable RankFailure failure;
    private int present;
    /** Ranks whose communicator was added so far. */
    private int added;
    /** Takes this out of the meeting that it was made from, once every rank has closed its communicator. */
    private final Runnable atEnd;

    Meeting(int ranks) {
        this(() -> {}, null, IntStream.range(0, ranks).toArray());
    }

    /** With a parent it was split from that, else shrunk, or neither. */
    Meeting(Runnable atEnd, @Nullable Meeting parent, int... names) {
        this.atEnd = atEnd;
        this.parent = parent;
        this.names = names;
        ranks = names.length;
        numbers = parent == null ? IntStream.range(0, ranks).toArray() : names;
        descendants = new Descendants(this);
        accords = new Accords(this);
        came = new boolean[ranks];
        arrivals = new Arrivals(this, ranks);
    }

    int ranks() {
        return ranks;
    }

    /** Returns the meeting of all ranks that this was split from. */
    Meeting root() {
        return parent == null ? this : parent.root();
    }

    /** Returns a rank's number there. */
    int number(int rank) {
        return numbers[rank];
    }

    /** Returns the rank here that has that number there, or where this was shrunk from; -1 when there is none. */
    int place(int number) {
        for (int rank = 0; rank < ranks; rank++) {
            if (names[rank] == number) {
                return rank;
            }
        }
        return NOWHERE;
    }

    List<Integer> numbers(List<Integer> own) {
        return own.stream().map(this::number).toList();
    }

    /** Returns the communicator in which the rank of that number waits for others, or null. */
    @Nullable
    Endpoint waiting(int number) {
        lock.lock();
        try {
            for (Endpoint endpoint : endpoints) {
                if (number(endpoint.rank()) == number && endpoint.peerWait().isUnderWay()) {
                    return endpoint;
                }
            }
        } finally {
            lock.unlock();
        }
        return descendants.split().stream()
                .map(child -> child.waiting(number))
                .filter(Objects::nonNull)
                .findFirst()
                .orElse(null);
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
            throwFailure(waiting);
            if (came[rank]) {
                throw new IllegalArgumentException(
                        "rank: expected one that has not opened this communicator, got " + rank + " a second time");
            }
            came[rank] = true;
            present++;
            changed.signalAll();
            await(() -> present == ranks, timeoutMillis, waiting, this::absent, UnaryOperator.identity());
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

    /**
     * Waits, with the lock held, until the condition holds; fails all ranks when the time is up, and throws why they failed. {@code missing}
     * is asked with the lock held, {@code blame} without it.
     */
    void await(
            BooleanSupplier condition,
            long timeoutMillis,
            String waiting,
            Supplier<List<Integer>> missing,
            UnaryOperator<List<Integer>> blame) {
        long begin = System.nanoTime();
        if (!waitUntil(() -> condition.getAsBoolean() || failure != null, timeoutMillis)) {
            List<Integer> late = missing.get();
            unlocked(() -> root().fail(RankFailure.late(waiting, blame.apply(late), timeoutMillis)));
        }
        if (condition.getAsBoolean()) {
            return; // A rank that has failed meanwhile had come, too.
        }
        throwFailure(waiting + " waited " + (System.nanoTime() - begin) / 1_000_000 + " ms");
    }

    private void throwFailure(String called) {
        RankFailure present = failure;
        if (present != null) {
            throw present.exception(called);
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
            arrivals.left(endpoint.rank());
            changed.signalAll();
            last = added == ranks && endpoints.isEmpty();
        } finally {
            lock.unlock();
        }
        if (last) {
            atEnd.run();
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

    /** Returns whether {@code rank} has closed its communicator. */
    boolean isLeft(int rank) {
        return arrivals.isLeft(rank);
    }

    /** Returns the ranks that have not come to the collective of that number. */
    List<Integer> behind(int rank, long number) {
        return arrivals.behind(rank, number);
    }

    /** Ends every wait of these ranks, here and in NCCL, for good. The first failure stays. No meeting's lock is held. */
    void fail(RankFailure first) {
        RankFailure told;
        List<Endpoint> revoked;
        lock.lock();
        try {
            told = failure == null ? first.recorded(endpoints) : failure;
            failure = told;
            changed.signalAll();
            arrivals.wakeAll();
            revoked = List.copyOf(endpoints);
        } finally {
            lock.unlock();
        }
        for (Endpoint endpoint : revoked) {
            endpoint.revokeFromOutside();
        }
        descendants.split().forEach(child -> child.fail(told));
    }

    /** Fails these ranks because {@code rank} has closed its communicator, unless it says in a moment why. */
    void failAfterWord(int rank) {
        long end = System.nanoTime() + WORD_NANOS;
        while (failure == null && System.nanoTime() < end) {
            LockSupport.parkNanos(PAUSE_NANOS);
        }
        int number = number(rank);
        root().fail(new RankFailure(
                List.of(number),
                "rank " + number + " has finished or closed its communicator, and comes no more",
                null));
    }

    /** Does so, with the lock held, and returns what {@code waiting} throws. */
    RankFailedException closed(int rank, String waiting) {
        unlocked(() -> failAfterWord(rank));
        return Objects.requireNonNull(failure).exception(waiting);
    }

    /**
     * Runs {@code body}, which takes the locks of other meetings, without the lock that the thread holds: a rank that fails the communicator
     * which this was split from, and one that fails it from there, would wait for each other's lock.
     */
    private void unlocked(Runnable body) {
        int held = lock.getHoldCount();
        for (int i = 0; i < held; i++) {
            lock.unlock();
        }
        try {
            body.run();
        } finally {
            for (int i = 0; i < held; i++) {
                lock.lock();
            }
        }
    }

    /** Fails these ranks, and those that were shrunk from them with {@code rank} among them. */
    void thrown(int rank, Throwable cause) {
        finished(rank);
        fail(RankFailure.told(rank, cause));
        failShrunk(rank, cause);
    }

    private void failShrunk(int rank, Throwable cause) {
        descendants.split().forEach(child -> child.failShrunk(rank, cause));
        for (Meeting rest : descendants.shrunk()) {
            int place = rest.place(rank);
            if (place != NOWHERE) {
                rest.fail(RankFailure.thrown(place, cause));
                rest.failShrunk(place, cause);
            }
        }
    }

    /** Says that {@code rank} comes no more, here and where it is one of those that this was split into or shrunk to. */
    void finished(int rank) {
        lock();
        try {
            arrivals.left(rank);
        } finally {
            unlock();
        }
        for (Meeting other : descendants.all()) {
            int place = other.place(number(rank));
            if (place != NOWHERE) {
                other.finished(place);
            }
        }
    }

    Descendants descendants() {
        return descendants;
    }

    Accords accords() {
        return accords;
    }

    /** Lets those who wait look again; the lock is held. */
    void changed() {
        changed.signalAll();
    }

    /** Waits, with the lock held, until the condition holds; returns whether it does. */
    boolean waitUntil(BooleanSupplier condition, long timeoutMillis) {
        long left = TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        boolean interrupted = false;
        boolean holds = condition.getAsBoolean();
        while (!holds && left > 0) {
            try {
                left = changed.awaitNanos(left);
            } catch (InterruptedException _) {
                // The wait has an end of its own; the thread finds the interrupt after it.
                interrupted = true;
            }
            holds = condition.getAsBoolean();
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        return holds;
    }

    /** Returns whether a rank has ended, or was missed for the timeout already. */
    boolean isGone(int rank) {
        return isMissed(rank) || isLeft(rank);
    }

    /** Returns whether a rank was missed for the timeout. */
    boolean isMissed(int rank) {
        RankFailure present = failure;
        return present != null && present.waiting() != null && present.ranks().contains(number(rank));
    }
}
