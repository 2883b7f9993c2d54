package dev.chagres;

import dev.chagres.ElementChecks.ArrayElements;
import dev.chagres.IssuedTensors.TensorHandle;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.ScopeState;
import dev.chagres.internal.memory.SharedMemory;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

// Over 400 lines: nearly half are Javadoc of the copies from and to each Java type. Transfer copies, TensorHandle keeps
// TE's
// handle.

/**
 * An array of numbers in device memory, row-major, that a {@link Scope} hands out and takes back.
 *
 * <p>Copies between host and device wait until they are done unless they say otherwise, and run on the stream that the
 * caller names, after the work enqueued there.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="tensor"}
 *
 * <p>Threading: the device's thread.
 */
public final class Tensor {
    private final ScopeState scope;
    private final long[] sizes = new long[Shape.MAX_RANK];
    private DType dtype = DType.BYTE;
    private int rank;
    private long count;
    /** The scope's epoch when it handed this tensor out last. */
    private int epoch = -1;
    /** The number of its handing-out, among those of the scope. Code that relies on the contents remembers the number and compares it later. */
    private int issue;

    /** How often a method of this class has written to the memory, through this tensor or a view of it. */
    private int writes;

    /** Those of a capture under way, which its launches will make. */
    private int capturedWrites;

    /** The number of the latest of these writes among the changes on the device. */
    private long writtenAt;

    private boolean constant;
    private boolean requiresGradient;
    private long address;
    private final TensorHandle handle;
    /** The tensor that this one is a view of, and that tensor's issue number when the view was made. */
    private @Nullable Tensor base;

    private int baseIssue;
    /** The memory if others read it. */
    private @Nullable SharedMemory shared;

    Tensor(ScopeState scope, TensorHandle handle) {
        this.scope = scope;
        this.handle = handle;
    }

    /** Gives the tensor memory, type and shape for its scope's present epoch. */
    void issue(DType newType, long newAddress, int newRank, long d0, long d1, long d2, long d3) {
        base = null;
        shared = null;
        constant = false;
        requiresGradient = true;
        place(newType, newAddress, newRank, d0, d1, d2, d3);
    }

    /** Makes the tensor a view of elements of {@code of}, as {@code newType}, from {@code offset} on, until either is closed. */
    void issueView(Tensor of, DType newType, long offset, int newRank, long d0, long d1, long d2, long d3) {
        base = of;
        shared = null;
        baseIssue = of.issue;
        constant = of.constant;
        requiresGradient = of.requiresGradient;
        place(newType, of.address() + offset * newType.byteSize(), newRank, d0, d1, d2, d3);
    }

    private void place(DType newType, long newAddress, int newRank, long d0, long d1, long d2, long d3) {
        address = newAddress;
        dtype = newType;
        rank = newRank;
        sizes[0] = d0;
        sizes[1] = d1;
        sizes[2] = d2;
        sizes[3] = d3;
        count = Shape.product(newRank, d0, d1, d2, d3);
        handle.describe(newAddress, newType, sizes, newRank);
        epoch = scope.epoch();
        issue = scope.nextIssue();
    }

    /** Destroys TE's handle, which this tensor shares with the others of its place; it can be handed out again. */
    void destroyHandle() {
        handle.destroy();
    }

    /** Returns the type of the elements. */
    public DType dtype() {
        return dtype;
    }

    /** Returns a copy of the shape. */
    public Shape shape() {
        return new Shape(Arrays.copyOf(sizes, rank));
    }

    /** Returns the number of dimensions. */
    public int rank() {
        return rank;
    }

