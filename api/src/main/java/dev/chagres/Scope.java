package dev.chagres;

import dev.chagres.internal.memory.DeviceMemory;
import dev.chagres.internal.memory.Leaks;
import dev.chagres.internal.memory.ScopeState;
import dev.chagres.internal.memory.SharedMemory;
import dev.chagres.internal.memory.Turns;
import org.jspecify.annotations.Nullable;

/**
 * Hands out device memory and takes all of it back at once.
 *
 * <p>Memory is a stack: allocation moves a pointer. {@link #open()} opens a nested scope on top; while it is open, this scope hands out
 * nothing. Closing a scope closes its tensors: using one of them throws. Memory is reused in the order of the scope's stream, so no wait is
 * needed.
 *
 * <p>{@link #restart()} takes all memory back and closes the tensors. A program that restarts its scopes makes no garbage, and equal shapes
 * give equal addresses: the scope has {@value Turns#COUNT} Java objects for each tensor of a step, which restarts hand out in turn. Using a
 * tensor from before a restart throws until {@value Turns#COUNT} restarts have passed; after that it is a tensor of the present step.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="scope"}
 *
 * <p>Threading: the device's thread.
 */
public final class Scope implements AutoCloseable {
    private final ScopeLevel level;
    private final Stream stream;
    private final DeviceMemory memory;
    private final ScopeState state;
    private final IssuedTensors issued;
    private Leaks.@Nullable Trace trace;

    /** Makes a scope that {@code level} opens. */
    Scope(ScopeLevel level) {
        this.level = level;
        stream = level.stream;
        memory = level.memory;
        state = level.state;
        issued = level.issued;
    }

    /** Opens a scope that its user closes. */
    static Scope open(Stream stream) {
        return over(stream, memory(stream));
    }

    /** Opens a scope of {@code memory} that its user closes. */
    static Scope over(Stream stream, DeviceMemory memory) {
        Scope scope = ScopeLevel.bottom(stream, memory, false);
        scope.trace = Leaks.opened("scope of " + stream.device());
        return scope;
    }

    private static DeviceMemory memory(Stream stream) {
        return new DeviceMemory(stream.device().state(), stream.handle());
    }

    /** Lets others read this scope's memory, which is freed with the last of them. */
    void share(SharedMemory shared) {
        memory.share(shared);
    }

    /** Makes a scope that closes with {@code stream}. */
    static Scope ofStream(Stream stream) {
        return ScopeLevel.bottom(stream, memory(stream), true);
    }

    /** Returns the stream in whose order the memory is used. */
    public Stream stream() {
        return stream;
    }

    /** Returns the device whose memory this is. */
    public Device device() {
        return stream.device();
    }

    /** Hands out a scalar; contents are undefined, as with every {@code tensor} method. */
    public Tensor tensor(DType dtype) {
        return allocate(dtype, 0, 1, 1, 1, 1);
    }

    /** Hands out a tensor of one dimension. */
    public Tensor tensor(DType dtype, long d0) {
        return allocate(dtype, 1, d0, 1, 1, 1);
    }

    /** Hands out a tensor of two dimensions. */
    public Tensor tensor(DType dtype, long d0, long d1) {
        return allocate(dtype, 2, d0, d1, 1, 1);
    }

    /** Hands out a tensor of three dimensions. */
    public Tensor tensor(DType dtype, long d0, long d1, long d2) {
        return allocate(dtype, 3, d0, d1, d2, 1);
    }

    /** Hands out a tensor of four dimensions. */
    public Tensor tensor(DType dtype, long d0, long d1, long d2, long d3) {
        return allocate(dtype, 4, d0, d1, d2, d3);
    }

    /** Hands out a tensor of the type and shape of {@code other}. */
    public Tensor like(Tensor other) {
        return like(other, Given.given("other", other).dtype());
    }

    /** Hands out a tensor of type {@code dtype} and the shape of {@code other}. */
    public Tensor like(Tensor other, DType dtype) {
        Given.given("other", other);
        return allocate(
                dtype, other.rank(), sizeOr1(other, 0), sizeOr1(other, 1), sizeOr1(other, 2), sizeOr1(other, 3));
    }

    /** Hands out a tensor of this shape. */
    public Tensor tensor(DType dtype, Shape shape) {
        int rank = Given.given("shape", shape).rank();
        return allocate(dtype, rank, sizeOr1(shape, 0), sizeOr1(shape, 1), sizeOr1(shape, 2), sizeOr1(shape, 3));
    }

    /**
     * Returns a view of {@code d0} elements of {@code tensor} from element {@code offset} on, in the same memory. The view is closed with
     * this scope, or with the tensor when that comes first.
     *
     * @throws IllegalArgumentException when the elements do not lie within the tensor, or the tensor on this device
     */
    public Tensor view(Tensor tensor, long offset, long d0) {
        return view(tensor, offset, 1, d0, 1, 1, 1);
    }

    /** Returns a view of two dimensions; see {@link #view(Tensor, long, long)}. */
    public Tensor view(Tensor tensor, long offset, long d0, long d1) {
        return view(tensor, offset, 2, d0, d1, 1, 1);
    }

    /** Returns a view of three dimensions; see {@link #view(Tensor, long, long)}. */
    public Tensor view(Tensor tensor, long offset, long d0, long d1, long d2) {
        return view(tensor, offset, 3, d0, d1, d2, 1);
    }

    /** Returns a view of four dimensions; see {@link #view(Tensor, long, long)}. */
    public Tensor view(Tensor tensor, long offset, long d0, long d1, long d2, long d3) {
        return view(tensor, offset, 4, d0, d1, d2, d3);
    }

