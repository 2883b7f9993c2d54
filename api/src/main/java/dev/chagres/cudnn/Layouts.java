package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.Arrays;
import java.util.List;

/**
 * Adds operations that move elements to graphs: reshape, transpose and concatenation.
 *
 * <p>Threading: that of the builder.
 */
final class Layouts {
    private Layouts() {}

    static GraphTensor reshape(GraphBuilder graph, String name, GraphTensor x, long... dims) {
        graph.own("reshape", name, "x", x);
        GraphChecks.checkDims("reshape", name, dims);
        if (!x.isRowMajor()) {
            throw GraphChecks.refusal("reshape", name, "x", "elements without gaps, the last dimension fastest", x);
        }
        long count = 1;
        for (long dim : dims) {
            count *= dim;
        }
        if (count != x.count()) {
            throw GraphChecks.refusal("reshape", name, "dims", x.count() + " elements", Arrays.toString(dims));
        }
        return moved(graph, "reshape", name, x, x.type(), dims.clone(), GraphTensor.rowMajor(dims));
    }

    static GraphTensor transpose(GraphBuilder graph, String name, GraphTensor x, int... permutation) {
        return transpose(graph, name, x, x.type(), permutation);
    }

    /** The same with elements of another type, to which they are rounded. */
    static GraphTensor transpose(GraphBuilder graph, String name, GraphTensor x, DataType type, int... permutation) {
        graph.own("transpose", name, "x", x);
        int rank = x.rank();
        boolean[] taken = new boolean[rank];
        boolean fits = Checks.given("permutation", permutation).length == rank;
        for (int axis : permutation) {
            fits = fits && axis >= 0 && axis < rank && !taken[axis];
            if (fits) {
                taken[axis] = true;
            }
        }
        if (!fits) {
            throw GraphChecks.refusal(
                    "transpose", name, "permutation", "each dimension of " + x + " once", Arrays.toString(permutation));
        }
        long[] dims = new long[rank];
        long[] strides = new long[rank];
        long[] before = x.strides();
        for (int i = 0; i < rank; i++) {
            dims[i] = x.dim(permutation[i]);
            strides[i] = before[permutation[i]];
        }
        return moved(graph, "transpose", name, x, type, dims, strides);
    }

    /** Adds an operation that reads the memory of x by other strides. */
    private static GraphTensor moved(
            GraphBuilder graph, String kind, String name, GraphTensor x, DataType type, long[] dims, long[] strides) {
        GraphTensor y = graph.result(kind, name, type, dims, strides);
        GraphTensor offsets = x.offsets();
        if (offsets != null) {
            y.pack(offsets, x.span());
        }
        graph.add(new Operation(
                kind,
                name,
                List.of(x),
                List.of(y),
                new Description(Cudnn.CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR())
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_RESHAPE_XDESC(), x)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_RESHAPE_YDESC(), y)));
        return y;
    }

    static GraphTensor concatenate(GraphBuilder graph, String name, int axis, GraphTensor... inputs) {
        String kind = "concatenate";
        if (Checks.givenAll("inputs", inputs).length == 0) {
            throw GraphChecks.refusal(kind, name, "inputs", "tensors", "none");
        }
        GraphTensor first = graph.own(kind, name, "inputs", inputs[0]);
        if (axis < 0 || axis >= first.rank()) {
            throw GraphChecks.refusal(kind, name, "axis", "a dimension of " + first + ", from 0", axis);
        }
        long[] dims = first.dims();
        dims[axis] = 0;
        for (GraphTensor input : inputs) {
            graph.own(kind, name, "inputs", input);
            boolean fits = input.rank() == dims.length && input.type() == first.type();
            for (int i = 0; fits && i < dims.length; i++) {
                fits = i == axis || input.dim(i) == dims[i];
            }
            if (!fits) {
                throw GraphChecks.refusal(kind, name, "inputs", first + " but along axis " + axis, input);
            }
            dims[axis] += input.dim(axis);
        }
        GraphTensor y = graph.result(kind, name, first.type(), dims, GraphTensor.ordered(dims, first));
        graph.add(new Operation(
                kind,
                name,
                List.of(inputs),
                List.of(y),
                new Description(Cudnn.CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR())
                        .longs(Cudnn.CUDNN_ATTR_OPERATION_CONCAT_AXIS(), axis)
                        .tensors(Cudnn.CUDNN_ATTR_OPERATION_CONCAT_INPUT_DESCS(), List.of(inputs))
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_CONCAT_OUTPUT_DESC(), y)));
        return y;
    }

    /** Which of tokens and channels of a head lies in rows. */
    enum Order {
        ROWS,
        TRANSPOSED
    }

    static GraphTensor paged(
            GraphBuilder graph,
            String name,
            GraphTensor container,
            GraphTensor pages,
            GraphTensor lengths,
            long tokens,
            Order order) {
        String kind = "pagedCacheLoad";
        if (graph.own(kind, name, "container", container).rank() != 4) {
            throw GraphChecks.refusal(kind, name, "container", "blocks of tokens [N, H, T, D]", container);
        }
        if (tokens < 1) {
            throw GraphChecks.refusal(kind, name, "tokens", "at least 1", tokens);
        }
        long size = container.dim(2);
        long sequences = graph.own(kind, name, "pages", pages).dim(0);
        GraphChecks.integers(graph, kind, name, "pages", pages, sequences, 1, (tokens + size - 1) / size, 1);
        GraphChecks.integers(graph, kind, name, "lengths", lengths, sequences, 1, 1, 1);
        long width = container.dim(3);
        boolean rows = order == Order.ROWS;
        long[] dims = {sequences, container.dim(1), rows ? tokens : width, rows ? width : tokens};
        long head = tokens * width;
        long[] strides = {container.dim(1) * head, head, rows ? width : 1, rows ? 1 : width};
        GraphTensor y = graph.result(kind, name, container.type(), dims, strides);
        graph.add(new Operation(
                kind,
                name,
                List.of(container, pages, lengths),
                List.of(y),
                new Description(Cudnn.CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR())
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC(), container)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC(), pages)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC(), lengths)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC(), y)));
        return y;
    }
}