    /**
     * Returns the size of dimension {@code index}, counted from 0, outermost first.
     *
     * @throws IndexOutOfBoundsException when there is no such dimension
     */
    public long size(int index) {
        if (index < 0 || index >= rank) {
            throw Shape.noDimension(index, rank);
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

    /** Returns whether the tensor may be used: its scope is open, and was not restarted since it handed the tensor out. */
    public boolean isLive() {
        return epoch == scope.epoch() && (base == null || (base.issue == baseIssue && base.isLive()));
    }

    /**
     * Returns whether the tensor still has the issue number {@code issued} and its memory was not handed out again since. The scope may be
     * closed if a graph keeps its memory.
     */
    boolean holds(int issued) {
        if (issue != issued) {
            return false;
        }
        return base == null ? scope.holds(epoch) : base.holds(baseIssue);
    }

    /** Returns whether a scope that is open has taken back what it handed out as {@code issued}. */
    boolean isTakenBack(int issued) {
        return issue != issued || (scope.isLive() && !isLive());
    }

    /** Returns CUDA's number of the device that holds the tensor. */
    public int deviceIndex() {
        return scope.device().index();
    }

    /**
     * Returns whether backward passes compute a gradient of this tensor: true until {@link #stopGradient}; for the output of a layer, true
     * if the layer's input or one of its parameters requires one.
     */
    public boolean requiresGradient() {
        return requiresGradient;
    }

    /** Turns the gradient of this tensor off: layers then do not compute it. */
    public void stopGradient() {
        requiresGradient = false;
    }

    /**
     * Returns the device address as a zero-length segment, for calls through the bindings.
     *
     * @throws IllegalStateException when the tensor is closed
     * @throws WrongThreadException when the device belongs to another thread
     */
    public MemorySegment pointer() {
        return MemorySegment.ofAddress(address());
    }

    /**
     * Returns the device address.
     *
     * @throws IllegalStateException when the tensor is closed
     * @throws WrongThreadException when the device belongs to another thread
     */
    public long address() {
        ensureUsable();
        return address;
    }

    /**
     * Returns Transformer Engine's handle ({@code NVTETensor}) with the present address, type and shape, for calls through
     * the bindings.
     *
     * @throws IllegalArgumentException when Transformer Engine has no such type
     * @throws IllegalStateException when the tensor is closed
     * @throws WrongThreadException when the device belongs to another thread
     */
    public MemorySegment handle() {
        ensureUsable();
        return handle.of(scope.device());
    }

    /**
     * Copies the elements from floats, rounded to nearest even where this tensor is FLOAT16 or BFLOAT16.
     *
     * @param stream the stream that copies
     * @param values as many as the tensor has elements
     * @throws IllegalArgumentException when the number of values differs, or the elements are no floats
     */
    public void set(Stream stream, float... values) {
        Transfer.fromFloats(this, Transfer.on(this, stream), values);
    }

    /**
     * Copies the elements from doubles.
     *
     * @param stream the stream that copies
     * @param values as many as the tensor has elements
     * @throws IllegalArgumentException when the number of values differs, or the elements are not FLOAT64
     */
    public void set(Stream stream, double... values) {
        Transfer.fromArray(this, Transfer.on(this, stream), ArrayElements.DOUBLES, values);
    }

    /**
     * Copies the elements from ints, those of UINT32 bit by bit.
     *
     * @param stream the stream that copies
     * @param values as many as the tensor has elements
     * @throws IllegalArgumentException when the number of values differs, or the elements are not INT32 or UINT32
     */
    public void set(Stream stream, int... values) {
        Transfer.fromArray(this, Transfer.on(this, stream), ArrayElements.INTS, values);
    }

    /**
     * Copies the elements from shorts.
     *
     * @param stream the stream that copies
     * @param values as many as the tensor has elements
     * @throws IllegalArgumentException when the number of values differs, or the elements are not INT16
     */
    public void set(Stream stream, short... values) {
        Transfer.fromArray(this, Transfer.on(this, stream), ArrayElements.SHORTS, values);
    }

    /**
     * Copies the elements from longs, those of UINT64 bit by bit.
     *
     * @param stream the stream that copies
     * @param values as many as the tensor has elements
     * @throws IllegalArgumentException when the number of values differs, or the elements are not INT64 or UINT64
     */
    public void set(Stream stream, long... values) {
        Transfer.fromArray(this, Transfer.on(this, stream), ArrayElements.LONGS, values);
    }

    /**
     * Copies the elements from bytes, bit by bit.
     *
     * @param stream the stream that copies
     * @param values as many as the tensor has elements
     * @throws IllegalArgumentException when the number of values differs, or the elements are not BYTE, INT8, FLOAT8_E4M3 or
     *     FLOAT8_E5M2
     */
    public void set(Stream stream, byte... values) {
        Transfer.fromArray(this, Transfer.on(this, stream), ArrayElements.BYTES, values);
    }

    /**
     * Returns the elements as floats, exactly.
     *
     * @param stream the stream that copies
     * @throws IllegalArgumentException when the elements are no floats
     */
    public float[] toFloats(Stream stream) {
        return Transfer.toFloats(this, Transfer.on(this, stream));
    }

    /**
     * Returns the elements as doubles.
     *
     * @param stream the stream that copies
     * @throws IllegalArgumentException when the elements are not FLOAT64
     */
    public double[] toDoubles(Stream stream) {
        return Transfer.toArray(this, Transfer.on(this, stream), ArrayElements.DOUBLES, double[]::new);
    }

    /**
     * Returns the elements as ints, those of UINT32 bit by bit.
     *
     * @param stream the stream that copies
     * @throws IllegalArgumentException when the elements are not INT32 or UINT32
     */
    public int[] toInts(Stream stream) {
        return Transfer.toArray(this, Transfer.on(this, stream), ArrayElements.INTS, int[]::new);
    }

    /**
     * Returns the elements as shorts.
     *
     * @param stream the stream that copies
     * @throws IllegalArgumentException when the elements are not INT16
     */
    public short[] toShorts(Stream stream) {
        return Transfer.toArray(this, Transfer.on(this, stream), ArrayElements.SHORTS, short[]::new);
    }

    /**
     * Returns the elements as longs, those of UINT64 bit by bit.
     *
     * @param stream the stream that copies
     * @throws IllegalArgumentException when the elements are not INT64 or UINT64
     */
    public long[] toLongs(Stream stream) {
        return Transfer.toArray(this, Transfer.on(this, stream), ArrayElements.LONGS, long[]::new);
    }

    /**
     * Returns the elements as bytes, bit by bit.
     *
     * @param stream the stream that copies
     * @throws IllegalArgumentException when the elements are not BYTE, INT8, FLOAT8_E4M3 or FLOAT8_E5M2
     */
    public byte[] toBytes(Stream stream) {
        return Transfer.toArray(this, Transfer.on(this, stream), ArrayElements.BYTES, byte[]::new);
    }

    /**
     * Enqueues a copy of the first bytes of {@code source} into the whole tensor. The buffer must stay as it is until the
     * stream has passed the copy; from pageable memory the call may wait for it.
     *
     * @throws IllegalArgumentException when the buffer is shorter than the tensor
     */
    public void copyFrom(Stream stream, HostBuffer source) {
        Transfer.fromHost(
                this, Transfer.on(this, stream), Given.given("source", source).segment());
    }

    /**
     * Enqueues a copy of the first bytes of {@code source} into the whole tensor. The memory must stay as it is until the
     * stream has passed the copy; from pageable memory the call may wait for it.
     *
     * @param source native memory
     * @throws IllegalArgumentException when it is shorter than the tensor, or lies on the Java heap
     */
    public void copyFrom(Stream stream, MemorySegment source) {
        Transfer.fromHost(this, Transfer.on(this, stream), source);
    }

    /**
     * Enqueues a copy of the whole tensor to the first bytes of {@code target}, which hold it once the stream has passed
     * the copy.
     *
     * @param target native memory
     * @throws IllegalArgumentException when it is shorter than the tensor, or lies on the Java heap
     */
    public void copyTo(Stream stream, MemorySegment target) {
        Transfer.toHost(this, Transfer.on(this, stream), target);
    }

    /**
     * Enqueues a copy of the whole tensor to the first bytes of {@code target}, which hold it once the stream has passed
     * the copy.
     *
     * @throws IllegalArgumentException when the buffer is shorter than the tensor
     */
    public void copyTo(Stream stream, HostBuffer target) {
        Transfer.toHost(
                this, Transfer.on(this, stream), Given.given("target", target).segment());
    }

    /**
     * Enqueues a copy of {@code source}, which has as many elements of the same type, on the same device.
     *
     * @throws IllegalArgumentException when type or number of elements differ
     */
    public void copyFrom(Stream stream, Tensor source) {
        Transfer.fromDevice(this, Transfer.on(this, stream), Given.given("source", source));
    }

    /**
     * Enqueues {@code this[to] = source[from]}, row by row; the other elements stay.
     *
     * @param to elements of this tensor, in the order of its memory
     * @param source of the same type, on the same device
     * @param from as many rows and columns as {@code to}
     * @throws IllegalArgumentException when types, rows, columns or devices differ, elements do not lie within a tensor, or the tensors
     *     share memory
     */
    public void copyFrom(Stream stream, Rectangle to, Tensor source, Rectangle from) {
        Transfer.rectangle(
                this,
                Transfer.on(this, stream),
                Given.given("to", to),
                Given.given("source", source),
                Given.given("from", from));
    }

    /** Enqueues zeroing of every byte. */
    public void zero(Stream stream) {
        Transfer.zero(this, Transfer.on(this, stream));
    }

    /**
     * Checks that the tensor may be used now, on this thread.
     *
     * @throws IllegalStateException when its scope is closed, or was restarted since it handed the tensor out
     * @throws WrongThreadException when the device belongs to another thread
     */
    void ensureUsable() {
        scope.device().ensureCurrent();
        if (!isLive()) {
            throw new IllegalStateException(
                    "tensor " + dtype + shape() + " of " + scope + " is closed: " + scope.whyClosed(epoch));
        }
    }

    /** Counts a write that a method of this class has enqueued. This tensor must not be a view. */
    void countWrite() {
        writes++;
        writtenAt = scope.device().countChange();
    }

    /** Counts a write that the present capture has recorded, until the capture ends; this tensor must not be a view. */
    void countCapturedWrite(Capture capture) {
        if (capturedWrites++ == 0) {
            capture.onRecordedOrFailure(this::forgetCapturedWrites);
        }
        writtenAt = scope.device().countChange();
    }

    private void forgetCapturedWrites() {
        capturedWrites = 0;
    }

    /**
     * Returns how often a method of this class has written to the memory of this tensor, which must not be a view, the writes included that the
     * present capture has recorded.
     */
    int writes() {
        return writes + capturedWrites;
    }

    /** Returns the number of the latest of these writes among the changes on the device. */
    long writtenAt() {
        return writtenAt;
    }

    /** Returns the number of its handing-out, among those of the scope. */
    int issueNumber() {
        return issue;
    }

    DeviceState device() {
        return scope.device();
    }

    /** Returns the address, without the check of {@link #address}. */
    long knownAddress() {
        return address;
    }

    /** Returns the tensor that this one is a view of, null when it is no view. */
    @Nullable
    Tensor base() {
        return base;
    }

    /** Marks the contents as checked: they must not be written to until the tensor is handed out again. */
    void fix() {
        constant = true;
    }

    boolean isFixed() {
        return constant;
    }

    /** Marks the memory as one that others read; this tensor must not be a view. */
    void share(SharedMemory memory) {
        shared = memory;
    }

    /** Returns whether others may read the memory now, so that nothing may be written to it. */
    boolean isShared() {
        Tensor root = this;
        for (Tensor next = base; next != null; next = root.base) {
            root = next;
        }
        return root.shared != null && root.shared.isReadOnly();
    }

    void requireGradient(boolean required) {
        requiresGradient = required;
    }

    @Override
    public String toString() {
        return "Tensor " + dtype + shape();
    }
}
