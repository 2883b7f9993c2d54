package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.SortedMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.LockSupport;
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
    /** How long a rank that closes its communicator has to say why. */
    private static final long WORD_NANOS = TimeUnit.MILLISECONDS.toNanos(300);

    private static final long PAUSE_NANOS = TimeUnit.MILLISECONDS.toNanos(1);

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
    private final Map<String, Meeting> children = new HashMap<>();
    private final Map<String, Meeting> rests = new HashMap<>();
    private final List<Accord> accords = new ArrayList<>();
    /** In how many accords a rank has taken part. */
    private final int[] agreed;

    private final Comparisons comparisons = new Comparisons(this);
    private final Splits splits;
    private volatile @Nullable RankFailure failure;
    private int present;
    /** Ranks whose communicator was added so far. */
    private int added;
    /** Takes this out of the meeting that it was made from, once every rank has closed its communicator. */
    private final Runnable atEnd;

    Meeting(int ranks) {
        this(() -> {}, null, IntStream.range(0, ranks).toArray());
    }

    private Meeting(Runnable atEnd, @Nullable Meeting parent, int... names) {
        this.atEnd = atEnd;
        this.parent = parent;
        this.names = names;
        ranks = names.length;
        numbers = parent == null ? IntStream.range(0, ranks).toArray() : names;
        splits = new Splits(ranks);
        came = new boolean[ranks];
        agreed = new int[ranks];
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

    List<Integer> numbers(List<Integer> own) {
        return own.stream().map(this::number).toList();
    }

    /** Returns the communicator in which the rank of that number waits for others, or null. */
    @Nullable
    Endpoint waiting(int number) {
        List<Meeting> below;
        lock.lock();
        try {
            for (Endpoint endpoint : endpoints) {
                if (number(endpoint.rank()) == number && endpoint.waiting() != 0) {
                    return endpoint;
                }
            }
            below = List.copyOf(children.values());
        } finally {
            lock.unlock();
        }
        return below.stream()
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
            await(() -> present == ranks, timeoutMillis, waiting, this::absent);
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
    void await(BooleanSupplier condition, long timeoutMillis, String waiting, Supplier<List<Integer>> missing) {
        long begin = System.nanoTime();
        long left = TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        boolean interrupted = false;
        while (!condition.getAsBoolean() && failure == null) {
            if (left <= 0) {
                root().fail(RankFailure.late(waiting, missing.get(), timeoutMillis));
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

    /** Returns whether {@code rank} has closed its communicator. */
    boolean isLeft(int rank) {
        return arrivals.isLeft(rank);
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
        int held = lock.getHoldCount();
        for (int i = 0; i < held; i++) {
            lock.unlock();
        }
        failAfterWord(rank);
        for (int i = 0; i < held; i++) {
            lock.lock();
        }
        return Objects.requireNonNull(failure).exception(waiting);
    }

    /** Fails these ranks, and those that were shrunk from them with {@code rank} among them. */
    void thrown(int rank, Throwable cause) {
        arrivals.left(rank);
        fail(RankFailure.told(rank, cause));
        failRests(rank, cause);
    }

    private void failRests(int rank, Throwable cause) {
        List<Meeting> split;
        List<Meeting> shrunk;
        lock.lock();
        try {
            split = List.copyOf(children.values());
            shrunk = List.copyOf(rests.values());
        } finally {
            lock.unlock();
        }
        split.forEach(child -> child.failRests(rank, cause));
        for (Meeting rest : shrunk) {
            int place = Arrays.binarySearch(rest.names, rank);
            if (place >= 0) {
                rest.fail(RankFailure.thrown(place, cause));
                rest.failRests(place, cause);
            }
        }
    }

    /** Says that {@code rank} comes no more, here and where it is one of those that this was split into or shrunk to. */
    void finished(int rank) {
        List<Meeting> below;
        lock.lock();
        try {
            arrivals.left(rank);
            changed.signalAll();
            below = new ArrayList<>(children.values());
            below.addAll(rests.values());
        } finally {
            lock.unlock();
        }
        int number = number(rank);
        for (Meeting other : below) {
            for (int place = 0; place < other.ranks; place++) {
                if (other.names[place] == number) {
                    other.finished(place);
                }
            }
        }
    }

    /** Waits until it is decided which ranks are left; returns what each of them said. */
    SortedMap<Integer, Long> agree(int rank, long value, String waiting, long timeoutMillis) {
        lock();
        try {
            int number = agreed[rank]++;
            while (accords.size() <= number) {
                accords.add(new Accord(
                        number == 0
                                ? IntStream.range(0, ranks).boxed().toList()
                                : accords.get(number - 1).decideNow().keySet()));
            }
            Accord accord = accords.get(number);
            if (!isMissed(rank)) {
                accord.come(rank, value);
            }
            changed.signalAll();
            long left = TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
            boolean interrupted = false;
            while (!accord.decide(this::isGone) && left > 0) {
                try {
                    left = changed.awaitNanos(left);
                } catch (InterruptedException _) {
                    interrupted = true;
                }
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
            SortedMap<Integer, Long> decided = accord.decideNow();
            if (!decided.containsKey(rank)) {
                throw new RankFailedException(
                        waiting + ": rank " + number(rank) + " came too late, "
                                + RankFailure.names(numbers(List.copyOf(decided.keySet()))) + " went on without it",
                        List.of(number(rank)),
                        null);
            }
            return decided;
        } finally {
            unlock();
        }
    }

    /** Returns whether a rank has ended, or was missed for the timeout already. */
    private boolean isGone(int rank) {
        return isMissed(rank) || isLeft(rank);
    }

    private boolean isMissed(int rank) {
        RankFailure present = failure;
        return present != null && present.waiting() != null && present.ranks().contains(number(rank));
    }

    /** Returns whether {@code rank} takes part in an agreement, or goes on after it, here or where ranks went on before. */
    boolean goesOn(int rank) {
        List<Meeting> shrunk;
        lock.lock();
        try {
            if (isLeft(rank) || accords.isEmpty() || !accords.getLast().has(rank)) {
                return false;
            }
            shrunk = List.copyOf(rests.values());
        } finally {
            lock.unlock();
        }
        for (Meeting rest : shrunk) {
            int place = Arrays.binarySearch(rest.names, number(rank));
            if (place >= 0 && rest.failure() != null) {
                return rest.goesOn(place);
            }
        }
        return true;
    }

    /** Says what {@code rank} calls the split with that is the collective of that number here. */
    void splits(long number, int rank, int color, int key) {
        lock.lock();
        try {
            splits.say(number, rank, color, key);
        } finally {
            lock.unlock();
        }
    }

    /** Says that {@code rank} was in that split without part. */
    void splitWithoutPart(long number) {
        lock.lock();
        try {
            var _ = splits.of(number, Integer.MIN_VALUE);
        } finally {
            lock.unlock();
        }
    }

    /** Returns where the ranks of {@code color} meet after the split that is the collective of that number here. */
    Meeting split(long number, int color) {
        String key = "split " + number + " color " + color;
        lock.lock();
        try {
            int[] places = splits.of(number, color);
            Meeting child = children.computeIfAbsent(
                    key,
                    _ -> new Meeting(
                            () -> forget(children, key),
                            this,
                            Arrays.stream(places).map(this::number).toArray()));
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
            int[] origins = Arrays.stream(staying).map(this::number).toArray();
            return rests.computeIfAbsent(key, _ -> new Meeting(() -> forget(rests, key), null, origins));
        } finally {
            lock.unlock();
        }
    }
}
