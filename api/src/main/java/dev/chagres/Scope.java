package dev.chagres;

import dev.chagres.internal.memory.DeviceMemory;
import dev.chagres.internal.memory.Leaks;
import dev.chagres.internal.memory.ScopeState;
import org.jspecify.annotations.Nullable;

/**
 * Hands out device memory and takes all of it back at once.
 *
 * <p>Memory is a stack: allocation moves a pointer. {@link #open()} opens a nested scope on top; while it is open, this scope hands out
 * nothing. Closing a scope closes its tensors: using one of them throws. Memory is reused in the order of the scope's stream, so no wait is
 * needed.
 *
 * <p>{@link #restart()} takes all memory back. The scope then hands out the same Java objects in the same order, each with the type and
 * shape that is asked for. A program that restarts its scopes makes no garbage, and equal shapes give equal addresses. A tensor from before
 * the restart is closed until it is handed out again.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="scope"}
 *
 * <p>Threading: the device's thread.
 */
public final class Scope implements AutoCloseable {
    /** Programs nest few scopes; more than this many come from a loop that closes none. */
    private static final int MAX_DEPTH = 1000;

    private final Stream stream;
    private final DeviceMemory memory;
    private final @Nullable Scope parent;
    /** Scopes that this one is nested in. */
    private final int depth;

    /**
     * Whether this scope, or the one that it is nested in, belongs to a stream and holds memory of single calls, which no collective uses
     * after the call.
     */
    private final boolean ofStream;

    private final ScopeState state;
    private final Leaks.@Nullable Trace trace;
    private final IssuedTensors issued;
    /** The scope on top of this one; made once and reused. */
    private @Nullable Scope nested;

    private long bottomSmall;
    private long bottomLarge;
    private boolean covered;
    private boolean destroyed;

    private Scope(Stream stream, DeviceMemory memory, Leaks.@Nullable Trace trace, boolean ofStream) {
        this.stream = stream;
        this.memory = memory;
        parent = null;
        depth = 0;
        state = new ScopeState(stream.device().state(), "scope of " + stream.device());
        issued = new IssuedTensors(state);
        this.trace = trace;
        this.ofStream = ofStream;
    }

    /** Opens a scope that its user closes. */
    static Scope open(Stream stream) {
        return over(stream, memory(stream));
    }

    /** Opens a scope of {@code memory} that its user closes. */
    static Scope over(Stream stream, DeviceMemory memory) {
        return new Scope(stream, memory, Leaks.opened("scope of " + stream.device()), false);
    }

    private static DeviceMemory memory(Stream stream) {
        return new DeviceMemory(stream.device().state(), stream.handle());
    }

    /** Makes a scope that closes with {@code stream}. */
    static Scope ofStream(Stream stream) {
        return new Scope(stream, memory(stream), null, true);
    }

    private Scope(Scope parent) {
        stream = parent.stream;
        memory = parent.memory;
        this.parent = parent;
        depth = parent.depth + 1;
        ofStream = parent.ofStream;
        state = new ScopeState(stream.device().state(), depth == 1 ? "nested " + parent.state : parent.toString());
        issued = new IssuedTensors(state);
        trace = null;
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
     * Opens a scope on top of this one. Once that is closed, the next call returns the same object for a new scope, so close each scope
     * once, and use its variable no longer.
     *
     * @throws IllegalStateException when this one is closed, has an open scope on top, or {@value #MAX_DEPTH} below it
     */
    public Scope open() {
        ensureOnTop();
        if (depth == MAX_DEPTH) {
            throw new IllegalStateException(state + " is nested in " + MAX_DEPTH
                    + " open scopes, the most there may be; close each in the method that opened it");
        }
        Scope top = nested;
        if (top == null) {
            top = new Scope(this);
            nested = top;
        }
        top.bottomSmall = memory.markSmall();
        top.bottomLarge = memory.markLarge();
        top.begin();
        covered = true;
        return top;
    }

    /**
     * Takes all memory back; the same objects are then handed out in the same order. If more memory was used than ever before, this waits
     * once for the device and allocates the memory as one chunk.
     *
     * @throws IllegalStateException when it is closed or has an open scope on top, or inside {@code Communicator.group}
     */
    public void restart() {
        ensureOnTop();
        state.device().ensureNotGrouping("restart");
        // First, so that the old tensors are closed even if the device has no memory left.
        begin();
        memory.rewind(bottomSmall, bottomLarge);
        if (parent == null) {
            memory.unite();
        }
    }

    private void begin() {
        issued.restart();
        state.renew();
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
        if (!state.isLive()) {
            throw new IllegalStateException(state + " is closed");
        }
        if (covered) {
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
        if (destroyed || (parent != null && !state.isLive())) {
            return;
        }
        state.device().ensureCurrent();
        if (parent == null) {
            state.device().ensureCloses();
        } else if (!ofStream && holdsMemory()) {
            state.device().ensureNotGrouping("close");
        }
        Scope top = this;
        while (top.covered && top.nested != null) {
            top = top.nested;
        }
        // A loop, since recursion to this depth could overflow a small stack.
        for (; top != this; top = top.below()) {
            top.giveBack();
        }
        if (parent != null) {
            giveBack();
            return;
        }
        state.endForGood();
        destroyed = true;
        Leaks.closed(trace);
        stream.device().forget(this);
        try {
            if (stream.isOpen()) {
                stream.synchronize();
            }
        } finally {
            destroyHandles();
            memory.free();
        }
    }

    private boolean holdsMemory() {
        return memory.markSmall() != bottomSmall || memory.markLarge() != bottomLarge;
    }

    /** Ends a nested scope. */
    private void giveBack() {
        state.end();
        memory.rewind(bottomSmall, bottomLarge);
        below().covered = false;
    }

    private Scope below() {
        if (parent == null) {
            throw new IllegalStateException(state + " is not nested");
        }
        return parent;
    }

    private void destroyHandles() {
        for (Scope scope = this; scope != null; scope = scope.nested) {
            scope.destroyed = true;
            scope.issued.destroyHandles();
        }
    }

    @Override
    public String toString() {
        return state.toString();
    }
}
