package dev.chagres.cudnn;

import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Checks;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * Checks of sizes and strides of a graph's tensors, and the exception of an argument that does not fit.
 *
 * <p>Threading: thread-safe.
 */
final class GraphChecks {
    /** Elements of memory that a tensor may span: 2^40. */
    private static final long MOST_ELEMENTS = 1L << 40;

    private GraphChecks() {}

    /** Returns the exception of an argument that does not fit. */
    static IllegalArgumentException refusal(
            String kind, String operation, String argument, String expected, @Nullable Object got) {
        return new IllegalArgumentException(kind + " " + ForeignText.quoted(operation) + ", " + argument + ": expected "
                + expected + ", got " + got);
    }

    static void checkDims(String kind, String operation, long... dims) {
        Checks.given("dims", dims);
        boolean fits = dims.length >= 1 && dims.length <= GraphTensor.MAX_RANK;
        long count = 1;
        for (int i = 0; fits && i < dims.length; i++) {
            fits = dims[i] >= 1 && count <= MOST_ELEMENTS / dims[i];
            count *= dims[i];
        }
        if (!fits) {
            throw refusal(
                    kind,
                    operation,
                    "dims",
                    "1 to " + GraphTensor.MAX_RANK + " sizes of at least 1, and at most " + MOST_ELEMENTS + " elements",
                    Arrays.toString(dims));
        }
    }

    static void checkStrides(String kind, String operation, long[] dims, long... strides) {
        Checks.given("strides", strides);
        boolean fits = strides.length == dims.length;
        for (int i = 0; fits && i < dims.length; i++) {
            fits = strides[i] >= 1 && strides[i] <= MOST_ELEMENTS / dims[i];
        }
        if (!fits) {
            throw refusal(
                    kind,
                    operation,
                    "strides",
                    dims.length + " of at least 1, over at most " + MOST_ELEMENTS + " elements",
                    Arrays.toString(strides));
        }
    }

    /** Checks that a tensor is INT32 of these sizes. */
    static void integers(
            GraphBuilder graph, String kind, String name, String argument, GraphTensor tensor, long... dims) {
        if (!graph.own(kind, name, argument, tensor).hasDims(dims) || tensor.type() != DataType.INT32) {
            throw refusal(kind, name, argument, "INT32" + Arrays.toString(dims), tensor);
        }
    }
}
