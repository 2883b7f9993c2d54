package dev.chagres.sharding;

import dev.chagres.nccl.PeerProgress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import java.util.function.ObjIntConsumer;
import org.jspecify.annotations.Nullable;

/**
 * Where ranks that are processes hear of each other, over TCP: that all have come, what they then share, which has failed, that all have
 * finished. Rank 0 listens, at the named address alone; ranks prove to each other that they know a secret, which itself is never sent.
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: PyTorch's {@code TCPStore} does this for its process groups.
 */
abstract class TcpStore implements AutoCloseable {
    /** Counted up when messages change. */
    static final String VERSION = "chagres store 2";

    static final String ENDED = "its process has ended";

    /** A rank that failed, and how. */
    record Failure(int rank, String text) {}

    final RankEnvironment environment;
    final ReentrantLock lock = new ReentrantLock();
    final Condition changed = lock.newCondition();
    private @Nullable Failure failure;
    private boolean allDone;
    private @Nullable ObjIntConsumer<String> listener;
    private volatile @Nullable Function<String, PeerProgress> answering;

    TcpStore(RankEnvironment environment) {
        this.environment = environment;
    }

    /**
     * Waits until all ranks have come.
     *
     * @param build of the library, which must be the same on all
     * @param what the ranks do, which must be the same on all
     * @param shared what rank 0 gives to all
     * @throws IllegalStateException when a rank does not come within the timeout, comes twice, or is of another run; the text names it
     */
    static TcpStore join(RankEnvironment environment, String build, String what, byte[] shared, Duration timeout) {
        return environment.rank() == 0
                ? StoreServer.open(environment, build, what, shared, timeout)
                : StoreClient.open(environment, hello(environment, build, what), timeout);
    }

    /** Returns what rank 0 gave. */
    abstract byte[] shared();

    /** Tells the others that a rank has failed: this one, or one that it waited for; -1 when it does not know which. */
    abstract void fail(int rank, String text);

    /** Asks all other ranks where they are, and returns who is to blame. */
    abstract List<Integer> ask(String question);

    /** Names who answers for this rank. */
    void answering(Function<String, PeerProgress> called) {
        answering = called;
    }

    PeerProgress answer(String question) {
        Function<String, PeerProgress> present = answering;
        return present == null ? PeerProgress.LATE : present.apply(question);
    }

    /** Tells the others that this rank has finished. */
    abstract void done();

    @Override
    public abstract void close();

    /** Names who is called when another rank fails, at once where one has. */
    void onFailure(ObjIntConsumer<String> called) {
        Failure present;
        lock.lock();
        try {
            listener = called;
            present = failure;
        } finally {
            lock.unlock();
        }
        if (present != null) {
            called.accept(present.text(), present.rank());
        }
    }

    /** Keeps the first failure of another rank; returns whether it is that. */
    boolean failed(int rank, String text) {
        ObjIntConsumer<String> called;
        lock.lock();
        try {
            if (failure != null || allDone) {
                return false;
            }
            failure = new Failure(rank, text);
            called = listener;
            changed.signalAll();
        } finally {
            lock.unlock();
        }
        if (called != null) {
            called.accept(text, rank);
        }
        return true;
    }

    void allDone() {
        lock.lock();
        try {
            allDone = true;
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    /** Waits until all ranks have finished; returns who has failed instead, or null. */
    @Nullable
    Failure awaitAll() {
        lock.lock();
        try {
            while (!allDone && failure == null) {
                changed.awaitUninterruptibly();
            }
            return failure;
        } finally {
            lock.unlock();
        }
    }

    /** Returns how this rank says of what run it is; {@code build} is its library. */
    static byte[] hello(RankEnvironment environment, String build, String what) {
        return (VERSION + "\n" + build + "\n" + environment.count() + "\n" + what).getBytes(StandardCharsets.UTF_8);
    }
}
