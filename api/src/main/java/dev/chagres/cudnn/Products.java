package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import java.util.List;

/**
 * Adds matrix products to graphs.
 *
 * <p>Threading: that of the builder.
 */
final class Products {
    private Products() {}

    static GraphTensor matmul(GraphBuilder graph, String name, GraphTensor a, GraphTensor b) {
        graph.own("matmul", name, "a", a);
        graph.own("matmul", name, "b", b);
        int rank = a.rank();
        if (rank < 3) {
            throw GraphChecks.refusal("matmul", name, "a", "at least 3 dimensions, […, M, K]", a);
        }
        long[] dims = a.dims();
        boolean fits = b.rank() == rank && b.dim(rank - 2) == a.dim(rank - 1);
        for (int i = 0; fits && i < rank - 2; i++) {
            fits = a.dim(i) == b.dim(i) || a.dim(i) == 1 || b.dim(i) == 1;
            dims[i] = Math.max(a.dim(i), b.dim(i));
        }
        if (!fits) {
            throw GraphChecks.refusal("matmul", name, "b", "[…, K, N] with the batch and K of " + a, b);
        }
        dims[rank - 1] = b.dim(rank - 1);
        GraphTensor c = graph.result("matmul", name, graph.intermediate(), dims, GraphTensor.rowMajor(dims));
        graph.add(new Operation(
                "matmul",
                name,
                List.of(a, b),
                List.of(c),
                new Description(Cudnn.CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR())
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_MATMUL_ADESC(), a)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_MATMUL_BDESC(), b)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_MATMUL_CDESC(), c),
                new Description(Cudnn.CUDNN_BACKEND_MATMUL_DESCRIPTOR())
                        .type(Cudnn.CUDNN_ATTR_MATMUL_COMP_TYPE(), graph.compute()),
                Cudnn.CUDNN_ATTR_OPERATION_MATMUL_DESC()));
        return c;
    }
}
