package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Numbers;
import dev.chagres.internal.memory.DeviceMemory;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import org.jspecify.annotations.Nullable;

/**
 * Device memory that NCCL has allocated and registered: one allocation in one window, from which a scope hands out tensors. If the tensors
 * of a collective lie in windows on all ranks, ranks of one host write directly into each other's memory.
 *
 * <p>Each rank must make it with the same size, and hand out the same tensors in the same order, so that each lies at the same offset of
 * its window. Collectives give the same results as without windows. Gathers are faster, sums of more than a few MiB slower: use windows for
 * tensors that only gathers use. {@code ./chagres bench CollectiveBandwidth -p memory=DEVICE,WINDOW} measures both.
 *
 * <p>With NCCL 2.24 to 2.28 send, receive, gather, scatter and all-to-all on the communicator with which the memory is registered refuse
 * its tensors, since a later collective on them would read at address 0. Another communicator of the ranks can transfer them. An
 * all-to-all of a communicator with {@link CtaPolicy#ZERO} is made by copy engines where both tensors lie in windows, and allowed.
 *
 * <p>Nothing ends the wait of a symmetric kernel, or of a copy engine, for a rank that has failed: NCCL 2.28.9 checks no abort flag there.
 * Ranks that are {@linkplain Communicator#areThreads threads} never wait in this way. Ranks that are processes get an exception, but the
 * device of a rank that waits is busy until its process ends.
 *
 * {@snippet file="dev/chagres/nccl/CollectiveMemoryTest.java" region="memory"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ncclMemAlloc} and {@code ncclCommWindowRegister} of {@code nccl.h}.
 */
public final class CollectiveMemory implements AutoCloseable {
    /** The bytes of each allocation that NCCL has made and not freed, by address. */
    private static final ConcurrentSkipListMap<Long, Long> OF_NCCL = new ConcurrentSkipListMap<>();

    private static final int HOLDER = MemoryUse.Holder.COLLECTIVES.ordinal();

    private final DeviceState state;
    private final MemorySegment memory;
    private final long byteSize;
    private final Scope scope;
    /** Null if the memory is not registered. */
    private @Nullable Registration registration;

    private boolean released;

    private CollectiveMemory(
            DeviceState state, MemorySegment memory, long byteSize, Registration registration, Stream stream) {
        this.state = state;
        this.memory = memory;
        this.byteSize = byteSize;
        this.registration = registration;
        Runnable release = () -> state.free(byteSize, HOLDER, this::release);
        scope = Inside.openScope(stream, new DeviceMemory(state, stream.handle(), memory.address(), byteSize, release));
    }

    static CollectiveMemory of(Endpoint endpoint, long byteSize, Stream stream) {
        endpoint.ensureUsable();
        DeviceState state = endpoint.state;
        state.ensureNotCapturing("allocate");
        Group.refuse("allocate");
        if (Checks.given("stream", stream).device() != endpoint.device) {
            throw new IllegalArgumentException("stream: expected one of " + endpoint.device + ", got one of "
                    + Checks.other(stream.device(), endpoint.device));
        }
        if (byteSize < 1 || byteSize > Long.MAX_VALUE - DeviceMemory.ALIGNMENT) {
            throw new IllegalArgumentException(
                    "byteSize: expected 1 to " + (Long.MAX_VALUE - DeviceMemory.ALIGNMENT) + ", got " + byteSize);
        }
        long aligned = aligned(byteSize);
        MemorySegment memory = take(state, aligned);
        Registration registration;
        try {
            registration = Registration.ofOwn(endpoint, memory, aligned);
        } catch (RuntimeException | Error failure) {
            give(memory);
            throw failure;
        }
        state.hold(aligned, HOLDER);
        return new CollectiveMemory(state, memory, aligned, registration, stream);
    }

    private static long aligned(long byteSize) {
        return (byteSize + DeviceMemory.ALIGNMENT - 1) & -DeviceMemory.ALIGNMENT;
    }

    /**
     * Returns the bytes that a tensor of {@code count} elements takes: a multiple of 256, at least 256.
     *
     * @throws IllegalArgumentException when {@code count} is negative, or the bytes exceed a long
     */
    public static long byteSizeOf(DType dtype, long count) {
        long most = (Long.MAX_VALUE - DeviceMemory.ALIGNMENT)
                / Checks.given("dtype", dtype).byteSize();
        Numbers.within("count", count, 0, most);
        return Math.max(DeviceMemory.ALIGNMENT, aligned(dtype.byteSize() * count));
    }

