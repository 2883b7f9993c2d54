package dev.chagres;

import dev.chagres.ElementChecks.ArrayElements;
import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.HostMemory;
import dev.chagres.internal.memory.HostWaits;
import dev.chagres.internal.memory.Zeros;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Array;
import java.util.function.Consumer;
import java.util.function.IntFunction;

/**
 * Copies between host and device, with the conversions that Java needs for 16-bit floats.
 *
 * <p>Threading: the device's thread.
 */
final class Transfer {
    /** The most elements that a Java array holds on every JVM. */
    static final long MAX_ARRAY_LENGTH = Integer.MAX_VALUE - 8;

    private static final int HOST_TO_DEVICE = 1;
    private static final int DEVICE_TO_HOST = 2;
    private static final int DEVICE_TO_DEVICE = 3;
    /** Bytes from row to row that every device takes. */
    private static final long MOST_PITCH = Integer.MAX_VALUE;

    private Transfer() {}

    /** Copies floats into a tensor of floats and waits. */
    static void fromFloats(Tensor tensor, MemorySegment stream, float[] values) {
        ElementChecks.ensureFloats(tensor);
        ElementChecks.ensureCount(tensor, Given.given("values", values).length);
        send(tensor, stream, host -> tensor.dtype().fromFloats(values, 0, host, 0, values.length));
    }

    /** Waits and returns the elements of a tensor of floats. */
    static float[] toFloats(Tensor tensor, MemorySegment stream) {
        ElementChecks.ensureFloats(tensor);
        float[] values = new float[arrayLength(tensor)];
        receive(tensor, stream, host -> tensor.dtype().toFloats(host, 0, values, 0, values.length));
        return values;
    }

    /** Copies an array into a tensor of such elements and waits. */
    static void fromArray(Tensor tensor, MemorySegment stream, ArrayElements elements, Object values) {
        elements.ensureIn(tensor);
        int count = Array.getLength(Given.given("values", values));
        ElementChecks.ensureCount(tensor, count);
        send(tensor, stream, host -> MemorySegment.copy(values, 0, host, elements.layout, 0, count));
    }

    /** Waits and returns an array, which {@code make} makes, of the elements of a tensor. */
    static <A> A toArray(Tensor tensor, MemorySegment stream, ArrayElements elements, IntFunction<A> make) {
        elements.ensureIn(tensor);
        int count = arrayLength(tensor);
        A values = make.apply(count);
        receive(tensor, stream, host -> MemorySegment.copy(host, elements.layout, 0, values, 0, count));
        return values;
    }