    /** Returns elements of {@code tensor} in another shape; see {@link #view(Tensor, long, long)}. */
    public Tensor view(Tensor tensor, long offset, Shape shape) {
        int rank = Given.given("shape", shape).rank();
        return view(tensor, offset, rank, sizeOr1(shape, 0), sizeOr1(shape, 1), sizeOr1(shape, 2), sizeOr1(shape, 3));
    }

    /**
     * Returns {@code count} elements of type {@code dtype} over the memory of {@code tensor}, from element {@code offset} of the
     * new type on. The view is closed with this scope, or with the tensor when that comes first.
     *
     * @throws IllegalArgumentException when the elements do not lie within the tensor, the tensor does not begin at a multiple of their size
     *     in bytes, or it is not on this device
     */
    public Tensor reinterpret(Tensor tensor, DType dtype, long offset, long count) {
        ensureOnTop();
        ensureHere(Given.given("tensor", tensor));
        ScopeChecks.within(tensor, dtype, offset, count);
        Tensor view = issued.next();
        view.issueView(tensor, dtype, offset, 1, count, 1, 1, 1);
        return view;
    }

    /**
     * Hands out a quantized matrix without parts, which takes no memory; see {@link QuantizedTensor}.
     *
     * @param dtype FLOAT8_E4M3 or FLOAT8_E5M2
     * @throws IllegalArgumentException when {@code dtype} is another, or a size is negative
     */
    public QuantizedTensor quantized(Scaling scaling, DType dtype, long rows, long columns) {
        ensureOnTop();
        ScopeChecks.quantized(scaling, dtype, rows, columns);
        QuantizedTensor quantized = issued.nextQuantized();
        quantized.issue(scaling, dtype, rows, columns);
        return quantized;
    }

    private void ensureHere(Tensor tensor) {
        tensor.ensureUsable();
        if (tensor.device() != state.device()) {
            throw ScopeChecks.elsewhere(device(), tensor);
        }
    }

    private Tensor view(Tensor tensor, long offset, int rank, long d0, long d1, long d2, long d3) {
        ensureOnTop();
        ensureHere(Given.given("tensor", tensor));
        ScopeChecks.within(tensor, offset, ScopeChecks.count(tensor.dtype(), rank, d0, d1, d2, d3));
        Tensor view = issued.next();
        view.issueView(tensor, tensor.dtype(), offset, rank, d0, d1, d2, d3);
        return view;
    }

    private Tensor allocate(DType dtype, int rank, long d0, long d1, long d2, long d3) {
        ensureOnTop();
        Given.given("dtype", dtype);
        long byteSize = ScopeChecks.count(dtype, rank, d0, d1, d2, d3) * dtype.byteSize();
        long address = memory.allocate(byteSize);
        Tensor tensor = issued.next();
        tensor.issue(dtype, address, rank, d0, d1, d2, d3);
        return tensor;
    }

    private static long sizeOr1(Tensor tensor, int index) {
        return index < tensor.rank() ? tensor.size(index) : 1;
    }

    private static long sizeOr1(Shape shape, int index) {
        return index < shape.rank() ? shape.size(index) : 1;
    }

    /**
     * Opens a scope on top of this one. Scope objects are handed out in turn, as tensors are: once closed, an object is closed, and closing
     * it does nothing, for the next {@value Turns#COUNT} - 1 scopes that are opened at this depth.
     *
     * @throws IllegalStateException when this one is closed, has an open scope on top, or {@value ScopeLevel#MAX_DEPTH} below it
     */
    public Scope open() {
        ensureOnTop();
        return level.open();
    }

    /**
     * Takes all memory back and closes the tensors. If more memory was used than ever before, this waits once for the device and
     * allocates the memory as one chunk.
     *
     * @throws IllegalStateException when it is closed or has an open scope on top, or inside {@code Communicator.group}
     */
    public void restart() {
        ensureOnTop();
        state.device().ensureNotGrouping("restart");
        level.restart();
    }

    /**
     * Counts what this scope and those it is nested in take from CUDA from now on as memory of {@code holder}, for {@link Device#memoryUse}.
     *
     * @return this scope
     */
    public Scope countedAs(MemoryUse.Holder holder) {
        memory.countedAs(Given.given("holder", holder).ordinal());
        return this;
    }

    /** Returns the most bytes that this scope and those it is nested in have handed out at one time. */
    public long peakBytes() {
        return memory.peak();
    }

    /** Returns the bytes that this scope and those it is nested in hand out at present. */
    public long usedBytes() {
        return memory.used();
    }

    /** Returns the bytes that are reserved for this scope and those it is nested in. */
    public long reservedBytes() {
        return memory.reserved();
    }

    private void ensureOnTop() {
        state.device().ensureCurrent();
        if (!level.isHeldBy(this)) {
            throw new IllegalStateException(state + " is closed");
        }
        if (level.isCovered()) {
            throw new IllegalStateException(state + " has an open nested scope, which must be closed first");
        }
    }

    /**
     * Takes all memory back and closes the tensors, nested scopes first. A second call does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures, unless this scope is nested; or inside {@code
     *     Communicator.group}, unless it is nested and has handed out no memory
     */
    @Override
    public void close() {
        if (!level.isHeldBy(this)) {
            return;
        }
        state.device().ensureCurrent();
        if (level.isBottom()) {
            state.device().ensureCloses();
        } else if (!level.ofStream && level.holdsMemory()) {
            state.device().ensureNotGrouping("close");
        }
        level.uncover();
        if (!level.isBottom()) {
            level.giveBack();
            return;
        }
        state.endForGood();
        Leaks.closed(trace);
        stream.device().forget(this);
        try {
            if (stream.isOpen()) {
                stream.synchronize();
            }
        } finally {
            level.destroyHandles();
            memory.free();
        }
    }

    @Override
    public String toString() {
        return state.toString();
    }
}
