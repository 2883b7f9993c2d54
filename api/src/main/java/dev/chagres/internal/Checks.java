package dev.chagres.internal;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import org.jspecify.annotations.Nullable;

/**
 * Checks of arguments before a call: each message names the argument, what was expected and what came.
 *
 * <p>Threading: the device's thread.
 */
public final class Checks {
    private static final int VECTOR_BYTES = 16;

    private Checks() {}

    /** Checks that {@code tensor} may be used in {@code scope}: usable now, and on the scope's device. */
    public static TensorCell on(Scope scope, String argument, Tensor tensor) {
        TensorCell cell = given(argument, tensor).cell();
        cell.ensureUsableOn(scope.device().state(), argument);
        return cell;
    }

    /** Checks that {@code tensor} is a matrix of {@code columns} columns and type {@code dtype} on the scope's device. */
    public static TensorCell matrix(Scope scope, String argument, Tensor tensor, DType dtype, long columns) {
        TensorCell cell = on(scope, argument, tensor);
        if (cell.rank() != 2 || cell.size(1) != columns || cell.dtype() != dtype) {
            throw new IllegalArgumentException(
                    argument + ": expected " + dtype + "[T, " + columns + "], got " + describe(cell));
        }
        return cell;
    }

    /** Checks that {@code tensor} is a matrix of exactly this shape. */
    public static TensorCell matrix(Scope scope, String argument, Tensor tensor, DType dtype, long rows, long columns) {
        TensorCell cell = matrix(scope, argument, tensor, dtype, columns);
        if (cell.size(0) != rows) {
            throw new IllegalArgumentException(
                    argument + ": expected " + dtype + "[" + rows + ", " + columns + "], got " + describe(cell));
        }
        return cell;
    }

    /** Checks that {@code tensor} is a vector of exactly this size. */
    public static TensorCell vector(Scope scope, String argument, Tensor tensor, DType dtype, long size) {
        TensorCell cell = on(scope, argument, tensor);
        if (cell.rank() != 1 || cell.size(0) != size || cell.dtype() != dtype) {
            throw new IllegalArgumentException(
                    argument + ": expected " + dtype + "[" + size + "], got " + describe(cell));
        }
        return cell;
    }

    /**
     * Checks that {@code tensor} has the type and shape of {@code model}, which must be usable on the same device: a
     * backward pass that was given the record of a closed scope, or of another device, so changes nothing.
     */
    public static TensorCell like(Scope scope, String argument, Tensor tensor, TensorCell model) {
        TensorCell cell = on(scope, argument, tensor);
        model.ensureUsable();
        if (model.scope().device() != cell.scope().device()) {
            throw new IllegalArgumentException(argument + ": expected a tensor of device "
                    + model.scope().device().index() + " like " + describe(model) + " there, got " + tensor + " of "
                    + scope.device());
        }
        boolean same = cell.dtype() == model.dtype() && cell.rank() == model.rank();
        for (int i = 0; same && i < model.rank(); i++) {
            same = cell.size(i) == model.size(i);
        }
        if (!same) {
            throw new IllegalArgumentException(argument + ": expected " + describe(model) + ", got " + describe(cell));
        }
        return cell;
    }

    /** Checks that {@code stream} is open and belongs to the device of {@code scope}. */
    public static void stream(Scope scope, Stream stream) {
        if (stream.device() != scope.device()) {
            throw new IllegalArgumentException("stream: expected one of " + scope.device() + ", got " + stream);
        }
        stream.handle();
    }

    /** Checks that {@code tensor} has elements that are floating-point numbers. */
    public static TensorCell floats(Scope scope, String argument, Tensor tensor) {
        TensorCell cell = on(scope, argument, tensor);
        if (!cell.dtype().isFloat()) {
            throw new IllegalArgumentException(
                    argument + ": expected elements of FLOAT32, FLOAT16 or BFLOAT16, got " + describe(cell));
        }
        return cell;
    }

    /** Checks that no byte of {@code cell}, which is written to, lies in {@code other}. */
    public static void apart(String argument, TensorCell cell, String otherArgument, TensorCell other) {
        long begin = cell.pointer().address();
        long otherBegin = other.pointer().address();
        if (begin < otherBegin + other.byteSize() && otherBegin < begin + cell.byteSize()) {
            throw new IllegalArgumentException(argument + ": expected memory of its own, got some of " + otherArgument
                    + "'s; it is written to while that is read or written");
        }
    }

    /** Checks that a tensor begins where kernels that load 16 bytes at a time can read it. */
    public static void aligned(String argument, TensorCell cell) {
        if (cell.pointer().address() % VECTOR_BYTES != 0) {
            throw new IllegalArgumentException(
                    argument + ": expected memory that begins at a multiple of " + VECTOR_BYTES
                            + " bytes, as every tensor of a scope does, got a view that does not; copy it into a tensor");
        }
    }

    /** Checks that {@code value} is there. */
    public static <V> V given(String argument, @Nullable V value) {
        if (value == null) {
            throw new NullPointerException(argument + ": expected a value, got null");
        }
        return value;
    }

    /** Returns type and shape for a message. */
    public static String describe(TensorCell cell) {
        return cell.dtype() + cell.shape().toString();
    }
}