    private static MemorySegment take(DeviceState state, long byteSize) {
        MemorySegment out = state.out();
        out.set(ValueLayout.ADDRESS, 0, MemorySegment.NULL);
        int status = Nccl.ncclMemAlloc(out, byteSize);
        MemorySegment memory = out.get(ValueLayout.ADDRESS, 0);
        if (status != Nccl.ncclSuccess()) {
            throw Status.outOfCollectiveMemory(status, "ncclMemAlloc", byteSize, free(out), state.holders());
        }
        OF_NCCL.put(memory.address(), byteSize);
        return memory;
    }

    /** Returns whether NCCL has allocated these bytes. Any thread. */
    static boolean isOfNccl(long address, long bytes) {
        Map.Entry<Long, Long> below = OF_NCCL.floorEntry(address);
        return below != null && address + bytes <= below.getKey() + below.getValue();
    }

    /** Returns the free bytes of the device, or -1 if the query fails. */
    private static long free(MemorySegment out) {
        int status = CudaRuntime.cudaMemGetInfo(out, out.asSlice(Long.BYTES));
        return status == CudaRuntime.cudaSuccess() ? out.get(ValueLayout.JAVA_LONG, 0) : -1;
    }

    /** Waits, then frees: NCCL frees memory without waiting for work that still uses it, unlike {@code cudaFree}. */
    private void release() {
        released = true;
        try {
            state.waits().begin();
            int status = CudaRuntime.cudaDeviceSynchronize();
            state.waits().end();
            Status.cuda(status, "cudaDeviceSynchronize");
            deregister();
        } finally {
            give(memory);
        }
    }

    private static void give(MemorySegment memory) {
        OF_NCCL.remove(memory.address());
        Status.nccl(Nccl.ncclMemFree(memory), "ncclMemFree");
    }

    /** Returns the scope that hands out its tensors, each at a multiple of 256 bytes. */
    public Scope scope() {
        return scope;
    }

    /**
     * Returns the kind of registration: {@code WINDOW}, or {@code BUFFER} if ranks cannot access each other's memory.
     *
     * @throws IllegalStateException after {@link #deregister}, before {@link #register}
     */
    public Registration.Kind kind() {
        Registration present = registration;
        if (present == null) {
            throw new IllegalStateException("kind: expected memory that a communicator knows, got " + this
                    + "; call register(communicator) on each rank");
        }
        return present.kind();
    }

    /** Returns whether a tensor lies in this memory. */
    public boolean contains(Tensor tensor) {
        long offset = Inside.address(Checks.given("tensor", tensor)) - memory.address();
        return offset >= 0 && offset < byteSize;
    }

    /** Returns the number of bytes. */
    public long byteSize() {
        return byteSize;
    }

    /**
     * Registers the memory with another communicator instead of the present one, as after a {@link Communicator#shrink}. Its contents stay.
     * Each rank of {@code communicator} calls it, with the same number of bytes, and waits for the others.
     *
     * @throws IllegalArgumentException when the communicator is one of another device
     * @throws IllegalStateException while a stream of the device captures, inside {@link Communicator#group}, or after {@link #close()}
     * @throws RankFailedException when another rank failed or did not come
     */
    public void register(Communicator communicator) {
        Endpoint endpoint = Checks.given("communicator", communicator).endpoint();
        endpoint.ensureUsable();
        state.ensureNotCapturing("register");
        Group.refuse("register");
        if (endpoint.state != state) {
            throw new IllegalArgumentException("communicator: expected one of " + scope.device() + ", got one of "
                    + Checks.other(endpoint.device, scope.device()));
        }
        if (released) {
            throw new IllegalStateException(this + " is closed");
        }
        deregister();
        registration = Registration.ofOwn(endpoint, memory, byteSize);
    }

    /**
     * Deregisters the memory from its communicator, before that is closed. The memory stays usable, and collectives treat it as any other.
     * This waits for no other rank, which may have failed. A second call does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures, or inside {@link Communicator#group}
     */
    public void deregister() {
        Registration present = registration;
        if (present != null) {
            present.close();
            registration = null;
        }
    }

    /**
     * Closes the scope and frees the memory, as closing the device does, once the graphs that may use it are closed. It waits for the
     * device's work. Each rank must close it before the communicator. A second call does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures, or inside {@link Communicator#group}
     */
    @Override
    public void close() {
        scope.close();
    }

    @Override
    public String toString() {
        Registration present = registration;
        return byteSize + " bytes of " + scope.device()
                + (present == null ? " that no communicator knows" : " in a " + present.kind());
    }
}
