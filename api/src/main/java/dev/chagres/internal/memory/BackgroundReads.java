package dev.chagres.internal.memory;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.jspecify.annotations.Nullable;

/**
 * Reads memory of a device on a thread of its own while the device works: copies go through two halves of pinned memory, of which one is
 * filled while the other is taken. One for each device; its memory stays for the next time.
 *
 * <p>Threading: the device's thread.
 */
public final class BackgroundReads implements AutoCloseable {
    private static final DeviceState.Attachment<BackgroundReads> ATTACHMENT =
            new DeviceState.Attachment<>(BackgroundReads::new);
    private static final int HALVES = 2;
    private static final int DEVICE_TO_HOST = 2;
    private static final int NON_BLOCKING = 1;
    private static final int PORTABLE = 1;

    private final DeviceState device;
    private final ExecutorService thread = Executors.newSingleThreadExecutor(
            Thread.ofPlatform().daemon().name("checkpoint").factory());
    /** One for each half, so that the thread waits for the copies of that half alone. */
    private final List<MemorySegment> streams = new ArrayList<>();

    private MemorySegment pinned = MemorySegment.NULL;

    /** Bytes that are copied together. */
    public interface Piece {
        /** Returns the device's address of the first one. */
        long address();

        /** Returns how many there are, at most half of the pinned memory. */
        long byteSize();

        /** Takes them, on the reading thread. */
        void take(MemorySegment bytes) throws IOException;
    }

    /** What the thread does. */
    @FunctionalInterface
    public interface Work {
        /** Runs it; {@code copies} lets every piece take its bytes. */
        void run(Copies copies) throws IOException;
    }

    /** Lets every piece take its bytes. */
    @FunctionalInterface
    public interface Copies {
        /** Returns when all have taken them. */
        void run() throws IOException;
    }

    private BackgroundReads(DeviceState device) {
        this.device = device;
    }

    /** Returns that of a device. */
    public static BackgroundReads of(DeviceState device) {
        return device.get(ATTACHMENT);
    }

    /**
     * Begins to read. Until {@link Reading#awaitRead} returns, the bytes must stay as they are; {@link DeviceState#awaitReads} waits for
     * that, and so does what frees memory of the device.
     *
     * @param most bytes of pinned memory
     */
    public Reading begin(long most, List<? extends Piece> pieces, Work work) {
        device.ensureThreadNotCapturing("save");
        long all = bytes(pieces);
        List<List<Piece>> batches = batches(pieces, all > most ? most / HALVES : all);
        reserve(all, most);
        MemorySegment memory = pinned;
        List<MemorySegment> own = List.copyOf(streams);
        var reading = new Reading();
        reading.done = thread.submit(() -> {
            try {
                Status.cuda(CudaRuntime.cudaSetDevice(device.index()), "cudaSetDevice");
                work.run(() -> copy(batches, memory, own, reading.read));
            } finally {
                reading.read.countDown();
            }
            return null;
        });
        device.reads(reading);
        return reading;
    }

    /** Runs {@code work} on the thread, after what it has to do already. */
    public Future<?> submit(Callable<?> work) {
        return thread.submit(work);
    }

    private static List<List<Piece>> batches(List<? extends Piece> pieces, long most) {
        List<List<Piece>> batches = new ArrayList<>();
        long used = Long.MAX_VALUE;
        for (Piece piece : pieces) {
            if (used > most - piece.byteSize()) {
                batches.add(new ArrayList<>());
                used = 0;
            }
            batches.getLast().add(piece);
            used += piece.byteSize();
        }
        return batches;
    }

    /**
     * Takes the pinned memory of later {@link #begin} calls now: locking a gibibyte takes about a second.
     *
     * @param most bytes of pinned memory
     * @param pieces that will be read
     */
    public void reserve(long most, List<? extends Piece> pieces) {
        reserve(bytes(pieces), most);
    }

    private static long bytes(List<? extends Piece> pieces) {
        return pieces.stream().mapToLong(Piece::byteSize).sum();
    }

