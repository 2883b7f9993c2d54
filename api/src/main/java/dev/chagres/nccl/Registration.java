package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.cuda.cudaPointerAttributes;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Memory that is registered with NCCL, so that collectives can read and write it without a copy.
 *
 * <p>NCCL makes a window only if the memory was allocated by {@code ncclMemAlloc} on every rank, as that of {@link CollectiveMemory};
 * {@link #kind()} says whether it did. Collectives give the same results either way.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ncclCommWindowRegister} and {@code ncclCommRegister} of {@code nccl.h}.
 */
public final class Registration implements AutoCloseable {
    /**
     * The kind of registration.
     *
     * <p>Threading: immutable.
     */
    public enum Kind {
        /** A symmetric window, through which ranks access each other's memory. */
        WINDOW,
        /** A registered buffer: NCCL could make no window of this memory. */
        BUFFER
    }

    private final Endpoint endpoint;
    private final MemorySegment memory;
    private final MemorySegment handle;
    private final Kind kind;
    private boolean closed;

    private Registration(Endpoint endpoint, MemorySegment memory, MemorySegment handle, Kind kind) {
        this.endpoint = endpoint;
        this.memory = memory;
        this.handle = handle;
        this.kind = kind;
    }

    static Registration of(Endpoint endpoint, Tensor tensor) {
        endpoint.ensureUsable();
        endpoint.state.ensureNotCapturing("register");
        Group.refuse("register");
        MemorySegment address = Checks.given("tensor", tensor).pointer();
        if (Inside.state(tensor) != endpoint.state) {
            throw new IllegalArgumentException("tensor: expected a tensor of " + endpoint.device + ", got "
                    + Checks.describe(tensor) + " of device " + tensor.deviceIndex()
                    + (tensor.deviceIndex() == endpoint.device.index() ? ", opened another time" : ""));
        }
        if (tensor.count() == 0) {
            throw new IllegalArgumentException("tensor: expected elements, got " + Checks.describe(tensor));
        }
        return of(endpoint, address, tensor.byteSize());
    }

    /** Registers memory that NCCL has allocated. */
    static Registration ofOwn(Endpoint endpoint, MemorySegment memory, long bytes) {
        Registration made = of(endpoint, memory, bytes);
        endpoint.ownMemory.add(memory, bytes, made.kind);
        return made;
    }

    private static Registration of(Endpoint endpoint, MemorySegment address, long bytes) {
        boolean polled = endpoint.calls.isPolled();
        // Never freed where NCCL may write it on a thread of its own, 8 bytes for each registration.
        MemorySegment out = polled ? Arena.global().allocate(ValueLayout.ADDRESS) : endpoint.state.out();
        MemorySegment comm = endpoint.handle();
        int symmetric = Nccl.NCCL_WIN_COLL_SYMMETRIC();
        out.set(ValueLayout.ADDRESS, 0, MemorySegment.NULL);
        endpoint.calls.begin(Operation.REGISTER, bytes, DType.BYTE);
        // Of memory that cudaMalloc gave NCCL makes no window: it says so by a null one, or, with several ranks, by
        // CUDA's refusal. After that a communicator whose calls are polled could not be used, so NCCL is not asked.
        int status = Nccl.ncclSuccess();
        if (!polled || CollectiveMemory.isOfNccl(address.address(), bytes)) {
            status = Nccl.ncclCommWindowRegister(comm, address, bytes, out, symmetric);
        }
        status = endpoint.calls.await(status);
        endpoint.calls.end(!polled && status == Nccl.ncclUnhandledCudaError() ? Nccl.ncclSuccess() : status);
        MemorySegment window = out.get(ValueLayout.ADDRESS, 0);
        if (window.address() != 0) {
            return new Registration(endpoint, address, window, kind(window));
        }
        Status.nccl(Nccl.ncclCommRegister(comm, address, bytes, out), "ncclCommRegister");
        return new Registration(endpoint, address, out.get(ValueLayout.ADDRESS, 0), Kind.BUFFER);
    }

    /**
     * If ranks cannot access each other's memory, NCCL returns success and the handle of a registered buffer instead of a window's. The two
     * are told apart by their memory: a buffer's handle points to the host, a window's to the device.
     */
    private static Kind kind(MemorySegment window) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment attributes = cudaPointerAttributes.allocate(arena);
            Status.cuda(CudaRuntime.cudaPointerGetAttributes(attributes, window), "cudaPointerGetAttributes");
            boolean onDevice = cudaPointerAttributes.type(attributes) == CudaRuntime.cudaMemoryTypeDevice();
            return onDevice ? Kind.WINDOW : Kind.BUFFER;
        }
    }

    /** Returns the kind of registration. */
    public Kind kind() {
        return kind;
    }

    /**
     * Deregisters the memory, which must not have been freed before. It waits for no other rank. A second call, or one after the
     * communicator's close, does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures, or inside {@link Communicator#group}
     */
    @Override
    public void close() {
        if (closed || !endpoint.isOpen()) {
            return;
        }
        MemorySegment comm = endpoint.handle();
        endpoint.state.ensureNotCapturing("close");
        Group.refuse("close");
        closed = true;
        endpoint.ownMemory.remove(memory);
        if (!endpoint.failures.awaitRevoked()) {
            return; // NCCL deregisters by itself, as after the communicator's close.
        }
        if (kind == Kind.WINDOW) {
            Status.nccl(Nccl.ncclCommWindowDeregister(comm, handle), "ncclCommWindowDeregister");
        } else {
            Status.nccl(Nccl.ncclCommDeregister(comm, handle), "ncclCommDeregister");
        }
    }
}
