package dev.chagres.internal.memory;

import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.Status;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * A graph's actions on the host: checks and actions at each launch, and actions that undo a failed capture.
 *
 * <p>Threading: the device's thread.
 */
public final class Capture {
    private final List<Object> trusted = new ArrayList<>();
    private final List<Runnable> checks = new ArrayList<>();
    private final List<StepWork> work = new ArrayList<>();
    private final List<Change<?>> changes = new ArrayList<>();
    private final GraphScalars numbers;
    private final List<Runnable> beforeLaunch = new ArrayList<>();
    private final List<Runnable> onRecorded = new ArrayList<>();
    private final List<Runnable> onFailure = new ArrayList<>();
    private final List<Runnable> onEnd = new ArrayList<>();
    private final long stream;

    /** A change of an object on the host at each launch. */
    private record Change<T>(T object, Consumer<T> change) {
        void make() {
            change.accept(object);
        }
    }

    /** Allocates the memory that a capture of {@code stream} needs, before it begins. */
    public Capture(DeviceState device, MemorySegment stream) {
        this.stream = stream.address();
        numbers = new GraphScalars(device);
        try {
            Zeros.load(numbers.address(), stream);
        } catch (RuntimeException | Error failure) {
            numbers.close();
            throw failure;
        }
    }

    /** Returns whether what is enqueued on {@code other} is recorded for certain; another one may have joined the capture. */
    public boolean isOf(MemorySegment other) {
        return other.address() == stream;
    }

    /** Runs {@code stepWork} at each launch. Kernels that {@code stream} captures from now on see what it writes. */
    public void add(StepWork stepWork, MemorySegment stream) {
        numbers.add(stepWork, stream);
        work.add(stepWork);
    }

    /** Runs {@code check} before each launch, once for each {@code tensor}; it throws if kernels may not trust its contents. */
    public void trust(Object tensor, Runnable check) {
        for (int i = 0; i < trusted.size(); i++) {
            if (trusted.get(i) == tensor) {
                return;
            }
        }
        trusted.add(tensor);
        checks.add(check);
    }

    /** Returns what runs as the last thing before each launch, of which there is one of each class, made when first asked for. */
    public <R extends Runnable> R beforeLaunch(Class<R> type, Supplier<R> made) {
        for (int i = 0; i < beforeLaunch.size(); i++) {
            if (type.isInstance(beforeLaunch.get(i))) {
                return type.cast(beforeLaunch.get(i));
            }
        }
        R action = made.get();
        beforeLaunch.add(action);
        return action;
    }

    /**
     * Counts a change of {@code object}: now, by {@code change}, unless the capture {@code own} of the stream on which it was enqueued records
     * it: then {@code recorded} counts it until that capture is over. While the device captures, each launch counts it, too, since any stream may
     * have joined the capture. References to instance methods make no garbage while nothing is captured.
     *
     * @param own null where that stream does not capture
     * @param ofDevice null where no stream of the device captures
     */
    public static <T> void countChange(
            @Nullable Capture own,
            @Nullable Capture ofDevice,
            T object,
            Consumer<T> change,
            BiConsumer<T, Capture> recorded) {
        if (own == null) {
            change.accept(object);
        } else {
            recorded.accept(object, own);
        }
        if (ofDevice != null) {
            ofDevice.eachLaunch(object, change);
        }
    }

    /**
     * Applies {@code change} to {@code object} at each launch, once however often this is called for the object. Objects are changed in the
     * order of the last call for each.
     */
    public <T> void eachLaunch(T object, Consumer<T> change) {
        for (int i = 0; i < changes.size(); i++) {
            if (changes.get(i).object() == object) {
                changes.remove(i);
                break;
            }
        }
        changes.add(new Change<>(object, change));
    }

    /** Returns whether launches change {@code object}: whether {@link #eachLaunch} was called for it. */
    public boolean changes(Object object) {
        for (int i = 0; i < changes.size(); i++) {
            if (changes.get(i).object() == object) {
                return true;
            }
        }
        return false;
    }

    /** Runs {@code action} when the capture has succeeded. */
    public void onRecorded(Runnable action) {
        onRecorded.add(action);
    }

    /** Runs {@code action} when the capture fails. */
    public void onFailure(Runnable action) {
        onFailure.add(action);
    }

