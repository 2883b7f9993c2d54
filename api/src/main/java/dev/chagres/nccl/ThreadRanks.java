package dev.chagres.nccl;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * The shared state of ranks that are threads of one program: which have joined, their progress, and their failure.
 *
 * <p>Threading: thread-safe.
 */
final class ThreadRanks {
    /** How long a rank that closes its communicator has to report why. */
    private static final long WORD_NANOS = TimeUnit.MILLISECONDS.toNanos(300);

    private static final long PAUSE_NANOS = TimeUnit.MILLISECONDS.toNanos(1);

    private static final int NOWHERE = -1;

    final int ranks;
    /** The meeting that this was split from; null if it was opened or shrunk. */
    private final @Nullable ThreadRanks parent;
    /** The meeting that this was shrunk from; null if it was opened or split. */
    private final @Nullable ThreadRanks former;
    /** Each rank's number in the {@link #root}, by which errors name it. */
    private final int[] numbers;
    /** Each rank's number in the origin: in the root after a split, in the former communicator after a shrink. */
    private final int[] origins;

    /** The lock of this state. */
    final ConditionLock lock = new ConditionLock();

    private final boolean[] came;
    /** The ranks' progress, and which have closed their communicators. */
    final Barrier arrivals;

    private final List<Endpoint> endpoints = new ArrayList<>();
    final Comparisons comparisons;
    final SplitCommunicators descendants;
    final Accords accords;
    private volatile @Nullable RankFailure failure;
    /** Ranks that have joined. */
    private int cameCount;
    /** Ranks whose communicator was added so far. */
    private int added;
    /** Removes this from the meeting that it was made from, once every rank has closed its communicator. */
    private final Runnable atEnd;

    ThreadRanks(int ranks) {
        this(() -> {}, null, null, IntStream.range(0, ranks).toArray());
    }

    /**
     * Makes one that was split from {@code parent}, or shrunk from {@code former}; the other one is null.
     *
     * @param origins each rank's number where it comes from
     */
    ThreadRanks(Runnable atEnd, @Nullable ThreadRanks parent, @Nullable ThreadRanks former, int... origins) {
        this.atEnd = atEnd;
        this.parent = parent;
        this.former = former;
        this.origins = origins;
        ranks = origins.length;
        numbers = parent == null ? IntStream.range(0, ranks).toArray() : origins;
        arrivals = new Barrier(this, ranks);
        descendants = new SplitCommunicators(this);
        comparisons = new Comparisons(this);
        accords = new Accords(this);
        came = new boolean[ranks];
    }

    /** Returns the meeting of all ranks that this was split from. */
    ThreadRanks root() {
        return parent == null ? this : parent.root();
    }

    /** Returns a rank's number in the {@link #root}. */
    int number(int rank) {
        return numbers[rank];
    }

    /** Returns the rank that has that number in the root, or after a shrink in the former communicator; -1 when there is none. */
    int place(int number) {
        for (int rank = 0; rank < ranks; rank++) {
            if (origins[rank] == number) {
                return rank;
            }
        }
        return NOWHERE;
    }

    /** Returns the numbers of some ranks in the {@link #root}. */
    List<Integer> numbers(List<Integer> own) {
        return own.stream().map(this::number).toList();
    }

