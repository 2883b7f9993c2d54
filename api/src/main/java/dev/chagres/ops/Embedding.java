package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.te.Output;

/**
 * Looks up rows of a table by identifier, and computes the gradient of the table.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_embedding_forward}, {@code ops_embedding_backward} in {@code ops.h}.
 */
public final class Embedding {
    private Embedding() {}

    /**
     * Enqueues {@code y[t] = table[ids[t]]}. A row whose identifier is outside 0 to V - 1 is 0.
     *
     * @param table floating-point numbers [V, H]
     * @param ids INT32 [T]
     * @param y [T, H], in the type of the table
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory with another tensor
     */
    public static void forward(Tensor table, Tensor ids, Tensor y, Stream stream) {
        forward(table, 0, ids, y, stream);
    }

    /**
     * Enqueues {@code y[t] = table[ids[t] - first]} for a table that is a range of the rows of a vocabulary. A row whose identifier is
     * outside {@code first} to {@code first + V - 1} is 0.
     *
     * @param table floating-point numbers [V, H]; V may be 0
     * @param first index in the vocabulary of the table's first row, at least 0
     * @param ids INT32 [T]
     * @param y [T, H], in the type of the table
     * @throws IllegalArgumentException when shapes, types, first or devices do not fit, or y shares memory with another tensor
     */
    public static void forward(Tensor table, long first, Tensor ids, Tensor y, Stream stream) {
        checkFirst(first);
        Checks.matrix(stream, "table", table);
        checkIds(ids, stream);
        Checks.matrix(stream, "y", y, table.dtype(), ids.size(0), table.size(1));
        Checks.written("y", y, "table", table, "ids", ids);
        Status.ops(
                Ops.ops_embedding_forward(
                        table.address(),
                        ids.address(),
                        y.address(),
                        first,
                        ids.size(0),
                        table.size(0),
                        table.size(1),
                        table.dtype().code(),
                        stream.handle()),
                "ops_embedding_forward");
    }

    /**
     * Enqueues {@code gradient[v] = sum over t with ids[t] = v of dy[t]}, or adds that to {@code gradient[v]}.
     *
     * @param dy gradient of y, floating-point numbers [T, H]
     * @param ids INT32 [T]; those outside 0 to V - 1 give no gradient
     * @param gradient FLOAT32 [V, H]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the gradient shares memory with
     *     another tensor
     */
    public static void backward(Tensor dy, Tensor ids, Tensor gradient, Output output, Stream stream) {
        backward(dy, 0, ids, gradient, output, stream);
    }

    /**
     * Enqueues {@code gradient[v] = sum over t with ids[t] = first + v of dy[t]}, or adds that to {@code gradient[v]}.
     *
     * @param dy gradient of y, floating-point numbers [T, H]
     * @param first number of the table's first row, at least 0
     * @param ids INT32 [T]; those outside {@code first} to {@code first + V - 1} give no gradient
     * @param gradient FLOAT32 [V, H]; V may be 0
     * @throws IllegalArgumentException when shapes, types, first or devices do not fit, or the gradient shares memory with another
     *     tensor
     */
    public static void backward(Tensor dy, long first, Tensor ids, Tensor gradient, Output output, Stream stream) {
        checkFirst(first);
        Checks.given("output", output);
        Checks.matrix(stream, "dy", dy);
        checkIds(ids, stream);
        Checks.matrix(stream, "dy", dy, dy.dtype(), ids.size(0), dy.size(1));
        Checks.matrix(stream, "gradient", gradient, DType.FLOAT32, dy.size(1));
        Checks.written("gradient", gradient, "dy", dy, "ids", ids);
        Status.ops(
                Ops.ops_embedding_backward(
                        dy.address(),
                        ids.address(),
                        gradient.address(),
                        output.beta(),
                        first,
                        ids.size(0),
                        gradient.size(0),
                        gradient.size(1),
                        dy.dtype().code(),
                        stream.handle()),
                "ops_embedding_backward");
    }

    private static void checkFirst(long first) {
        Numbers.atLeastZero("first", first);
    }

    private static void checkIds(Tensor ids, Stream stream) {
        Checks.on(stream, "ids", ids);
        if (ids.rank() != 1 || ids.dtype() != DType.INT32) {
            throw new IllegalArgumentException("ids: expected INT32[T], got " + Checks.describe(ids));
        }
    }
}
