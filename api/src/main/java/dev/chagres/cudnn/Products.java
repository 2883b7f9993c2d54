package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Adds matrix products to graphs.
 *
 * <p>Threading: that of the builder.
 */
final class Products {
    private Products() {}

    static GraphTensor matmul(GraphBuilder graph, String name, GraphTensor a, GraphTensor b, MatmulLimits limits) {
        Checks.given("limits", limits);
        OperationBuilder op =
                new OperationBuilder(graph, "matmul", name, Cudnn.CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR());
        op.own("a", a);
        op.own("b", b);
        int rank = a.rank();
        if (rank < 3) {
            throw op.refusal("a", "at least 3 dimensions, […, M, K]", a);
        }
        long[] dims = a.dims();
        boolean fits = b.rank() == rank && b.dim(rank - 2) == a.dim(rank - 1);
        for (int i = 0; fits && i < rank - 2; i++) {
            boolean heads = i == 1 && rank == 4 && a.dim(i) % b.dim(i) == 0;
            fits = a.dim(i) == b.dim(i) || a.dim(i) == 1 || b.dim(i) == 1 || heads;
            dims[i] = Math.max(a.dim(i), b.dim(i));
        }
        if (!fits) {
            throw op.refusal("b", "[…, K, N] with the batch and K of " + a, b);
        }
        dims[rank - 1] = b.dim(rank - 1);
        GraphTensor c = op.result("", graph.intermediate(), dims, GraphTensor.rowMajor(dims));
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_MATMUL_ADESC(), a)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_MATMUL_BDESC(), b)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_MATMUL_CDESC(), c)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC(), limit(op, "rows", limits.rows(), c))
                .reads(
                        Cudnn.CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC(),
                        limit(op, "columns", limits.columns(), c))
                .reads(
                        Cudnn.CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC(),
                        limit(op, "products", limits.products(), c))
                .detail(
                        Cudnn.CUDNN_ATTR_OPERATION_MATMUL_DESC(),
                        new Description(Cudnn.CUDNN_BACKEND_MATMUL_DESCRIPTOR())
                                .type(Cudnn.CUDNN_ATTR_MATMUL_COMP_TYPE(), graph.compute()))
                .add();
        return c;
    }

    private static @Nullable GraphTensor limit(
            OperationBuilder op, String argument, @Nullable GraphTensor limit, GraphTensor c) {
        if (limit == null) {
            return null;
        }
        int rank = c.rank();
        boolean fits = op.own(argument, limit).rank() == rank
                && limit.type() == DataType.INT32
                && limit.dim(rank - 2) == 1
                && limit.dim(rank - 1) == 1;
        for (int i = 0; fits && i < rank - 2; i++) {
            fits = limit.dim(i) == 1 || limit.dim(i) == c.dim(i);
        }
        if (!fits) {
            throw op.refusal(argument, "INT32[…, 1, 1] with the batch of " + c + " or 1", limit);
        }
        return limit;
    }

    /** Products of the tokens of each expert with its weights; {@code index} says which tokens, null for all in their order. */
    static GraphTensor grouped(
            GraphBuilder graph,
            String name,
            GraphTensor tokens,
            GraphTensor weights,
            GraphTensor firstToken,
            @Nullable GraphTensor index) {
        OperationBuilder op = new OperationBuilder(
                graph, "groupedMatmul", name, Cudnn.CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR());
        if (op.own("tokens", tokens).rank() != 3 || tokens.dim(0) != 1) {
            throw op.refusal("tokens", "[1, T, K]", tokens);
        }
        if (op.own("weights", weights).rank() != 3 || weights.dim(1) != tokens.dim(2)) {
            throw op.refusal("weights", "[E, " + tokens.dim(2) + ", N]", weights);
        }
        op.integers("firstToken", firstToken, weights.dim(0), 1, 1);
        long rows = tokens.dim(1);
        if (index != null) {
            rows = op.own("index", index).count();
            op.integers("index", index, 1, rows, 1);
        }
        long[] dims = {1, rows, weights.dim(2)};
        GraphTensor y = op.result("", graph.intermediate(), dims, GraphTensor.rowMajor(dims));
        op.description
                .integer(
                        Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE(),
                        Cudnn.CUDNN_TYPE_MOE_GROUPED_MATMUL_MODE(),
                        index == null
                                ? Cudnn.CUDNN_MOE_GROUPED_MATMUL_MODE_NONE()
                                : Cudnn.CUDNN_MOE_GROUPED_MATMUL_MODE_GATHER())
                .type(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC(), graph.compute());
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC(), tokens)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC(), weights)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC(), firstToken)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC(), index)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC(), y)
                .add();
        return y;
    }
}
