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
        OperationBuilder op = mover(graph, "reshape", name);
        op.own("x", x);
        op.checkDims(dims);
        if (!x.isRowMajor()) {
            throw op.refusal("x", "elements without gaps, the last dimension fastest", x);
        }
        long count = 1;
        for (long dim : dims) {
            count *= dim;
        }
        if (count != x.count()) {
            throw op.refusal("dims", x.count() + " elements", Arrays.toString(dims));
        }
        return moved(op, x, x.type(), dims.clone(), GraphTensor.rowMajor(dims));
    }

    static GraphTensor transpose(GraphBuilder graph, String name, GraphTensor x, int... permutation) {
        return transpose(graph, name, x, x.type(), permutation);
    }

    /** The same with elements of another type, to which they are rounded. */
    static GraphTensor transpose(GraphBuilder graph, String name, GraphTensor x, DataType type, int... permutation) {
        OperationBuilder op = mover(graph, "transpose", name);
        op.own("x", x);
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
            throw op.refusal("permutation", "each dimension of " + x + " once", Arrays.toString(permutation));
        }
        long[] dims = new long[rank];
        long[] strides = new long[rank];
        long[] before = x.strides();
        for (int i = 0; i < rank; i++) {
            dims[i] = x.dim(permutation[i]);
            strides[i] = before[permutation[i]];
        }
        return moved(op, x, type, dims, strides);
    }

    private static OperationBuilder mover(GraphBuilder graph, String kind, String name) {
        return new OperationBuilder(graph, kind, name, Cudnn.CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR());
    }

    /** Adds an operation that reads the memory of x by other strides. */
    private static GraphTensor moved(OperationBuilder op, GraphTensor x, DataType type, long[] dims, long[] strides) {
        GraphTensor y = op.result("", type, dims, strides);
        GraphTensor offsets = x.offsets();
        if (offsets != null) {
            y.pack(offsets, x.span());
        }
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_RESHAPE_XDESC(), x)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_RESHAPE_YDESC(), y)
                .add();
        return y;
    }

    static GraphTensor concatenate(GraphBuilder graph, String name, int axis, GraphTensor... inputs) {
        OperationBuilder op =
                new OperationBuilder(graph, "concatenate", name, Cudnn.CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR());
        if (Checks.givenAll("inputs", inputs).length == 0) {
            throw op.refusal("inputs", "tensors", "none");
        }
        GraphTensor first = op.own("inputs", inputs[0]);
        if (axis < 0 || axis >= first.rank()) {
            throw op.refusal("axis", "a dimension of " + first + ", from 0", axis);
        }
        long[] dims = first.dims();
        dims[axis] = 0;
        for (GraphTensor input : inputs) {
            op.own("inputs", input);
            boolean fits = input.rank() == dims.length && input.type() == first.type();
            for (int i = 0; fits && i < dims.length; i++) {
                fits = i == axis || input.dim(i) == dims[i];
            }
            if (!fits) {
                throw op.refusal("inputs", first + " but along axis " + axis, input);
            }
            dims[axis] += input.dim(axis);
        }
        GraphTensor y = op.result("", first.type(), dims, GraphTensor.ordered(dims, first));
        op.description.longs(Cudnn.CUDNN_ATTR_OPERATION_CONCAT_AXIS(), axis);
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_CONCAT_INPUT_DESCS(), List.of(inputs))
                .writes(Cudnn.CUDNN_ATTR_OPERATION_CONCAT_OUTPUT_DESC(), y)
                .add();
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
        OperationBuilder op = new OperationBuilder(
                graph, "pagedCacheLoad", name, Cudnn.CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR());
        if (op.own("container", container).rank() != 4) {
            throw op.refusal("container", "blocks of tokens [N, H, T, D]", container);
        }
        if (tokens < 1) {
            throw op.refusal("tokens", "at least 1", tokens);
        }
        long size = container.dim(2);
        long sequences = op.own("pages", pages).dim(0);
        op.integers("pages", pages, sequences, 1, (tokens + size - 1) / size, 1);
        op.integers("lengths", lengths, sequences, 1, 1, 1);
        long width = container.dim(3);
        boolean rows = order == Order.ROWS;
        long[] dims = {sequences, container.dim(1), rows ? tokens : width, rows ? width : tokens};
        long head = tokens * width;
        long[] strides = {container.dim(1) * head, head, rows ? width : 1, rows ? 1 : width};
        GraphTensor y = op.result("", container.type(), dims, strides);
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC(), container)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC(), pages)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC(), lengths)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC(), y)
                .add();
        return y;
    }
}
