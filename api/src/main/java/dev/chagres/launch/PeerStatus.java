package dev.chagres.launch;

import dev.chagres.internal.RankNames;
import dev.chagres.internal.ScopedLock;
import dev.chagres.internal.memory.Uninterruptibles;
import dev.chagres.nccl.PeerProgress;
import java.net.ProtocolException;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.function.BiConsumer;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * What a rank knows of the others: which have failed, which remain, and whether all have finished. It is kept when another rank takes over
 * the store.
 *
 * <p>Threading: thread-safe; the listener is called on a thread of its own, in the order in which things were heard.
 */
final class PeerStatus implements AutoCloseable {
    /** Receives the news. */
    interface Listener {
        /** A rank has failed; -1: unknown which. */
        void failed(int rank, String text);

        /** The remaining ranks were decided, and this rank is one of them. */
        void decided();
    }

    private final int own;
    /** How many ranks there were at first. */
    final int count;

    private final ScopedLock lock = new ScopedLock();
    private final Condition changed = lock.newCondition();
    private final ExecutorService telling = Executors.newSingleThreadExecutor(
            Thread.ofPlatform().daemon().name("chagres-store-news").factory());
    private final Set<Integer> members;
    private TcpStore.@Nullable Failure failure;
    private @Nullable ShrinkDecision decision;
    /** The same, once the listener was notified. */
    private @Nullable ShrinkDecision told;

    /** The number of decisions. */
    private int decisions;

    private boolean allDone;
    private boolean closed;
    private @Nullable Listener listener;
    private volatile @Nullable Function<String, PeerProgress> answering;
    private volatile @Nullable BiConsumer<Integer, String> hearing;

    PeerStatus(int own, int count) {
        this.own = own;
        this.count = count;
        members = IntStream.range(0, count).boxed().collect(Collectors.toCollection(TreeSet::new));
    }

    void answering(Function<String, PeerProgress> called) {
        answering = called;
    }

    void hearing(BiConsumer<Integer, String> called) {
        hearing = called;
    }

    /**
     * Receives another rank's call.
     *
     * @throws ProtocolException when there is no room for it
     */
    void heard(int rank, String call) throws ProtocolException {
        BiConsumer<Integer, String> present = hearing;
        if (present != null) {
            try {
                present.accept(rank, call);
            } catch (IllegalStateException full) {
                throw new ProtocolException("CALL: " + full.getMessage());
            }
        }
    }

    PeerProgress answer(String question) {
        Function<String, PeerProgress> present = answering;
        try {
            return present == null ? PeerProgress.LATE : present.apply(question);
        } catch (IllegalArgumentException | IndexOutOfBoundsException unreadable) {
            return PeerProgress.CAME; // It is about nothing that this rank could be late for.
        }
    }

    /** Sets the listener, and notifies it at once if a rank has failed. */
    void listener(Listener called) {
        try (var _ = lock.hold()) {
            listener = called;
            TcpStore.Failure present = failure;
            if (present != null) {
                tell(() -> called.failed(present.rank(), present.text()));
            }
        }
    }

    /** The lock is held, so that news are passed on in order. */
    private void tell(Runnable what) {
        if (!closed) {
            telling.execute(what);
        }
    }

    /** Returns this rank's proposal after a failure. */
    StoreMessages.Told telling(String text) {
        try (var _ = lock.hold()) {
            return new StoreMessages.Told(decisions, text);
        }
    }

    /** Keeps the first failure that another rank reports, unless it has led to a decision already; returns whether it is kept. */
    boolean failed(int rank, StoreMessages.Told told) {
        try (var _ = lock.hold()) {
            return told.decisions() >= decisions && failed(rank, told.text());
        }
    }

    /** Keeps the first failure of another rank; returns whether it is that. */
    boolean failed(int rank, String text) {
        try (var _ = lock.hold()) {
            return (rank < 0 || members.contains(rank)) && keep(new TcpStore.Failure(rank, text));
        }
    }

    private boolean keep(TcpStore.Failure heard) {
        if (failure != null || allDone) {
            return false;
        }
        failure = heard;
        Listener called = listener;
        if (called != null) {
            tell(() -> called.failed(heard.rank(), heard.text()));
        }
        changed.signalAll();
        return true;
    }

    /** Sets the remaining ranks. */
    void decided(ShrinkDecision made) {
        try (var _ = lock.hold()) {
            decision = made;
            decisions++;
            if (made.left().containsKey(own)) {
                failure = null;
                Listener called = listener;
                if (called != null) {
                    tell(called::decided);
                }
            }
            if (made.refusal().isEmpty()) {
                members.clear();
                members.addAll(made.left().keySet());
                if (!members.contains(own)) {
                    keep(new TcpStore.Failure(own, RankNames.of(members) + " went on without it"));
                }
            }
            tell(() -> told(made));
        }
    }

    private void told(ShrinkDecision made) {
        try (var _ = lock.hold()) {
            told = made;
            changed.signalAll();
        }
    }

    /** Returns the latest decision that the listener has received, or null. */
    @Nullable
    ShrinkDecision told() {
        try (var _ = lock.hold()) {
            return told;
        }
    }

    /** Waits, up to the timeout, for a decision other than {@code before}; returns it, or null. */
    @Nullable
    ShrinkDecision awaitDecision(@Nullable ShrinkDecision before, long millis) {
        try (var _ = lock.hold()) {
            var _ = Uninterruptibles.await(TimeUnit.MILLISECONDS.toNanos(millis), left -> {
                long rest = left;
                while (told == before && rest > 0) {
                    rest = changed.awaitNanos(rest);
                }
                return rest;
            });
            return told == before ? null : told;
        }
    }

    /** Returns the latest decision, or null. */
    @Nullable
    ShrinkDecision decision() {
        try (var _ = lock.hold()) {
            return decision;
        }
    }

    boolean isMember(int rank) {
        try (var _ = lock.hold()) {
            return members.contains(rank);
        }
    }

    /** Returns the remaining ranks. */
    Set<Integer> members() {
        try (var _ = lock.hold()) {
            return new TreeSet<>(members);
        }
    }

    TcpStore.@Nullable Failure failure() {
        try (var _ = lock.hold()) {
            return failure;
        }
    }

    void allDone() {
        try (var _ = lock.hold()) {
            allDone = true;
            changed.signalAll();
        }
    }

    /** Waits until all ranks have finished; returns the failure if one has failed instead, or null. */
    TcpStore.@Nullable Failure awaitAll() {
        try (var _ = lock.hold()) {
            while (!allDone && failure == null) {
                changed.awaitUninterruptibly();
            }
            return failure;
        }
    }

    @Override
    public void close() {
        try (var _ = lock.hold()) {
            closed = true;
            telling.shutdown();
        }
    }
}
