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

    /** Checks where sequences of a packed tensor lie. */
    static void packed(
            GraphBuilder graph,
            String kind,
            String name,
            long[] dims,
            long[] strides,
            GraphTensor offsets,
            long elements) {
        checkDims(kind, name, dims);
        checkStrides(kind, name, dims, strides);
        long longest = 1;
        for (int i = 1; i < dims.length; i++) {
            longest += (dims[i] - 1) * strides[i];
        }
        if (dims.length != 4 || strides[0] < longest) {
            String expected = "those of [B, H, S, D] whose first is at least " + longest;
            throw refusal(kind, name, "strides", expected, Arrays.toString(strides));
        }
        GraphTensor begins = graph.own(kind, name, "offsets", offsets);
        boolean whole = begins.type() == DataType.INT32 || begins.type() == DataType.INT64;
        if (!begins.hasDims(dims[0] + 1, 1, 1, 1) || !whole || begins.isVirtual() || begins.isPacked()) {
            throw refusal(kind, name, "offsets", "INT32 or INT64[" + (dims[0] + 1) + ", 1, 1, 1] in memory", offsets);
        }
        if (elements < 1 || elements > MOST_ELEMENTS) {
            throw refusal(kind, name, "elements", "1 to " + MOST_ELEMENTS, elements);
        }
    }

    /** Checks that a tensor has these sizes. */
    static void sized(GraphBuilder graph, String kind, String name, String argument, GraphTensor tensor, long... dims) {
        if (!graph.own(kind, name, argument, tensor).hasDims(dims)) {
            throw refusal(kind, name, argument, Arrays.toString(dims), tensor);
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
