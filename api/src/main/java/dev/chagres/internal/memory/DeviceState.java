package dev.chagres.internal.memory;

import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * One open device as all packages see it: its index, the thread that drives it, and native scratch memory that calls on
 * the hot path reuse instead of allocating.
 *
 * <p>Threading: one thread at a time, checked by {@link #ensureCurrent()}.
 */
public final class DeviceState {
    /** The thread that drives devices, and which of them CUDA has as its current one. */
    private static final class Driver {
        private final Thread thread = Thread.currentThread();
        private int current = -1;
        /** Whether a group of collectives is open, which NCCL runs at its end. */
        private boolean grouping;
        /** The device of which a stream captures, or null: CUDA then refuses some calls on every device of the thread. */
        private @Nullable DeviceState capturing;
    }

    private static final ThreadLocal<Driver> DRIVERS = ThreadLocal.withInitial(Driver::new);

    private final int index;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment out = arena.allocate(16, 8);
    private final MemorySegment one = arena.allocateFrom(ValueLayout.JAVA_FLOAT, 1f);
    private final MemorySegment zero = arena.allocateFrom(ValueLayout.JAVA_FLOAT, 0f);
    private final BasicTensor basicTensor = new BasicTensor(this);
    private final HostWaits waits = new HostWaits();
    private final Multiprocessors multiprocessors;
    /** Who drives the device, or did last. */
    private volatile Driver driver = DRIVERS.get();
    /** Whether the driver has given the device up. */
    private volatile boolean detached;
    /**
     * The driver while the device is open and not given up, else null. Every call on the hot path reads this, and it needs
     * no volatile read: a thread finds itself here only if it wrote itself and nothing after that.
     */
    private @Nullable Driver owner = driver;

    private long heldBytes;
    private long peakHeldBytes;
    private final GraphMemory graphs = new GraphMemory();
    /** What belongs to the graph that a stream captures. */
    private @Nullable Capture capture;
    /** The device that the thread captured on when this capture began. */
    private @Nullable DeviceState capturedOutside;

    /** How often weights of any model on the device have changed. */
    private long weightChanges;

    private boolean closed;
    private final List<@Nullable AutoCloseable> attached = new ArrayList<>();

    /** Opens the state of device {@code index} for the calling thread. */
    public DeviceState(int index) {
        refuseVirtual();
        this.index = index;
        ensureCurrent();
        multiprocessors = new Multiprocessors(index, attribute(CudaRuntime.cudaDevAttrMultiProcessorCount()));
    }

    /** Returns CUDA's number of this device. */
    public int index() {
        return index;
    }

    /** Returns how often weights of any model on the device have changed, as far as {@link #changeWeights} was told. */
    public long weightChanges() {
        return weightChanges;
    }

    /** Says that weights of a model change, and returns the number of this change. */
    public long changeWeights() {
        return ++weightChanges;
    }

    /** Returns memory that lives as long as the device. */
    public Arena arena() {
        return arena;
    }

    /** Returns the multiprocessors, and how many of them kernels fill. */
    public Multiprocessors multiprocessors() {
        return multiprocessors;
    }

    /** Returns what CUDA says of the device; {@code attribute} is a {@code cudaDeviceAttr}. */
    public int attribute(int attribute) {
        Status.cuda(CudaRuntime.cudaDeviceGetAttribute(out, attribute, index), "cudaDeviceGetAttribute");
        return out.get(ValueLayout.JAVA_INT, 0);
    }

    /** Returns the waits of the device's thread for its work. */
    public HostWaits waits() {
        return waits;
    }

    /** Returns the scratch through which TE's handles are described. */
    public BasicTensor basicTensor() {
        return basicTensor;
    }

    /** Returns scratch of 16 bytes for out-parameters. */
    public MemorySegment out() {
        return out;
    }

    /** Returns a host float 1. */
    public MemorySegment one() {
        return one;
    }

    /** Returns a host float 0. */
    public MemorySegment zero() {
        return zero;
    }

    /** Takes device memory from CUDA. */
    public MemorySegment malloc(long byteSize) {
        DeviceState capturing = capturing();
        if (capturing != null) {
            throw new CaptureException("memory: " + byteSize + " bytes are wanted while a stream of device "
                    + capturing.index
                    + " captures, when CUDA gives none; run the same work once before the capture, and begin its scopes"
                    + " and passes again, so that they have their memory");
        }
        waits.begin();
        int status = CudaRuntime.cudaMalloc(out, byteSize);
        waits.end();
        if (status == CudaRuntime.cudaErrorMemoryAllocation()) {
            throw Status.outOfMemory(status, "cudaMalloc", byteSize, heldBytes);
        }
        Status.cuda(status, "cudaMalloc");
        hold(byteSize);
        return out.get(ValueLayout.ADDRESS, 0);
    }

    /** Counts device memory that was taken. */
    public void hold(long byteSize) {
        heldBytes += byteSize;
        peakHeldBytes = Math.max(peakHeldBytes, heldBytes);
    }

    /** Gives memory back to CUDA: at once, or when the graphs that may use it are closed. */
    public void free(MemorySegment memory, long byteSize) {
        free(byteSize, () -> cudaFree(memory));
    }

    /** Gives memory that no living graph uses back to CUDA at once. */
    void freeAtOnce(MemorySegment memory, long byteSize) {
        cudaFree(memory);
        heldBytes -= byteSize;
    }

    private void cudaFree(MemorySegment memory) {
        waits.begin(); // cudaFree waits for all work.
        int status = CudaRuntime.cudaFree(memory);
        waits.end();
        Status.cuda(status, "cudaFree");
    }

    /** Gives {@code byteSize} bytes back by {@code free}: at once, or when the graphs that may use them are closed. */
    public void free(long byteSize, Runnable free) {
        Runnable counted = () -> {
            free.run();
            heldBytes -= byteSize;
        };
        if (!graphs.keep(counted)) {
            counted.run();
        }
    }

    /** Begins a capture and returns the number of its graph, for {@link #closeGraph}. */
    public long beginCapture(Capture begun) {
        capturedOutside = driver.capturing;
        driver.capturing = this;
        capture = begun;
        return graphs.begin();
    }

    /** Says that a capture has ended. */
    public void endCapture() {
        driver.capturing = capturedOutside;
        capture = null;
        graphs.endCapture();
    }

    /** Returns what belongs to the graph that a stream of the device captures now, or null when none does. */
    public @Nullable Capture capture() {
        return capture;
    }

    /** Frees what no other graph than this one could use. */
    public void closeGraph(long number) {
        graphs.close(number);
    }

    /**
     * Checks that no stream of the device captures.
     *
     * @throws CaptureException when one does
     */
    public void ensureNotCapturing(String call) {
        if (graphs.isCapturing()) {
            throw refusedByCapture(call, this);
        }
    }

    /**
     * Checks that no stream of any device that the thread drives captures, for calls that CUDA then refuses on all of them.
     *
     * @throws CaptureException when one does
     */
    public void ensureThreadNotCapturing(String call) {
        DeviceState capturing = capturing();
        if (capturing != null) {
            throw refusedByCapture(call, capturing);
        }
    }

    private static CaptureException refusedByCapture(String call, DeviceState capturing) {
        return new CaptureException(call + ": a stream of device " + capturing.index
                + " captures, and what waits for the device or reads the host's memory cannot be part of a graph;"
                + " call it before Stream.capture or after the launch");
    }

    /** Returns the device of which a stream captures on the thread that drives this one, or null. */
    private @Nullable DeviceState capturing() {
        return graphs.isCapturing() ? this : driver.capturing;
    }

    /** Says that the calling thread begins to collect calls that run later, on memory of any of its devices. */
    public static void beginGroup() {
        DRIVERS.get().grouping = true;
    }

    /** Says that those calls were made or forgotten. */
    public static void endGroup() {
        DRIVERS.get().grouping = false;
    }

    /**
     * Checks that no group of collectives is open on the thread that drives the device.
     *
     * @throws IllegalStateException when one is
     */
    public void ensureNotGrouping(String call) {
        if (isGrouping()) {
            throw new IllegalStateException(call + ": expected a call outside of Communicator.group, got one inside;"
                    + " the group's collectives run at its end, and until then need their memory and have no results;"
                    + " call it after the group");
        }
    }

    /** Returns whether a group of collectives is open on the thread that drives the device. */
    public boolean isGrouping() {
        Driver present = owner;
        return present != null && present.grouping;
    }

    /**
     * Checks that what belongs to the device can be closed now: before anything of it is given up, so that a refused close loses
     * nothing. Where the device is closed there is nothing left to check.
     *
     * @throws IllegalStateException while a stream of one of the thread's devices captures, or inside {@code Communicator.group}
     * @throws WrongThreadException from a thread that does not own the device
     */
    public void ensureCloses() {
        if (!closed) {
            ensureCurrent();
            ensureThreadNotCapturing("close");
            ensureNotGrouping("close");
        }
    }

    /** Returns the bytes that are taken now. */
    public long heldBytes() {
        return heldBytes;
    }

    /** Returns the most bytes that {@link #malloc} had taken at one time. */
    public long peakHeldBytes() {
        return peakHeldBytes;
    }

    /**
     * Returns the object of {@code attachment} on this device: made at the first call, closed with the device.
     *
     * @param <A> its type
     */
    public <A extends AutoCloseable> A get(Attachment<A> attachment) {
        while (attached.size() <= attachment.slot) {
            attached.add(null);
        }
        AutoCloseable present = attached.get(attachment.slot);
        if (present == null) {
            present = attachment.maker.apply(this);
            attached.set(attachment.slot, present);
        }
        @SuppressWarnings("unchecked") // A slot holds what its own attachment has made.
        A typed = (A) present;
        return typed;
    }

    /**
     * Something that each device has one of, such as the configuration objects of an operation.
     *
     * @param <A> its type
     */
    public static final class Attachment<A extends AutoCloseable> {
        private static final AtomicInteger SLOTS = new AtomicInteger();

        private final int slot = SLOTS.getAndIncrement();
        private final Function<DeviceState, A> maker;

        /** Says how one is made. */
        public Attachment(Function<DeviceState, A> maker) {
            this.maker = maker;
        }
    }

    /**
     * Makes this device CUDA's current one on the calling thread.
     *
     * @throws IllegalStateException when the device is closed
     * @throws WrongThreadException when another thread owns the device
     */
    public void ensureCurrent() {
        Driver present = owner;
        if (present == null || present.thread != Thread.currentThread()) {
            throw notCurrent();
        }
        if (present.current != index) {
            Status.cuda(CudaRuntime.cudaSetDevice(index), "cudaSetDevice");
            present.current = index;
        }
    }

    private RuntimeException notCurrent() {
        if (detached) {
            return new IllegalStateException("device " + index + " was detached; Device.attach() moves it to a thread");
        }
        Driver present = driver;
        if (present.thread == Thread.currentThread()) {
            return new IllegalStateException("device " + index + " is closed");
        }
        return new WrongThreadException("device " + index + " belongs to thread \"" + present.thread.getName()
                + "\", called from \"" + Thread.currentThread().getName()
                + "\"; Device.detach() there and Device.attach() here move it");
    }

    /** Gives the device up. */
    public void detach() {
        owner = null;
        detached = true;
    }

    /** Moves the device to the calling thread, where its owner has given it up or ended. */
    public void attach() {
        refuseVirtual();
        if (closed) {
            throw new IllegalStateException("device " + index + " is closed");
        }
        Driver present = driver;
        if (!detached && present.thread != Thread.currentThread() && present.thread.isAlive()) {
            throw new IllegalStateException("device " + index + " belongs to thread \"" + present.thread.getName()
                    + "\", which is alive and may be inside a call; call Device.detach() there first");
        }
        driver = DRIVERS.get();
        owner = driver;
        detached = false;
    }

    /** Returns whether the device is closed. */
    public boolean isClosed() {
        return closed;
    }

    /** Closes the attachments and frees the scratch memory. Everything else of the device is closed before. */
    public void close() {
        if (closed) {
            return;
        }
        RuntimeException first = null;
        for (int i = attached.size() - 1; i >= 0; i--) {
            AutoCloseable one = attached.get(i);
            try {
                if (one != null) {
                    one.close();
                }
            } catch (Exception failure) {
                RuntimeException later =
                        failure instanceof RuntimeException runtime ? runtime : new IllegalStateException(failure);
                if (first == null) {
                    first = later;
                } else {
                    first.addSuppressed(later);
                }
            }
        }
        closed = true;
        owner = null;
        arena.close();
        if (first != null) {
            throw first;
        }
    }

    private static void refuseVirtual() {
        if (Thread.currentThread().isVirtual()) {
            throw new WrongThreadException(
                    "a device is driven by a platform thread: TE, cuBLASLt and cuDNN keep state per OS thread, and a"
                            + " virtual thread may change its carrier; start one with Thread.ofPlatform()");
        }
    }
}