    /** Returns the communicator, this one or one split from it, in which the rank of that number in the root waits for others, or null. */
    @Nullable
    Endpoint waiting(int number) {
        try (var _ = lock.hold()) {
            for (Endpoint endpoint : endpoints) {
                if (number(endpoint.rank) == number && endpoint.calls.isKeptWaiting()) {
                    return endpoint;
                }
            }
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

    /** Returns how many of these ranks' communicator and those that were shrunk from it have failed. */
    int failures() {
        return (failure == null ? 0 : 1)
                + descendants.shrunk().stream().mapToInt(ThreadRanks::failures).sum();
    }

    /** Returns the communicator of a rank that is open. */
    Endpoint endpoint(int rank) {
        try (var _ = lock.hold()) {
            return endpoints.stream()
                    .filter(one -> one.rank == rank)
                    .findFirst()
                    .orElseThrow();
        }
    }

    /** Waits until every rank has joined; fails when one ends, or closes the communicator that this is shrunk from, before it has. */
    void join(int rank, Called waiting, long timeoutMillis) {
        try (var _ = lock.hold()) {
            throwFailure(waiting);
            if (came[rank]) {
                throw new IllegalArgumentException(
                        "rank: expected one that has not opened this communicator, got " + rank + " a second time");
            }
            came[rank] = true;
            cameCount++;
            lock.changed();
            await(
                    rank,
                    () -> cameCount == ranks || gone() != NOWHERE,
                    timeoutMillis,
                    waiting,
                    this::absent,
                    FailureAttribution::only);
            if (cameCount < ranks) {
                throw closed(gone(), waiting);
            }
        }
    }

    /** Returns a rank that will not join; -1 when there is none. */
    private int gone() {
        ThreadRanks before = former;
        for (int rank = 0; before != null && rank < ranks; rank++) {
            if (!came[rank] && before.arrivals.isLeft(before.ofNumber(origins[rank]))) {
                return rank;
            }
        }
        return NOWHERE;
    }

    private int ofNumber(int number) {
        return IntStream.range(0, ranks)
                .filter(rank -> number(rank) == number)
                .findFirst()
                .orElseThrow();
    }

    /** Returns whether every rank has joined. */
    boolean haveJoined() {
        try (var _ = lock.hold()) {
            return cameCount == ranks;
        }
    }

    private List<Integer> absent() {
        List<Integer> absent = new ArrayList<>();
        for (int rank = 0; rank < ranks; rank++) {
            if (!came[rank]) {
                absent.add(origins[rank]);
            }
        }
        return absent;
    }

    /**
     * Waits, with the lock held, until the condition holds; fails all ranks when the time is up or the thread of rank {@code interrupted} is
     * interrupted, and throws why they failed. {@code missing} is asked with the lock held, {@code blame} without it.
     */
    void await(
            int interrupted,
            BooleanSupplier condition,
            long timeoutMillis,
            Called waiting,
            Supplier<List<Integer>> missing,
            Function<List<Integer>, FailureAttribution> blame) {
        long begin = System.nanoTime();
        ConditionLock.End end =
                lock.waitUntilInterrupted(() -> condition.getAsBoolean() || failure != null, timeoutMillis);
        if (end == ConditionLock.End.INTERRUPTED) {
            lock.unlocked(() -> failInterrupted(interrupted));
        } else if (end == ConditionLock.End.TIME_IS_UP) {
            List<Integer> late = missing.get();
            // A thread that fails the root from here, and one that fails this from the root, must not wait for each
            // other's lock.
            lock.unlocked(() -> root().fail(RankFailure.late(waiting, blame.apply(late), timeoutMillis)));
        }
        if (condition.getAsBoolean()) {
            return; // A rank that has failed meanwhile had joined, too.
        }
        throwFailure(waiting.waited(Duration.ofNanos(System.nanoTime() - begin)));
    }

    private void throwFailure(Called called) {
        RankFailure present = failure;
        if (present != null) {
            throw present.exception(called);
        }
    }

    /** Registers the rank's communicator, which a failure revokes. */
    void add(Endpoint endpoint) {
        try (var _ = lock.hold()) {
            endpoints.add(endpoint);
            added++;
        }
    }

    void remove(Endpoint endpoint) {
        boolean last;
        try (var _ = lock.hold()) {
            endpoints.remove(endpoint);
            arrivals.left(endpoint.rank);
            last = added == ranks && endpoints.isEmpty();
        }
        if (last) {
            atEnd.run();
        }
    }

    /** Ends every wait of these ranks, here and in NCCL, for good. The first failure is kept. No meeting's lock is held. */
    void fail(RankFailure first) {
        RankFailure told;
        List<Endpoint> revoked;
        try (var _ = lock.hold()) {
            told = failure == null ? first.recorded(endpoints) : failure;
            failure = told;
            arrivals.wakeAll();
            revoked = List.copyOf(endpoints);
        }
        for (Endpoint endpoint : revoked) {
            endpoint.failures.revoke();
        }
        descendants.split().forEach(child -> child.fail(told));
    }

    /** Fails these ranks because the thread of {@code rank} was interrupted in a wait for others. No meeting's lock is held. */
    void failInterrupted(int rank) {
        root().fail(RankFailure.interrupted(number(rank)));
    }

    /** Fails these ranks because {@code rank} has closed its communicator, unless it reports a reason in a moment. */
    void failAfterWord(int rank) {
        long end = System.nanoTime() + WORD_NANOS;
        while (failure == null && System.nanoTime() < end) {
            LockSupport.parkNanos(PAUSE_NANOS);
        }
        int number = number(rank);
        root().fail(new RankFailure(
                List.of(number),
                "rank " + number + " has finished or closed its communicator, and will not call",
                null));
    }

    /** The same with the lock held; returns the exception for {@code waiting}. */
    RankFailedException closed(int rank, Called waiting) {
        lock.unlocked(() -> failAfterWord(rank));
        return Objects.requireNonNull(failure).exception(waiting);
    }

    /** Fails these ranks, and those that were shrunk from them with {@code rank} among them. */
    void thrown(int rank, Throwable cause) {
        if (rank >= 0) {
            finished(rank);
        }
        fail(RankFailure.told(rank, cause));
        if (rank >= 0) {
            failShrunk(rank, cause);
        }
    }

    private void failShrunk(int rank, Throwable cause) {
        descendants.split().forEach(child -> child.failShrunk(rank, cause));
        for (ThreadRanks rest : descendants.shrunk()) {
            int place = rest.place(rank);
            if (place != NOWHERE) {
                rest.fail(RankFailure.thrown(place, cause));
                rest.failShrunk(place, cause);
            }
        }
    }

    /** Records that {@code rank} makes no further calls, here and on communicators that were split or shrunk from this. */
    void finished(int rank) {
        try (var _ = lock.hold()) {
            arrivals.left(rank);
        }
        for (ThreadRanks other : descendants.all()) {
            int place = other.place(number(rank));
            if (place != NOWHERE) {
                other.finished(place);
            }
        }
    }

    /** Returns whether a rank has ended, or was missed for the timeout already. */
    boolean isGone(int rank) {
        return isMissed(rank) || arrivals.isLeft(rank);
    }

    /** Returns whether a rank was missed for the timeout. */
    boolean isMissed(int rank) {
        RankFailure present = failure;
        return present != null && present.waiting() != null && present.ranks().contains(number(rank));
    }
}
