package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.ArrayList;
import java.util.List;
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
        graph.own("matmul", name, "a", a);
        graph.own("matmul", name, "b", b);
        int rank = a.rank();
        if (rank < 3) {
            throw GraphChecks.refusal("matmul", name, "a", "at least 3 dimensions, […, M, K]", a);
        }
        long[] dims = a.dims();
        boolean fits = b.rank() == rank && b.dim(rank - 2) == a.dim(rank - 1);
        for (int i = 0; fits && i < rank - 2; i++) {
            boolean heads = i == 1 && rank == 4 && a.dim(i) % b.dim(i) == 0;
            fits = a.dim(i) == b.dim(i) || a.dim(i) == 1 || b.dim(i) == 1 || heads;
            dims[i] = Math.max(a.dim(i), b.dim(i));
        }
        if (!fits) {
            throw GraphChecks.refusal("matmul", name, "b", "[…, K, N] with the batch and K of " + a, b);
        }
        dims[rank - 1] = b.dim(rank - 1);
        GraphTensor c = graph.result("matmul", name, graph.intermediate(), dims, GraphTensor.rowMajor(dims));
        List<GraphTensor> reads = new ArrayList<>(List.of(a, b));
        Description description = new Description(Cudnn.CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR())
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_MATMUL_ADESC(), a)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_MATMUL_BDESC(), b)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_MATMUL_CDESC(), c);
        limit(graph, name, "rows", limits.rows(), c, reads, description);
        limit(graph, name, "columns", limits.columns(), c, reads, description);
        limit(graph, name, "products", limits.products(), c, reads, description);
        graph.add(new Operation(
                "matmul",
                name,
                reads,
                List.of(c),
                description,
                new Description(Cudnn.CUDNN_BACKEND_MATMUL_DESCRIPTOR())
                        .type(Cudnn.CUDNN_ATTR_MATMUL_COMP_TYPE(), graph.compute()),
                Cudnn.CUDNN_ATTR_OPERATION_MATMUL_DESC()));
        return c;
    }

    private static void limit(
            GraphBuilder graph,
            String name,
            String argument,
            @Nullable GraphTensor limit,
            GraphTensor c,
            List<GraphTensor> reads,
            Description description) {
        if (limit == null) {
            return;
        }
        int rank = c.rank();
        boolean fits = graph.own("matmul", name, argument, limit).rank() == rank
                && limit.type() == DataType.INT32
                && limit.dim(rank - 2) == 1
                && limit.dim(rank - 1) == 1;
        for (int i = 0; fits && i < rank - 2; i++) {
            fits = limit.dim(i) == 1 || limit.dim(i) == c.dim(i);
        }
        if (!fits) {
            throw GraphChecks.refusal(
                    "matmul", name, argument, "INT32[…, 1, 1] with the batch of " + c + " or 1", limit);
        }
        reads.add(limit);
        description.tensor(
                switch (argument) {
                    case "rows" -> Cudnn.CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC();
                    case "columns" -> Cudnn.CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC();
                    default -> Cudnn.CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC();
                },
                limit);
    }

    /** Products of the tokens of each expert with its weights; {@code index} says which tokens, null for all in their order. */
    static GraphTensor grouped(
            GraphBuilder graph,
            String name,
            GraphTensor tokens,
            GraphTensor weights,
            GraphTensor firstToken,
            @Nullable GraphTensor index) {
        String kind = "groupedMatmul";
        if (graph.own(kind, name, "tokens", tokens).rank() != 3 || tokens.dim(0) != 1) {
            throw GraphChecks.refusal(kind, name, "tokens", "[1, T, K]", tokens);
        }
        if (graph.own(kind, name, "weights", weights).rank() != 3 || weights.dim(1) != tokens.dim(2)) {
            throw GraphChecks.refusal(kind, name, "weights", "[E, " + tokens.dim(2) + ", N]", weights);
        }
        GraphChecks.integers(graph, kind, name, "firstToken", firstToken, weights.dim(0), 1, 1);
        List<GraphTensor> reads = new ArrayList<>(List.of(tokens, weights, firstToken));
        Description description = new Description(Cudnn.CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR())
                .integer(
                        Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE(),
                        Cudnn.CUDNN_TYPE_MOE_GROUPED_MATMUL_MODE(),
                        index == null
                                ? Cudnn.CUDNN_MOE_GROUPED_MATMUL_MODE_NONE()
                                : Cudnn.CUDNN_MOE_GROUPED_MATMUL_MODE_GATHER())
                .type(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC(), graph.compute())
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC(), tokens)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC(), weights)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC(), firstToken);
        long rows = tokens.dim(1);
        if (index != null) {
            rows = graph.own(kind, name, "index", index).count();
            GraphChecks.integers(graph, kind, name, "index", index, 1, rows, 1);
            reads.add(index);
            description.tensor(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC(), index);
        }
        long[] dims = {1, rows, weights.dim(2)};
        GraphTensor y = graph.result(kind, name, graph.intermediate(), dims, GraphTensor.rowMajor(dims));
        description.tensor(Cudnn.CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC(), y);
        graph.add(new Operation(kind, name, reads, List.of(y), description));
        return y;
    }
}