    /** Copies what {@code fill} writes to host memory, and waits. */
    private static void send(Tensor tensor, MemorySegment stream, Consumer<MemorySegment> fill) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(tensor.byteSize(), 16);
            fill.accept(host);
            waitFor(tensor, stream, () -> fromHost(tensor, stream, host));
        }
    }

    /** Waits and hands {@code take} a copy in host memory. */
    private static void receive(Tensor tensor, MemorySegment stream, Consumer<MemorySegment> take) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(tensor.byteSize(), 16);
            waitFor(tensor, stream, () -> toHost(tensor, stream, host));
            take.accept(host);
        }
    }

    /** Enqueues a copy of the first bytes of {@code host}. */
    static void fromHost(Tensor tensor, MemorySegment stream, MemorySegment host) {
        ensureBytes("source", tensor, host);
        ElementChecks.ensureWritable(tensor);
        tensor.device().ensureNotCapturing("copyFrom");
        Status.cuda(
                AddressCalls.cudaMemcpyAsync(tensor.address(), host, tensor.byteSize(), HOST_TO_DEVICE, stream),
                "cudaMemcpyAsync");
        written(tensor, stream);
    }

    /** Enqueues a copy to the first bytes of {@code host}. */
    static void toHost(Tensor tensor, MemorySegment stream, MemorySegment host) {
        ensureBytes("target", tensor, host);
        HostMemory.ensureWritable("target", host);
        tensor.device().ensureNotCapturing("copyTo");
        Status.cuda(
                AddressCalls.cudaMemcpyAsync(host, tensor.address(), tensor.byteSize(), DEVICE_TO_HOST, stream),
                "cudaMemcpyAsync");
    }

    /** Enqueues a copy of {@code source}, of the same type and count, on the same device. */
    static void fromDevice(Tensor tensor, MemorySegment stream, Tensor source) {
        if (source.dtype() != tensor.dtype() || source.count() != tensor.count()) {
            throw new IllegalArgumentException("source: expected " + tensor.count() + " elements of " + tensor.dtype()
                    + ", got " + source.count() + " of " + source.dtype());
        }
        ensureCopies(tensor, source);
        copy(tensor.address(), source.address(), tensor.byteSize(), stream);
        written(tensor, stream);
    }

    private static void ensureCopies(Tensor tensor, Tensor source) {
        ElementChecks.ensureWritable(tensor);
        if (source.device() != tensor.device()) {
            throw new IllegalArgumentException("source: expected a tensor of device "
                    + tensor.device().index() + ", got one of device "
                    + source.device().index());
        }
        ensureApart(tensor, source);
    }

    /** Enqueues a copy of rows of {@code source}, of the same type, on the same device. */
    static void rectangle(Tensor tensor, MemorySegment stream, Rectangle to, Tensor source, Rectangle from) {
        if (source.dtype() != tensor.dtype()) {
            throw new IllegalArgumentException(
                    "source: expected elements of " + tensor.dtype() + ", got " + source.dtype());
        }
        if (from.rows() != to.rows() || from.columns() != to.columns()) {
            throw new IllegalArgumentException("from: expected " + to.rows() + " rows of " + to.columns()
                    + " elements, as many as to, got " + from.rows() + " of " + from.columns());
        }
        ensureWithin("to", to, tensor);
        ensureWithin("from", from, source);
        ensureCopies(tensor, source);
        if (to.rows() == 0 || to.columns() == 0) {
            return; // Rows and pitch of no elements may be any numbers.
        }
        int size = tensor.dtype().byteSize();
        long target = tensor.address() + to.offset() * size;
        long begin = source.address() + from.offset() * size;
        long width = to.columns() * size;
        boolean dense = to.pitch() == to.columns() && from.pitch() == from.columns();
        if (dense || to.rows() == 1) {
            copy(target, begin, to.rows() * width, stream);
        } else if (Math.max(to.pitch(), from.pitch()) * size <= MOST_PITCH) {
            Status.cuda(
                    AddressCalls.cudaMemcpy2DAsync(
                            target,
                            to.pitch() * size,
                            begin,
                            from.pitch() * size,
                            width,
                            to.rows(),
                            DEVICE_TO_DEVICE,
                            stream),
                    "cudaMemcpy2DAsync");
        } else {
            for (long row = 0; row < to.rows(); row++) {
                copy(target + row * to.pitch() * size, begin + row * from.pitch() * size, width, stream);
            }
        }
        written(tensor, stream);
    }

    private static void copy(long target, long source, long bytes, MemorySegment stream) {
        Status.cuda(AddressCalls.cudaMemcpyAsync(target, source, bytes, DEVICE_TO_DEVICE, stream), "cudaMemcpyAsync");
    }

    private static void ensureWithin(String argument, Rectangle rectangle, Tensor tensor) {
        if (rectangle.end() > tensor.count()) {
            throw new IllegalArgumentException(
                    argument + ": expected elements within " + tensor.dtype() + tensor.shape() + ", got " + rectangle);
        }
    }

    /** Enqueues zeroing of every byte. */
    static void zero(Tensor tensor, MemorySegment stream) {
        ElementChecks.ensureWritable(tensor);
        Zeros.enqueue(tensor.device(), tensor.address(), tensor.byteSize(), stream);
        written(tensor, stream);
    }

    /** Returns the handle of {@code stream}, which must be one of the tensor's device. */
    static MemorySegment on(Tensor tensor, Stream stream) {
        if (Given.given("stream", stream).device().state() != tensor.device()) {
            throw new IllegalArgumentException(
                    "stream: expected one of device " + tensor.deviceIndex() + ", got " + stream);
        }
        return stream.handle();
    }

    /** Counts a write of the tensor that owns the memory of {@code tensor}; a write that a graph records counts at each launch. */
    private static void written(Tensor tensor, MemorySegment stream) {
        Tensor root = tensor;
        for (Tensor base = root.base(); base != null; base = root.base()) {
            root = base;
        }
        Capture capture = tensor.device().capture();
        Capture own = capture != null && capture.isOf(stream) ? capture : null;
        Capture.countChange(own, capture, root, Tensor::countWrite, Tensor::countCapturedWrite);
    }

    /** Waits for a copy from or to host memory that is not pinned: CUDA may wait inside the copy already. */
    private static void waitFor(Tensor tensor, MemorySegment stream, Runnable copy) {
        HostWaits waits = tensor.device().waits();
        int status;
        waits.begin();
        try {
            copy.run();
            status = CudaRuntime.cudaStreamSynchronize(stream);
        } finally {
            waits.end();
        }
        waits.check();
        Status.cuda(status, "cudaStreamSynchronize");
    }

    /** Checks liveness first: a closed tensor's size means nothing. */
    private static int arrayLength(Tensor tensor) {
        tensor.ensureUsable();
        if (tensor.count() > MAX_ARRAY_LENGTH) {
            throw new IllegalArgumentException("tensor: expected at most " + MAX_ARRAY_LENGTH
                    + " elements, which a Java array holds, got " + tensor.dtype() + tensor.shape()
                    + "; read a view of a part, or copyTo a HostBuffer");
        }
        return (int) tensor.count();
    }

    private static void ensureApart(Tensor tensor, Tensor source) {
        long begin = tensor.address();
        long sourceBegin = source.address();
        if (begin < sourceBegin + source.byteSize() && sourceBegin < begin + tensor.byteSize()) {
            throw new IllegalArgumentException("this tensor: expected memory of its own, got some of source's; it is"
                    + " written to while that is read");
        }
    }

    private static void ensureBytes(String argument, Tensor tensor, MemorySegment host) {
        HostMemory.ensureOpen(argument, Given.given(argument, host));
        if (!host.isNative()) {
            throw new IllegalArgumentException(
                    argument + ": expected native memory, which the device can be sent, got a"
                            + " segment of the Java heap; take it from an Arena or a HostBuffer, or call set and toFloats with"
                            + " an array");
        }
        if (host.byteSize() < tensor.byteSize()) {
            throw new IllegalArgumentException(argument + ": expected at least " + tensor.byteSize() + " bytes for "
                    + tensor.dtype() + tensor.shape() + ", got " + host.byteSize());
        }
    }
}
