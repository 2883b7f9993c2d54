package dev.chagres.cudnn;

import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * A tensor of a graph: a name, a type, sizes and strides, without memory. A virtual tensor never has memory; others are bound to tensors in
 * a {@link VariantPack}.
 *
 * <p>Type and strides of a result are settled when the graph is built.
 *
 * <p>Threading: immutable once its graph is built.
 */
public final class GraphTensor {
    /** The most dimensions that cuDNN takes. */
    static final int MAX_RANK = 8;
    /** What cuDNN may assume of addresses; tensors of a scope begin at multiples of 256 bytes. */
    static final int ALIGNMENT = 16;

    private final GraphBuilder builder;
    private final long uid;
    private final String name;
    private final long[] dims;
    private long[] strides;
    private DataType type;
    private boolean virtual;
    /** Of a tensor by value. */
    private final double value;

    private final boolean byValue;
    /** Of a packed tensor: where each sequence begins, and the last one ends; null for another. */
    private @Nullable GraphTensor offsets;

    private long room;

    private GraphTensor(GraphBuilder builder, long uid, String name, DataType type, long[] dims, double value) {
        this.builder = builder;
        this.uid = uid;
        this.name = name;
        this.type = type;
        this.dims = dims;
        this.value = value;
        byValue = !Double.isNaN(value);
        strides = rowMajor(dims);
    }

    /** Makes a tensor that is bound to memory. */
    static GraphTensor real(GraphBuilder builder, long uid, String name, DataType type, long[] dims, long[] strides) {
        GraphTensor tensor = new GraphTensor(builder, uid, name, type, dims, Double.NaN);
        tensor.strides = strides;
        return tensor;
    }

    /** Makes the result of an operation. */
    static GraphTensor result(GraphBuilder builder, long uid, String name, DataType type, long[] dims, long[] strides) {
        GraphTensor tensor = real(builder, uid, name, type, dims, strides);
        tensor.virtual = true;
        return tensor;
    }

    /** Makes a number. */
    static GraphTensor scalar(GraphBuilder builder, long uid, String name, DataType type, int rank, double value) {
        long[] ones = new long[rank];
        Arrays.fill(ones, 1);
        return new GraphTensor(builder, uid, name, type, ones, value);
    }

    /** Returns the strides of a tensor whose elements lie without gaps, the last dimension fastest. */
    static long[] rowMajor(long[] dims) {
        long[] strides = new long[dims.length];
        long stride = 1;
        for (int i = dims.length - 1; i >= 0; i--) {
            strides[i] = stride;
            stride *= dims[i];
        }
        return strides;
    }

    /** Returns strides without gaps in which the dimensions have the order that {@code model} gives them. */
    static long[] ordered(long[] dims, GraphTensor model) {
        if (model.rank() != dims.length) {
            return rowMajor(dims);
        }
        Integer[] order = new Integer[dims.length];
        Arrays.setAll(order, i -> dims.length - 1 - i);
        Arrays.sort(order, (a, b) -> Long.compare(model.strides[a], model.strides[b]));
        long[] strides = new long[dims.length];
        long stride = 1;
        for (int i : order) {
            strides[i] = stride;
            stride *= dims[i];
        }
        return strides;
    }

    /** Returns the name, which no other tensor of the graph has. */
    public String name() {
        return name;
    }

    /** Returns the type of the elements. */
    public DataType type() {
        return type;
    }

    /** Returns the number of dimensions. */
    public int rank() {
        return dims.length;
    }

    /** Returns a copy of the sizes, outermost first. */
    public long[] dims() {
        return dims.clone();
    }

    /** Returns a copy of the strides in elements. */
    public long[] strides() {
        return strides.clone();
    }

    /** Returns the number of elements. */
    public long count() {
        long count = 1;
        for (long dim : dims) {
            count *= dim;
        }
        return count;
    }

    /** Returns the elements of memory from the first to the last, those of gaps included; those of all sequences of a packed tensor. */
    public long span() {
        if (room != 0) {
            return room;
        }
        long last = 0;
        for (int i = 0; i < dims.length; i++) {
            last += (dims[i] - 1) * strides[i];
        }
        return last + 1;
    }

    /** Returns whether the tensor has no memory: the result of an operation that {@link GraphBuilder#output} did not name. */
    public boolean isVirtual() {
        return virtual;
    }

    /** Returns whether the tensor is a number on the host. */
    public boolean isByValue() {
        return byValue;
    }

    GraphBuilder builder() {
        return builder;
    }

    long uid() {
        return uid;
    }

    long dim(int index) {
        return dims[index];
    }

    double value() {
        return value;
    }

    boolean hasDims(long... wanted) {
        return Arrays.equals(dims, wanted);
    }

    /** Returns whether sequences lie one behind the other, where offsets say. */
    public boolean isPacked() {
        return offsets != null;
    }

    @Nullable
    GraphTensor offsets() {
        return offsets;
    }

    /** Puts sequences where {@code begins} says, in memory of {@code elements}. */
    void pack(GraphTensor begins, long elements) {
        offsets = begins;
        room = elements;
    }

    /** Returns whether the elements lie without gaps, the last dimension fastest. */
    boolean isRowMajor() {
        return offsets == null && Arrays.equals(strides, rowMajor(dims));
    }

    /** Gives a result memory. */
    void makeReal(DataType newType, long[] newStrides) {
        type = newType;
        strides = newStrides;
        virtual = false;
    }

    /** Returns the name, type and sizes. */
    @Override
    public String toString() {
        return name + " " + type + Arrays.toString(dims)
                + (isRowMajor() ? "" : " strides " + Arrays.toString(strides))
                + (offsets == null ? "" : " packed by " + offsets.name);
    }
}
