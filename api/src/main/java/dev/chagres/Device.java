package dev.chagres;

import dev.chagres.bindings.NativeLibraries;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Leaks;
import dev.chagres.internal.memory.OpenDevices;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.LinkedHashSet;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * One GPU, or one device of the CPU reference, with a stream of its own.
 *
 * <p>The thread that opens a device drives it; TE, cuBLASLt and cuDNN keep state per OS thread. {@link #detach()} and
 * {@link #attach()} move it to another thread. One thread may drive several devices. Closing a device closes what was opened from it, newest first.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="device"}
 *
 * <p>Threading: one thread at a time, a platform thread; any other gets a {@link WrongThreadException}.
 */
public final class Device implements AutoCloseable {
    private static final int NAME_BYTES = 256;
    /** More bytes than {@code cudaDeviceProp} has in any CUDA 13 release; its first member is the name. */
    private static final int PROPERTIES_BYTES = 4096;

    private final DeviceState state;
    private final String name;
    private final int computeCapability;
    private final Set<AutoCloseable> opened = new LinkedHashSet<>();
    private final Leaks.@Nullable Trace trace;
    private final Stream stream;
    private MultiprocessorMargin multiprocessorMargin = MultiprocessorMargin.NONE;

    private Device(int index) {
        state = new DeviceState(index);
        name = readName(index);
        computeCapability = 10 * state.attribute(CudaRuntime.cudaDevAttrComputeCapabilityMajor())
                + state.attribute(CudaRuntime.cudaDevAttrComputeCapabilityMinor());
        state.describingMemory(bytes -> MemoryUse.of(bytes).explanation());
        trace = Leaks.opened("device " + index);
        stream = openStream();
        OpenDevices.add();
    }

    /**
     * Returns the number of devices that this process sees.
     *
     * @throws dev.chagres.bindings.MissingLibraryException when the provider's libraries cannot be opened
     */
    public static int count() {
        NativeLibraries.ensureLoaded();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_INT);
            Status.cuda(CudaRuntime.cudaGetDeviceCount(out), "cudaGetDeviceCount");
            return out.get(ValueLayout.JAVA_INT, 0);
        }
    }

    /**
     * Opens device {@code index}, counted from 0, for the calling thread.
     *
     * @throws IllegalArgumentException when there is no such device
     * @throws WrongThreadException from a virtual thread
     * @throws dev.chagres.bindings.MissingLibraryException when the provider's libraries cannot be opened
     */
    public static Device open(int index) {
        int count = count();
        if (index < 0 || index >= count) {
            throw new IllegalArgumentException("index: expected a device from 0 to " + (count - 1) + ", got " + index);
        }
        return new Device(index);
    }

    /** Opens device 0. */
    public static Device open() {
        return open(0);
    }

    /** Returns CUDA's number of this device. */
    public int index() {
        return state.index();
    }

    /** Returns the provider that computes. */
    public Provider provider() {
        return Provider.current();
    }

    /** Returns the name that the driver gives, such as {@code NVIDIA H200}. */
    public String name() {
        return name;
    }

    /** Returns the number of streaming multiprocessors; the reference has 132, as many as an H200. */
    public int multiprocessorCount() {
        return state.multiprocessors().count();
    }

    /**
     * Sets how many multiprocessors the norms and products leave free that are enqueued after this call; at first {@link
     * MultiprocessorMargin#NONE}. A graph keeps the margin with which it was captured.
     *
     * <p>Transformer Engine caches the number of multiprocessors of a norm by thread and shape, and ignores later numbers. So a thread
     * computes {@link dev.chagres.te.Normalization}, which some layers call, with one margin on all devices: set it before the first such
     * norm. With another margin such a norm throws an {@link IllegalStateException}, and nothing is enqueued. {@link
     * dev.chagres.ops.ResidualNorm} and products take another margin at any time.
     *
     * @throws IllegalArgumentException when a margin leaves norms no multiprocessor, or products fewer than two
     * @throws IllegalStateException when the device is closed
     */
    public void multiprocessorMargin(MultiprocessorMargin margin) {
        state.ensureCurrent();
        Given.given("margin", margin).requireBelow(this);
        state.multiprocessors().leave(margin.norms(), margin.products());
        multiprocessorMargin = margin;
    }

    /** Returns how many multiprocessors norms and products leave free. */
    public MultiprocessorMargin multiprocessorMargin() {
        return multiprocessorMargin;
    }

    /** Returns ten times the major plus the minor compute capability: 90 for Hopper. */
    public int computeCapability() {
        return computeCapability;
    }

    /** Returns the device's memory in bytes. */
    public long totalMemory() {
        return memory(8);
    }

    /** Returns the bytes that no process uses now. */
    public long freeMemory() {
        return memory(0);
    }

    /** Returns the bytes that scopes on this device have allocated from CUDA and NCCL at present. */
    public long heldBytes() {
        return state.heldBytes();
    }

    /**
     * Returns the most bytes of device memory that this program held through this device at one time: by scopes and workspaces, without the
     * memory that CUDA and its libraries allocate for themselves.
     */
    public long peakHeldBytes() {
        return state.peakHeldBytes();
    }

    /** Returns which parts of the program hold {@link #heldBytes()} now. */
    public MemoryUse memoryUse() {
        return MemoryUse.of(state.bytesByHolder());
    }

    /** Returns which parts held {@link #peakHeldBytes()}. */
    public MemoryUse peakMemoryUse() {
        return MemoryUse.of(state.peakBytesByHolder());
    }

    /** Returns the stream of scopes that are opened without a stream. */
    public Stream stream() {
        return stream;
    }

    /** Opens another stream; it is closed with the device at the latest. */
    public Stream openStream() {
        return keep(new Stream(this));
    }

    /** Opens an event; it is closed with the device at the latest. */
    public Event openEvent() {
        return keep(new Event(this));
    }

    /** Opens a scope on the device's own stream. */
    public Scope openScope() {
        return openScope(stream);
    }

    /**
     * Opens a scope whose memory is used and reused in the order of {@code onStream}.
     *
     * @throws IllegalArgumentException when the stream belongs to another device
     */
    public Scope openScope(Stream onStream) {
        if (Given.given("onStream", onStream).device() != this) {
            throw new IllegalArgumentException(
                    "onStream: expected a stream of " + this + ", got one of " + onStream.device());
        }
        onStream.handle();
        return keep(Scope.open(onStream));
    }

    /**
     * Gives the device up, so that another thread can {@link #attach()} it; until then no thread may use it.
     *
     * @throws IllegalStateException while one of its streams captures, or inside {@code Communicator.group}
     * @throws WrongThreadException when the device belongs to another thread
     */
    public void detach() {
        state.ensureCurrent();
        state.ensureNotCapturing("detach");
        state.ensureNotGrouping("detach");
        state.detach();
    }

    /**
     * Takes the device over, after its owner has called {@link #detach()} or ended: otherwise the memory that kernels of a running call use
     * could be freed.
     *
     * @throws IllegalStateException when another thread that is alive still owns the device
     * @throws WrongThreadException on a virtual thread
     */
    public void attach() {
        state.attach();
    }

    /** Waits until all streams of the device are idle. */
    public void synchronize() {
        state.ensureCurrent();
        state.ensureThreadNotCapturing("synchronize");
        state.waits().begin();
        int status = CudaRuntime.cudaDeviceSynchronize();
        state.waits().end();
        state.waits().check();
        Status.cuda(status, "cudaDeviceSynchronize");
    }

    DeviceState state() {
        return state;
    }

    void forget(AutoCloseable child) {
        opened.remove(child);
    }

    <C extends AutoCloseable> C keep(C child) {
        opened.add(child);
        return child;
    }

    /**
     * Closes what is still open on the device, newest first, then the device. A second call does nothing.
     *
     * @throws IllegalStateException while one of its streams captures, or inside {@code Communicator.group}
     */
    @Override
    public void close() {
        if (state.isClosed()) {
            return;
        }
        state.ensureCloses();
        RuntimeException first = null;
        AutoCloseable[] children = opened.toArray(AutoCloseable[]::new);
        for (int i = children.length - 1; i >= 0; i--) {
            try {
                children[i].close();
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
        try {
            state.close();
        } catch (RuntimeException later) {
            if (first == null) {
                first = later;
            } else {
                first.addSuppressed(later);
            }
        }
        OpenDevices.remove();
        Leaks.closed(trace);
        if (first != null) {
            throw first;
        }
    }

    @Override
    public String toString() {
        return "device " + state.index();
    }

    private long memory(long offset) {
        state.ensureCurrent();
        MemorySegment out = state.out();
        Status.cuda(CudaRuntime.cudaMemGetInfo(out, out.asSlice(8)), "cudaMemGetInfo");
        return out.get(ValueLayout.JAVA_LONG, offset);
    }

    private static String readName(int index) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment properties = arena.allocate(PROPERTIES_BYTES, 8);
            Status.cuda(CudaRuntime.cudaGetDeviceProperties(properties, index), "cudaGetDeviceProperties");
            return properties.asSlice(0, NAME_BYTES).getString(0);
        }
    }
}
