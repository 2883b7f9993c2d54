package dev.chagres.internal;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * The mutable state behind a {@code Tensor}: where it lies, its shape now, and TE's handle for it.
 *
 * <p>A scope that is restarted hands the same cell out again, perhaps with another shape. TE's handle and the pointer
 * object are made once and then only updated, so that a repeated step makes no garbage.
 *
 * <p>Threading: the device's thread.
 */
public final class TensorCell {
    private final ScopeState scope;
    private final DType dtype;
    private final long[] sizes = new long[Shape.MAX_RANK];
    private int rank;
    private long count;
    private long capacity;
    private int epoch = -1;
    private int issue;
    private boolean constant;
    private MemorySegment pointer = MemorySegment.NULL;
    private MemorySegment handle = MemorySegment.NULL;
    private boolean handleStale = true;
    /** What this cell is a view of, if it is one, and that cell's epoch when the view was made. */
    private @Nullable TensorCell base;

    private int baseEpoch;

    /** Makes a cell that {@code scope} owns; {@link #issue} gives it a place and a shape. */
    public TensorCell(ScopeState scope, DType dtype) {
        this.scope = scope;
        this.dtype = dtype;
    }

    /** Gives the cell memory of {@code byteSize} bytes and a shape for the scope's present epoch. */
    public void issue(long address, long byteSize, int newRank, long d0, long d1, long d2, long d3) {
        capacity = byteSize;
        base = null;
        constant = false;
        place(address, newRank, d0, d1, d2, d3);
    }

    /** Makes the cell a view of elements of {@code of}, from {@code offset} on, until either is closed. */
    public void issueView(TensorCell of, long offset, int newRank, long d0, long d1, long d2, long d3) {
        base = of;
        baseEpoch = of.epoch;
        constant = of.constant;
        place(of.pointer().address() + offset * dtype.byteSize(), newRank, d0, d1, d2, d3);
    }

    private void place(long address, int newRank, long d0, long d1, long d2, long d3) {
        boolean same = rank == newRank && sizes[0] == d0 && sizes[1] == d1 && sizes[2] == d2 && sizes[3] == d3;
        if (pointer.address() != address) {
            pointer = MemorySegment.ofAddress(address);
            same = false;
        }
        if (!same) {
            rank = newRank;
            sizes[0] = d0;
            sizes[1] = d1;
            sizes[2] = d2;
            sizes[3] = d3;
            count = product(newRank, d0, d1, d2, d3);
            handleStale = true;
        }
        epoch = scope.epoch();
        issue++;
    }

    /** Returns how often the cell was handed out: whoever trusts its contents remembers the number and compares. */
    public int issue() {
        return issue;
    }

    /** Says that the contents, which were checked, are not to be written to until the cell is handed out again. */
    public void fix() {
        constant = true;
    }

    /**
     * Checks that the contents may be written to.
     *
     * @throws IllegalArgumentException when they were checked once and are trusted since
     */
    void ensureWritable() {
        if (constant) {
            throw new IllegalArgumentException("tensor: expected one whose elements may change, got the offsets of a"
                    + " CuSeqlens, which are checked only when it is made; make another CuSeqlens");
        }
    }

    /** Returns the product of the first {@code rank} sizes, none of them negative, or -1 when no long can hold it. */
    public static long product(int rank, long d0, long d1, long d2, long d3) {
        long count = rank > 0 ? d0 : 1;
        count = rank > 1 ? product(count, d1) : count;
        count = rank > 2 ? product(count, d2) : count;
        return rank > 3 ? product(count, d3) : count;
    }

    /** Returns the product of all sizes, or -1 when no long can hold it. */
    public static long product(long... sizes) {
        long count = 1;
        for (long size : sizes) {
            count = count < 0 ? -1 : product(count, size);
        }
        return count;
    }

    private static long product(long count, long size) {
        return Math.multiplyHigh(count, size) == 0 && count * size >= 0 ? count * size : -1;
    }

    /** Returns the bytes this cell had at most: what its next issue takes at least, so that later addresses repeat. */
    public long capacity() {
        return capacity;
    }

    /** Returns the scope that owns the cell. */
    public ScopeState scope() {
        return scope;
    }

    /** Returns the element type. */
    public DType dtype() {
        return dtype;
    }

    /** Returns the number of dimensions. */
    public int rank() {
        return rank;
    }

    /** Returns the size of dimension {@code index}. */
    public long size(int index) {
        if (index < 0 || index >= rank) {
            throw new IndexOutOfBoundsException("index: expected 0 to " + (rank - 1) + ", got " + index);
        }
        return sizes[index];
    }

    /** Returns the number of elements. */
    public long count() {
        return count;
    }

    /** Returns the bytes of all elements. */
    public long byteSize() {
        return count * dtype.byteSize();
    }

    /** Returns a copy of the shape. */
    public Shape shape() {
        return new Shape(Arrays.copyOf(sizes, rank));
    }

    /** Returns whether the tensor may be used. */
    public boolean isLive() {
        return scope.isLive() && epoch == scope.epoch() && isBaseLive();
    }

    private boolean isBaseLive() {
        return base == null || (base.epoch == baseEpoch && base.isLive());
    }

    /**
     * Checks that the tensor may be used now, on this thread.
     *
     * @throws IllegalStateException when its scope is closed, or was restarted and has not handed it out again
     * @throws WrongThreadException when the device belongs to another thread
     */
    public void ensureUsable() {
        scope.device().ensureCurrent();
        if (!isLive()) {
            throw new IllegalStateException("tensor " + dtype + shape() + " of " + scope + " is closed: " + reason());
        }
    }

    /**
     * Checks that the tensor may be used now on {@code device}.
     *
     * @throws IllegalArgumentException when it is of another device
     */
    public void ensureUsableOn(DeviceState device, String argument) {
        ensureUsable();
        if (scope.device() != device) {
            String which = scope.device().index() == device.index() ? ", opened another time" : "";
            throw new IllegalArgumentException(argument + ": expected a tensor of device " + device.index() + ", got "
                    + dtype + shape() + " of device " + scope.device().index() + which);
        }
    }

    private String reason() {
        if (!scope.isLive()) {
            return "so is its scope";
        }
        return epoch == scope.epoch() ? "so is the tensor that it is a view of" : "the scope was restarted since";
    }

    /** Returns the device address as a zero-length segment. */
    public MemorySegment pointer() {
        ensureUsable();
        return pointer;
    }

    /** Returns TE's handle ({@code NVTETensor}) with the present address, type and shape. */
    public MemorySegment handle() {
        ensureUsable();
        if (handleStale) {
            updateHandle();
        }
        return handle;
    }

    private void updateHandle() {
        BasicTensor tensor = scope.device().basicTensor();
        if (handle.address() == 0) {
            handle = tensor.create();
        }
        tensor.at(pointer.address(), dtype.code()).shape(sizes, rank).writeTo(handle);
        handleStale = false;
    }

    /** Closes the tensor for good: its scope took another course than in the repetition before. */
    public void expire() {
        epoch = -1;
    }

    /** Gives TE's handle back; the cell can be issued again. */
    public void destroyHandle() {
        if (handle.address() != 0) {
            MemorySegment dead = handle;
            handle = MemorySegment.NULL;
            handleStale = true;
            Status.te(TransformerEngine.te_destroy_tensor(dead), "nvte_destroy_tensor");
        }
    }
}