    /** Runs {@code action} when the capture is over, whether it has succeeded or failed. */
    public void onRecordedOrFailure(Runnable action) {
        onRecorded(action);
        onFailure(action);
    }

    /** Runs {@code action} when the graph is closed, and when the capture fails. */
    public void onEnd(Runnable action) {
        onEnd.add(action);
    }

    /**
     * Checks before a replay of a step that the program has set the numbers which it alone knows since the step before.
     *
     * @throws IllegalStateException when it has not
     */
    public void ensureSet() {
        work.forEach(StepWork::checkSet);
    }

    /** Checks that everything is there, then enqueues on {@code stream} what comes before the graph. No counter moves. */
    public void prepare(MemorySegment stream) {
        checks.forEach(Runnable::run);
        work.forEach(StepWork::check);
        work.forEach(StepWork::write);
        numbers.write(stream);
        beforeLaunch.forEach(Runnable::run);
    }

    /** Moves the counters on. */
    public void finish() {
        work.forEach(StepWork::count);
        for (int i = 0; i < changes.size(); i++) {
            changes.get(i).make();
        }
    }

    /** Records that the capture has succeeded. */
    public void recorded() {
        onRecorded.forEach(Runnable::run);
    }

    /** Undoes what the capture has begun. */
    public void fail() {
        onFailure.forEach(Runnable::run);
        end();
    }

    /** Records that the graph is closed. */
    public void end() {
        onEnd.forEach(Runnable::run);
        numbers.close();
    }

    /**
     * The numbers that one graph reads and the host changes from launch to launch. They lie side by side in a block of the device's
     * memory, which kernels write before each launch, 2 KiB each; nodes of the graph copy them from there to where kernels read them. So a
     * launch cannot change the numbers of one that still runs, nor those of another graph or of steps that are enqueued.
     */
    private static final class GraphScalars implements AutoCloseable {
        private static final long BYTES = 16 << 10;
        private static final long ALIGNMENT = 16;
        private static final int DEVICE_TO_DEVICE = 3;

        /** The place of a work's numbers in the block. */
        private record Place(StepWork work, long offset, long byteSize) {}

        private final DeviceState device;
        private final MemorySegment block;
        private final Arena arena;
        private final MemorySegment host;
        private final List<Place> places = new ArrayList<>();
        private long used;

        /** Allocates the block before the capture, during which CUDA allocates no memory. */
        GraphScalars(DeviceState device) {
            this.device = device;
            block = device.malloc(BYTES); // First: if it fails, there is nothing to close.
            arena = Arena.ofShared();
            host = arena.allocate(BYTES, ALIGNMENT);
        }

        /** Returns the block's address; before the capture there is nothing in it. */
        long address() {
            return block.address();
        }

        /**
         * Reserves a place for the numbers of {@code work}, and captures the copy to where kernels read them.
         *
         * @throws CaptureException when there is no room
         */
        void add(StepWork work, MemorySegment stream) {
            long bytes = work.byteSize();
            if (bytes == 0) {
                return;
            }
            if (bytes > BYTES - used) {
                throw new CaptureException("capture: expected at most " + BYTES
                        + " bytes of rates and other numbers that change from launch to launch, got " + (used + bytes)
                        + "; capture fewer micro-batches, or an optimizer of fewer groups");
            }
            Status.cuda(
                    AddressCalls.cudaMemcpyAsync(
                            work.address(), block.address() + used, bytes, DEVICE_TO_DEVICE, stream),
                    "cudaMemcpyAsync");
            places.add(new Place(work, used, bytes));
            used += bytes + ALIGNMENT - 1 & -ALIGNMENT;
        }

        /** Enqueues the numbers of the coming launch, by a kernel for each 2 KiB. */
        void write(MemorySegment stream) {
            if (used == 0) {
                return;
            }
            for (int i = 0; i < places.size(); i++) {
                Place place = places.get(i);
                MemorySegment.copy(place.work.numbers(), 0, host, place.offset, place.byteSize);
            }
            Status.te(
                    AddressCalls.te_copy_host_to_device_via_kernel(host, block.address(), used, stream),
                    "te_copy_host_to_device_via_kernel");
        }

        /** Frees the block at once, whatever other graphs live: only its own graph reads it, and that is closed. */
        @Override
        public void close() {
            arena.close();
            device.freeAtOnce(block, BYTES);
        }
    }
}
