package dev.chagres;

import dev.chagres.internal.DeviceMemory;
import dev.chagres.internal.Leaks;
import dev.chagres.internal.ScopeState;
import dev.chagres.internal.TensorCell;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Hands out device memory and takes all of it back at once.
 *
 * <p>Memory is a stack: allocation moves a pointer. {@link #open()} gives a nested scope on top; while it is open this one
 * hands out nothing. Closing a scope closes its tensors: using one of them throws. Memory is reused in the order of the
 * scope's stream, so no wait is needed.
 *
 * <p>{@link #restart()} begins a repetition: the scope hands out the same Java objects again, in the same order, resized
 * where a shape changed. A training step that repeats its allocations so makes no garbage, and addresses repeat from step
 * to step. Until it is handed out again, a tensor of the repetition before is closed.
 *
 * <p>Threading: the device's thread.
 */
public final class Scope implements AutoCloseable {
    /** Programs nest scopes a few deep; far more is a loop that closes none, and would end as a stack overflow in close. */
    private static final int MAX_DEPTH = 1000;

    private final Stream stream;
    private final DeviceMemory memory;
    private final @Nullable Scope parent;
    /** Scopes that this one is nested in. */
    private final int depth;

    private final ScopeState state;
    private final Leaks.@Nullable Trace trace;
    /** Tensors, nested scopes and kept records in the order in which they were handed out. */
    private final List<Object> issued = new ArrayList<>();

    private int cursor;
    private long bottomSmall;
    private long bottomLarge;
    private @Nullable Scope child;
    private boolean destroyed;

    Scope(Stream stream) {
        this.stream = stream;
        memory = new DeviceMemory(stream.device().state());
        parent = null;
        depth = 0;
        state = new ScopeState(stream.device().state(), "scope of " + stream.device());
        trace = Leaks.opened(state.toString());
    }

    private Scope(Scope parent) {
        stream = parent.stream;
        memory = parent.memory;
        this.parent = parent;
        depth = parent.depth + 1;
        state = new ScopeState(stream.device().state(), depth == 1 ? "nested " + parent.state : parent.toString());
        trace = null;
        settle();
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
        TensorCell cell = other.cell();
        int rank = cell.rank();
        return allocate(cell.dtype(), rank, sizeOr1(cell, 0), sizeOr1(cell, 1), sizeOr1(cell, 2), sizeOr1(cell, 3));
    }

    /**
     * Returns {@code count} elements of {@code tensor} from element {@code offset} on, with another shape but the same
     * memory. The view is closed with this scope, or with the tensor when that comes first.
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

    private Tensor view(Tensor tensor, long offset, int rank, long d0, long d1, long d2, long d3) {
        ensureOnTop();
        TensorCell cell = tensor.cell();
        cell.ensureUsableOn(state.device(), "tensor");
        long count = count(cell.dtype(), rank, d0, d1, d2, d3);
        if (offset < 0 || offset > cell.count() - count) {
            throw new IllegalArgumentException(
                    "offset: expected elements within " + tensor + ", got " + count + " from " + offset + " on");
        }
        Tensor view = next(cell.dtype());
        view.cell().issueView(cell, offset, rank, d0, d1, d2, d3);
        return view;
    }

    private Tensor allocate(DType dtype, int rank, long d0, long d1, long d2, long d3) {
        ensureOnTop();
        long byteSize = count(dtype, rank, d0, d1, d2, d3) * dtype.byteSize();
        Tensor tensor = next(dtype);
        TensorCell cell = tensor.cell();
        long capacity = Math.max(cell.capacity(), byteSize);
        cell.issue(memory.allocate(capacity), capacity, rank, d0, d1, d2, d3);
        return tensor;
    }

    /** Returns the elements of a shape whose bytes can be counted. */
    private static long count(DType dtype, int rank, long d0, long d1, long d2, long d3) {
        if (d0 < 0 || d1 < 0 || d2 < 0 || d3 < 0) {
            throw new IllegalArgumentException("shape: expected no negative size, got " + text(rank, d0, d1, d2, d3));
        }
        long count = TensorCell.product(rank, d0, d1, d2, d3);
        if (count < 0 || count > Long.MAX_VALUE / dtype.byteSize()) {
            throw new IllegalArgumentException(
                    "shape: expected at most " + Long.MAX_VALUE + " bytes, got " + dtype + text(rank, d0, d1, d2, d3));
        }
        return count;
    }

    private static String text(int rank, long... sizes) {
        return Arrays.toString(Arrays.copyOf(sizes, rank));
    }

    private static long sizeOr1(TensorCell cell, int index) {
        return index < cell.rank() ? cell.size(index) : 1;
    }

    private Tensor next(DType dtype) {
        if (cursor < issued.size() && issued.get(cursor) instanceof Tensor again && again.dtype() == dtype) {
            cursor++;
            return again;
        }
        return append(new Tensor(new TensorCell(state, dtype)));
    }

    /**
     * Opens a scope on top of this one.
     *
     * @throws IllegalStateException when this one is closed, has an open scope on top, or {@value #MAX_DEPTH} below it
     */
    public Scope open() {
        ensureOnTop();
        if (depth == MAX_DEPTH) {
            throw new IllegalStateException(state + " is nested in " + MAX_DEPTH
                    + " open scopes, the most there may be; close each in the method that opened it");
        }
        Scope nested;
        if (cursor < issued.size() && issued.get(cursor) instanceof Scope again) {
            cursor++;
            nested = again;
            nested.settle();
            nested.begin();
        } else {
            nested = append(new Scope(this));
        }
        child = nested;
        return nested;
    }

    /**
     * Returns the record that was kept at this place of the repetition before, or null; {@link #keep} follows.
     *
     * @param type the record's class
     */
    public <R> @Nullable R recall(Class<R> type) {
        ensureOnTop();
        Object next = cursor < issued.size() ? issued.get(cursor) : null;
        return type.isInstance(next) ? type.cast(next) : null;
    }

    /** Keeps a record for {@link #recall} in the next repetition, and returns it. */
    public <R> R keep(R record) {
        ensureOnTop();
        if (cursor < issued.size() && issued.get(cursor) == record) {
            cursor++;
            return record;
        }
        if (cursor < issued.size()
                && !(issued.get(cursor) instanceof Tensor)
                && !(issued.get(cursor) instanceof Scope)) {
            issued.set(cursor++, record);
            return record;
        }
        return append(record);
    }

    /**
     * Begins a repetition: rewinds the memory, and hands the same objects out again. A repetition that needed more memory
     * than the one before waits here once for the device, while the memory is laid out anew.
     */
    public void restart() {
        ensureOnTop();
        // First of all: should the device have no memory left, what was handed out before is closed all the same.
        begin();
        memory.rewind(bottomSmall, bottomLarge);
        if (parent == null) {
            memory.unite();
        }
    }

    /** Makes the present top of the stack the place to which this scope rewinds. */
    private void settle() {
        bottomSmall = memory.markSmall();
        bottomLarge = memory.markLarge();
    }

    private void begin() {
        cursor = 0;
        state.renew();
    }

    private <O> O append(O object) {
        if (cursor < issued.size()) {
            destroyFrom(cursor);
        }
        issued.add(object);
        cursor++;
        return object;
    }

    /** Returns the bytes that this scope and those it is nested in handed out at most at one time. */
    public long peakBytes() {
        return memory.peak();
    }

    /** Returns the bytes that stand reserved for this scope and those it is nested in. */
    public long reservedBytes() {
        return memory.reserved();
    }

    private void ensureOnTop() {
        state.device().ensureCurrent();
        if (!state.isLive()) {
            throw new IllegalStateException(state + " is closed");
        }
        if (child != null) {
            throw new IllegalStateException(state + " has an open nested scope, which must be closed first");
        }
    }

    /** Takes all memory back and closes what was handed out, nested scopes first. A second call does nothing. */
    @Override
    public void close() {
        if (destroyed || (parent != null && !state.isLive())) {
            return;
        }
        state.device().ensureCurrent();
        if (child != null) {
            child.close();
        }
        state.end();
        if (parent != null) {
            memory.rewind(bottomSmall, bottomLarge);
            parent.child = null;
            return;
        }
        destroyed = true;
        Leaks.closed(trace);
        stream.device().forget(this);
        try {
            if (stream.isOpen()) {
                stream.synchronize();
            }
        } finally {
            destroyFrom(0);
            memory.free();
        }
    }

    private void destroyFrom(int first) {
        for (int i = issued.size() - 1; i >= first; i--) {
            Object object = issued.remove(i);
            if (object instanceof Tensor tensor) {
                tensor.cell().destroyHandle();
                tensor.cell().expire();
            } else if (object instanceof Scope nested) {
                nested.state.end();
                nested.destroyFrom(0);
                nested.destroyed = true;
            }
        }
    }

    @Override
    public String toString() {
        return state.toString();
    }
}
