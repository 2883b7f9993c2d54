package dev.chagres.internal.memory;

import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.internal.memory.HeldMemory.GraphMemory;
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
    private final int index;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment out = arena.allocate(16, 8);
    private final MemorySegment one = arena.allocateFrom(ValueLayout.JAVA_FLOAT, 1f);
    private final MemorySegment zero = arena.allocateFrom(ValueLayout.JAVA_FLOAT, 0f);
    private final BasicTensor basicTensor = new BasicTensor(this);
    private final HostWaits waits = new HostWaits();
    private final GraphMemory graphs = new GraphMemory();
    /** What a thread of its own reads; as a rule nothing. */
    private final List<BackgroundReads.Reading> reads = new ArrayList<>(1);

    private final HeldMemory held = new HeldMemory(out, waits, graphs, this::finishReads);
    private final Attachments attachments = new Attachments(this);
    private final Multiprocessors multiprocessors;
    /** Who drives the device, or did last. */
    private volatile Driver driver = Driver.ofThread();
    /** Whether the driver has detached from the device. */
    private volatile boolean detached;
    /**
     * The driver while the device is open and not given up, else null. Every call on the hot path reads this, and it needs
     * no volatile read: a thread finds itself here only if it wrote itself and nothing after that.
     */
    private @Nullable Driver owner = driver;

    /** What belongs to the graph that a stream captures. */
    private @Nullable Capture capture;
    /** The device that the thread captured on when this capture began. */
    private @Nullable DeviceState capturedOutside;

    /** How often weights of any model on the device have changed, and tensors were written by their methods. */
    private long changes;

    private final boolean counting;
    private @Nullable WorkListener workListener;

    private boolean closed;

    /** Opens the state of device {@code index} for the calling thread. */
    public DeviceState(int index) {
        Driver.refuseVirtual();
        this.index = index;
        counting = Counting.begin();
        driver.take();
        try {
            ensureCurrent();
            multiprocessors = new Multiprocessors(index, attribute(CudaRuntime.cudaDevAttrMultiProcessorCount()));
        } catch (RuntimeException refused) {
            driver.release();
            throw refused;
        }
    }

    /** Returns CUDA's number of this device. */
    public int index() {
        return index;
    }

    /** Returns how often weights of any model on the device have changed, and tensors were written by their methods. */
    public long changes() {
        return changes;
    }

    /** Counts a change of a model's weights, or a write to a tensor by one of its methods, and returns the number of this change. */
    public long countChange() {
        return ++changes;
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

    /** Allocates device memory that no holder has. */
    public MemorySegment malloc(long byteSize) {
        return malloc(byteSize, 0);
    }

    /** Allocates device memory for the holder of this number. */
    public MemorySegment malloc(long byteSize, int holder) {
        DeviceState capturing = capturing();
        if (capturing != null) {
            throw new CaptureException("memory: " + byteSize + " bytes are wanted while a stream of device "
                    + capturing.index
                    + " captures, when CUDA gives none; run the same work once before the capture, and begin its scopes"
                    + " and passes again, so that they have their memory");
        }
        return held.malloc(byteSize, holder);
    }

    /** Counts allocated device memory. */
    public void hold(long byteSize, int holder) {
        held.hold(byteSize, holder);
    }

    /** Frees memory: at once, or when the graphs that may use it are closed. */
    public void free(MemorySegment memory, long byteSize) {
        free(memory, byteSize, 0);
    }

    /** Frees memory of the holder of this number, likewise. */
    public void free(MemorySegment memory, long byteSize, int holder) {
        held.free(memory, byteSize, holder);
    }

    /** Frees memory that no living graph uses at once. */
    void freeAtOnce(MemorySegment memory, long byteSize) {
        held.freeAtOnce(memory, byteSize, 0);
    }

    /** Frees {@code byteSize} bytes by {@code free}: at once, or when the graphs that may use them are closed. */
    public void free(long byteSize, int holder, Runnable free) {
        held.free(byteSize, holder, free);
    }

    /** Records that memory of the device is read on another thread. */
    void reads(BackgroundReads.Reading reading) {
        reads.add(reading);
    }

    /** Returns whether memory is read since the last {@link #awaitReads}; all ranks that save together find the same. */
    public boolean isRead() {
        return !reads.isEmpty();
    }

    /** Waits until no other thread reads memory of the device: before weights or what belongs to them change. */
    public void awaitReads() {
        if (!reads.isEmpty()) {
            finishReads();
            reads.clear();
        }
    }

    private void finishReads() {
        reads.forEach(BackgroundReads.Reading::awaitRead);
    }

    /** Begins a capture and returns the number of its graph, for {@link #closeGraph}. */
    public long beginCapture(Capture begun) {
        capturedOutside = driver.exchangeCapturing(this);
        capture = begun;
        return graphs.begin();
    }

    /** Ends a capture. */
    public void endCapture() {
        var _ = driver.exchangeCapturing(capturedOutside);
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
        return graphs.isCapturing() ? this : driver.capturing();
    }

    /** Records that the calling thread begins to collect calls that run later, on memory of any of its devices. */
    public static void beginGroup() {
        Driver.ofThread().grouping(true);
    }

    /** Records that those calls were made or discarded. */
    public static void endGroup() {
        Driver.ofThread().grouping(false);
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
        return present != null && present.isGrouping();
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
        return held.bytes();
    }

    /** Sets what errors say of who holds memory, given the bytes of each holder. */
    public void describingMemory(Function<long[], String> description) {
        held.describing(description);
    }

    /** Returns who holds memory, and what would help, behind a colon; empty for nobody. */
    public String holders() {
        return held.holders();
    }

    /** Returns the bytes of each holder now. */
    public long[] bytesByHolder() {
        return held.byHolder();
    }

    /** Returns the bytes of each holder when the most were taken. */
    public long[] peakBytesByHolder() {
        return held.byHolderAtPeak();
    }

    /** Returns whether the device counts and computes nothing. */
    public boolean isCounting() {
        return counting;
    }

    /** Returns who is told of products and attentions that are enqueued; null: nobody. */
    public @Nullable WorkListener workListener() {
        return workListener;
    }

    /** Sets who is told; null: nobody. */
    public void workListener(@Nullable WorkListener listener) {
        workListener = listener;
    }

    /** Returns the most bytes that {@link #malloc} had taken at one time. */
    public long peakHeldBytes() {
        return held.peak();
    }

    /**
     * Returns the object of {@code attachment} on this device: made at the first call, closed with the device.
     *
     * @param <A> its type
     */
    public <A> A get(Attachment<A> attachment) {
        return attachments.get(attachment);
    }

    /**
     * Something that each device has one of, such as the configuration objects of an operation.
     *
     * @param <A> its type
     */
    public static final class Attachment<A> {
        private static final AtomicInteger SLOTS = new AtomicInteger();

        private final int slot = SLOTS.getAndIncrement();
        private final Function<DeviceState, A> maker;

        /** Sets the maker. */
        public Attachment(Function<DeviceState, A> maker) {
            this.maker = maker;
        }

        int slot() {
            return slot;
        }

        A make(DeviceState device) {
            return maker.apply(device);
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
        if (present == null || !present.isHere()) {
            throw notCurrent();
        }
        present.makeCurrent(index);
    }

    private RuntimeException notCurrent() {
        if (detached) {
            return new IllegalStateException("device " + index + " was detached; Device.attach() moves it to a thread");
        }
        Driver present = driver;
        if (present.isHere()) {
            return new IllegalStateException("device " + index + " is closed");
        }
        return new WrongThreadException("device " + index + " belongs to thread \"" + present.name()
                + "\", called from " + ForeignText.quoted(Thread.currentThread().getName())
                + "; Device.detach() there and Device.attach() here move it");
    }

    /** Detaches the driver from the device. */
    public synchronized void detach() {
        if (owner != null) {
            driver.release();
        }
        owner = null;
        detached = true;
    }

    /** Moves the device to the calling thread, if its driver has detached or ended. */
    public synchronized void attach() {
        Driver.refuseVirtual();
        if (closed) {
            throw new IllegalStateException("device " + index + " is closed");
        }
        Driver present = driver;
        if (!detached && !present.isHere() && present.isAlive()) {
            throw new IllegalStateException(
                    "device " + index + " belongs to thread " + ForeignText.quoted(present.name())
                            + ", which is alive and may be inside a call; call Device.detach() there first");
        }
        Driver next = Driver.ofThread();
        next.take();
        if (!detached) {
            present.release(); // Its thread is this one, or has ended.
        }
        driver = next;
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
        try {
            attachments.close();
        } finally {
            closed = true;
            if (owner != null) {
                driver.release();
            }
            owner = null;
            arena.close();
        }
    }
}
