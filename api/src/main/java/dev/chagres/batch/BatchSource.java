package dev.chagres.batch;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.internal.memory.Uninterruptibles;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * Reads batches ahead on a separate thread, so that a training step does not wait for the disk.
 *
 * <p>Batches come in order, the same in every run. A failure while reading is thrown after the batches before it, by every further {@link
 * #take}. Batches are reused: {@link #recycle} returns one, so that taking and returning batches makes no garbage (this is why a monitor is
 * used: the queues of java.util.concurrent allocate nodes when they wait).
 *
 * <p>Threading: thread-safe.
 */
public final class BatchSource implements Batches, AutoCloseable {
    /** How long {@link #close} waits for a reader that may be blocked in a read. */
    private static final long PATIENCE_NANOS = TimeUnit.SECONDS.toNanos(1);

    private static final int MOST = 1024;

    private final Object lock = new Object();
    private final SequencePacker packer;
    private final Batch[] filled;
    private int filledFirst;
    private int filledCount;
    private final Batch[] free;
    private int freeCount;
    private final @Nullable Batch[] taken;
    private @Nullable RuntimeException failure;
    private boolean ended;
    private boolean stopped;
    private boolean closed;
    private final Thread reader;

    /**
     * Starts reading.
     *
     * @param packer fills the batches; owned by this source from now on
     * @param batches how many batches exist, at least 1; reading pauses while all are filled or taken
     * @throws IllegalArgumentException when {@code batches} is below 1, or above 1,024
     */
    public BatchSource(SequencePacker packer, int batches) {
        Checks.given("packer", packer);
        Numbers.within("batches", batches, 1, MOST);
        this.packer = packer;
        filled = new Batch[batches];
        free = new Batch[batches];
        taken = new Batch[batches];
        for (freeCount = 0; freeCount < batches; freeCount++) {
            free[freeCount] = new Batch(packer.shape());
        }
        reader = Thread.ofPlatform().daemon().name("batch-reader").start(this::readAhead);
    }

    /**
     * Returns the next batch, waiting until it is there; null when the data has ended or {@link #stop} was called.
     *
     * @throws IllegalStateException when this source is closed, now or while waiting, or the reader met an {@link Error}
     * @throws InterruptedException when the calling thread is interrupted while waiting
     * @throws RuntimeException what the sequences threw where reading failed
     */
    @Override
    public @Nullable Batch take() throws InterruptedException {
        synchronized (lock) {
            if (!awaitFilled()) {
                return null;
            }
            Batch batch = filled[filledFirst];
            filledFirst = (filledFirst + 1) % filled.length;
            filledCount--;
            replaceTaken(null, batch);
            return batch;
        }
    }

    /**
     * Returns the batch that the next {@link #take} will return, which must only be read, waiting until it is there; null when the data has
     * ended or {@link #stop} was called. So a program can report bad data before it begins other work.
     *
     * @throws IllegalStateException when this source is closed, now or while waiting, or the reader met an {@link Error}
     * @throws InterruptedException when the calling thread is interrupted while waiting
     * @throws RuntimeException the exception of the sequences if reading failed before this batch
     */
    public @Nullable Batch peek() throws InterruptedException {
        synchronized (lock) {
            return awaitFilled() ? filled[filledFirst] : null;
        }
    }

    /**
     * Returns a batch to be filled again; its contents must not be used afterwards.
     *
     * @throws IllegalArgumentException when the batch was not returned by {@link #take}, or was recycled already
     */
    @Override
    public void recycle(Batch batch) {
        Checks.given("batch", batch);
        synchronized (lock) {
            if (!replaceTaken(batch, null)) {
                throw new IllegalArgumentException("batch: expected one taken from this source and not recycled yet");
            }
            free[freeCount++] = batch;
            lock.notifyAll();
        }
    }

    /** Ends the batches: {@link #take} returns null from now on, also to a thread that waits in it, even if further batches were read. */
    @Override
    public void stop() {
        synchronized (lock) {
            stopped = true;
            lock.notifyAll();
        }
    }

    /**
     * Stops the reading thread and waits until it has closed the data. A reader that is blocked in a read, such as of a pipe without a
     * writer, is interrupted and, after a second, abandoned: it is a daemon thread, and closes the data if the read ends. A second call
     * does nothing.
     */
    @Override
    public void close() {
        synchronized (lock) {
            closed = true;
            lock.notifyAll();
        }
        reader.interrupt();
        var _ = Uninterruptibles.await(PATIENCE_NANOS, left -> reader.join(Duration.ofNanos(left)));
    }

    /** Waits for a filled batch, with the lock held; false when there will be none. */
    private boolean awaitFilled() throws InterruptedException {
        while (filledCount == 0 && failure == null && !ended && !stopped && !closed) {
            lock.wait();
        }
        if (closed) {
            throw new IllegalStateException("BatchSource is closed");
        }
        if (stopped) {
            return false;
        }
        if (filledCount == 0 && failure != null) {
            throw failure;
        }
        return filledCount > 0;
    }

    private boolean replaceTaken(@Nullable Batch from, @Nullable Batch to) {
        for (int i = 0; i < taken.length; i++) {
            if (taken[i] == from) {
                taken[i] = to;
                return true;
            }
        }
        return false;
    }

    private void readAhead() {
        RuntimeException problem = null;
        try (packer) {
            for (Batch batch = nextFree(); batch != null && packer.fill(batch); batch = nextFree()) {
                hand(batch);
            }
        } catch (RuntimeException e) {
            problem = e;
        } catch (Error e) {
            problem = new IllegalStateException("reading ahead failed: " + e, e);
        }
        synchronized (lock) {
            failure = problem;
            ended = true;
            lock.notifyAll();
        }
    }

    /** Waits for a batch to fill; null when this source was closed. */
    private @Nullable Batch nextFree() {
        synchronized (lock) {
            while (freeCount == 0 && !closed) {
                try {
                    lock.wait();
                } catch (InterruptedException e) {
                    return null;
                }
            }
            return closed ? null : free[--freeCount];
        }
    }

    private void hand(Batch batch) {
        synchronized (lock) {
            filled[(filledFirst + filledCount) % filled.length] = batch;
            filledCount++;
            lock.notifyAll();
        }
    }
}
