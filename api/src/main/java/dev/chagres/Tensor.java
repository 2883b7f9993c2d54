package dev.chagres;

import dev.chagres.internal.TensorCell;
import dev.chagres.internal.Transfer;
import java.lang.foreign.MemorySegment;

/**
 * An array of numbers in device memory, row-major, that a {@link dev.chagres.Scope} hands out and takes back.
 *
 * <p>Copies between host and device wait until they are done unless they say otherwise, and run on the stream that the
 * caller names, after the work enqueued there.
 *
 * <p>Threading: the device's thread.
 */
public final class Tensor {
    private final TensorCell cell;

    /** For scopes: wraps the state they issue. */
    @SuppressWarnings("exports")
    public Tensor(TensorCell cell) {
        this.cell = cell;
    }

    /** Returns the state that the other packages work on. */
    @SuppressWarnings("exports")
    public TensorCell cell() {
        return cell;
    }

    /** Returns the type of the elements. */
    public DType dtype() {
        return cell.dtype();
    }

    /** Returns the shape now. */
    public Shape shape() {
        return cell.shape();
    }

    /** Returns the number of dimensions. */
    public int rank() {
        return cell.rank();
    }

    /**
     * Returns the size of dimension {@code index}, counted from 0, outermost first.
     *
     * @throws IndexOutOfBoundsException when there is no such dimension
     */
    public long size(int index) {
        return cell.size(index);
    }

    /** Returns the number of elements. */
    public long count() {
        return cell.count();
    }

    /** Returns the bytes of all elements. */
    public long byteSize() {
        return cell.byteSize();
    }

    /** Returns whether the tensor may be used: its scope is open and has handed it out since its last restart. */
    public boolean isLive() {
        return cell.isLive();
    }

    /**
     * Returns the device address as a zero-length segment, for calls through the bindings.
     *
     * @throws IllegalStateException when the tensor is closed
     */
    public MemorySegment pointer() {
        return cell.pointer();
    }

    /**
     * Copies the elements from floats, rounded to nearest even where this tensor is FLOAT16 or BFLOAT16.
     *
     * @param stream the stream that copies
     * @param values as many as the tensor has elements
     * @throws IllegalArgumentException when the number of values differs, or the elements are no floats
     */
    public void set(Stream stream, float... values) {
        Transfer.fromFloats(cell, on(stream), values);
    }

    /**
     * Copies the elements from ints.
     *
     * @param stream the stream that copies
     * @param values as many as the tensor has elements
     * @throws IllegalArgumentException when the number of values differs, or the elements are not INT32
     */
    public void set(Stream stream, int... values) {
        Transfer.fromInts(cell, on(stream), values);
    }

    /**
     * Returns the elements as floats, exactly.
     *
     * @param stream the stream that copies
     * @throws IllegalArgumentException when the elements are no floats
     */
    public float[] toFloats(Stream stream) {
        return Transfer.toFloats(cell, on(stream));
    }

    /**
     * Returns the elements as ints.
     *
     * @param stream the stream that copies
     * @throws IllegalArgumentException when the elements are not INT32
     */
    public int[] toInts(Stream stream) {
        return Transfer.toInts(cell, on(stream));
    }

    /**
     * Enqueues a copy of the first bytes of {@code source} into the whole tensor. The buffer must stay as it is until the
     * stream has passed the copy; from pageable memory the call may wait for it.
     *
     * @throws IllegalArgumentException when the buffer is shorter than the tensor
     */
    public void copyFrom(Stream stream, HostBuffer source) {
        Transfer.fromHost(cell, on(stream), source.segment());
    }

    /**
     * Enqueues a copy of the whole tensor to the first bytes of {@code target}, which hold it once the stream has passed
     * the copy.
     *
     * @throws IllegalArgumentException when the buffer is shorter than the tensor
     */
    public void copyTo(Stream stream, HostBuffer target) {
        Transfer.toHost(cell, on(stream), target.segment());
    }

    /**
     * Enqueues a copy of {@code source}, which has as many bytes, on the same device.
     *
     * @throws IllegalArgumentException when type or number of elements differ
     */
    public void copyFrom(Stream stream, Tensor source) {
        Transfer.fromDevice(cell, on(stream), source.cell);
    }

    /** Enqueues zeroing of every byte. */
    public void zero(Stream stream) {
        Transfer.zero(cell, on(stream));
    }

    private MemorySegment on(Stream stream) {
        if (stream.device().state() != cell.scope().device()) {
            throw new IllegalArgumentException(
                    "stream: expected one of device " + cell.scope().device().index() + ", got " + stream);
        }
        return stream.handle();
    }

    @Override
    public String toString() {
        return "Tensor " + cell.dtype() + cell.shape();
    }
}