    private void reserve(long all, long most) {
        if (all == 0) {
            return;
        }
        device.ensureThreadNotCapturing("reserve");
        MemorySegment out = device.out();
        while (streams.size() < HALVES) {
            Status.cuda(CudaRuntime.cudaStreamCreateWithFlags(out, NON_BLOCKING), "cudaStreamCreateWithFlags");
            streams.add(out.get(ValueLayout.ADDRESS, 0));
        }
        long bytes = all > most ? most / HALVES * HALVES : all;
        if (bytes > pinned.byteSize()) {
            await(thread.submit(() -> {})); // What is under way uses the memory.
            release();
            int status = CudaRuntime.cudaHostAlloc(out, bytes, PORTABLE);
            if (status == CudaRuntime.cudaErrorMemoryAllocation()) {
                throw Status.outOfHostMemory(status, "cudaHostAlloc", bytes);
            }
            Status.cuda(status, "cudaHostAlloc");
            pinned = out.get(ValueLayout.ADDRESS, 0).reinterpret(bytes);
        }
    }

    private static void copy(
            List<List<Piece>> batches, MemorySegment memory, List<MemorySegment> streams, CountDownLatch read)
            throws IOException {
        int last = batches.size() - 1;
        long half = last > 0 ? memory.byteSize() / HALVES : 0;
        if (last >= 0) {
            enqueue(batches.getFirst(), memory, streams.getFirst());
        }
        for (int i = 0; i <= last; i++) {
            int next = (i + 1) % HALVES;
            if (i < last) {
                enqueue(batches.get(i + 1), memory.asSlice(next * half), streams.get(next));
            }
            await(streams.get(i % HALVES));
            if (i + 1 == last) {
                await(streams.get(next));
            }
            if (i + 1 >= last) {
                read.countDown();
            }
            long place = i % HALVES * half;
            for (Piece piece : batches.get(i)) {
                piece.take(memory.asSlice(place, piece.byteSize()));
                place += piece.byteSize();
            }
        }
    }

    private static void enqueue(List<Piece> batch, MemorySegment memory, MemorySegment stream) {
        long place = 0;
        for (Piece piece : batch) {
            int status = CudaRuntime.cudaMemcpyAsync(
                    memory.asSlice(place, piece.byteSize()),
                    MemorySegment.ofAddress(piece.address()),
                    piece.byteSize(),
                    DEVICE_TO_HOST,
                    stream);
            Status.cuda(status, "cudaMemcpyAsync");
            place += piece.byteSize();
        }
    }

    private static void await(MemorySegment stream) {
        Status.cuda(CudaRuntime.cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    }

    private static void await(Future<?> work) {
        Uninterruptibles.await(() -> {
            try {
                work.get();
            } catch (ExecutionException e) {
                throw new IllegalStateException(e.getCause());
            }
        });
    }

    private void release() {
        MemorySegment former = pinned;
        pinned = MemorySegment.NULL;
        if (former.address() != 0) {
            Status.cuda(CudaRuntime.cudaFreeHost(former), "cudaFreeHost");
        }
    }

    /** Waits for the thread and frees the pinned memory. */
    @Override
    public void close() {
        thread.close();
        device.ensureCurrent();
        release();
        for (MemorySegment stream : streams) {
            Status.cuda(CudaRuntime.cudaStreamDestroy(stream), "cudaStreamDestroy");
        }
        streams.clear();
    }

    /**
     * Some memory that is read.
     *
     * <p>Threading: any thread.
     */
    public static final class Reading {
        private final CountDownLatch read = new CountDownLatch(1);
        private @Nullable Future<?> done;

        private Reading() {}

        /** Waits until the memory may change; an interrupt is kept for later. */
        public void awaitRead() {
            Uninterruptibles.await(read::await);
        }

        /** Returns whether the work has ended. */
        public boolean isDone() {
            return done != null && done.isDone();
        }

        /**
         * Waits for the end of the work.
         *
         * @throws IOException what it throws, or when the thread is interrupted
         */
        public void await() throws IOException {
            if (done != null) {
                BackgroundReads.result(done);
            }
        }
    }

    /**
     * Waits for the end of what a thread does.
     *
     * @throws IOException what it throws, or when the thread is interrupted
     */
    public static void result(Future<?> work) throws IOException {
        try {
            work.get();
        } catch (ExecutionException e) {
            switch (e.getCause()) {
                case IOException failure -> throw failure;
                case RuntimeException failure -> throw failure;
                case Error failure -> throw failure;
                case null, default -> throw new IllegalStateException(e.getCause());
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("the thread was interrupted while it saved");
        }
    }
}
