package dev.chagres.cudnn;

/**
 * Adds what is made of several operations to graphs.
 *
 * <p>Threading: that of the builder.
 */
final class Compositions {
    private Compositions() {}

    static GraphTensor softmax(GraphBuilder graph, String operation, GraphTensor x, int axis) {
        GraphTensor most = graph.reduction(operation + ".max", ReductionMode.MAX, x, axis);
        GraphTensor exponent = graph.pointwise(operation + ".exponent", PointwiseMode.SUB, x, most);
        GraphTensor power = graph.pointwise(operation + ".exp", PointwiseMode.EXP, exponent);
        GraphTensor sum = graph.reduction(operation + ".sum", ReductionMode.ADD, power, axis);
        return graph.pointwise(operation, PointwiseMode.DIV, power, sum);
    }

    static GraphTensor causalMask(
            GraphBuilder graph, String operation, GraphTensor x, int rows, int columns, float masked) {
        GraphTensor row =
                graph.pointwise(operation + ".row", PointwiseMode.GEN_INDEX, PointwiseConfig.DEFAULT.withAxis(rows), x);
        GraphTensor column = graph.pointwise(
                operation + ".column", PointwiseMode.GEN_INDEX, PointwiseConfig.DEFAULT.withAxis(columns), x);
        GraphTensor seen = graph.pointwise(operation + ".seen", PointwiseMode.CMP_GE, row, column);
        GraphTensor number = graph.scalar(operation + ".masked", x.rank(), masked);
        return graph.pointwise(operation, PointwiseMode.BINARY_SELECT, x, number, seen);
    }

    static GraphTensor attention(
            GraphBuilder graph, String operation, GraphTensor q, GraphTensor kT, GraphTensor v, float scale) {
        GraphTensor scores = scores(graph, operation, q, kT, scale);
        return graph.matmul(operation, softmax(graph, operation + ".softmax", scores, scores.rank() - 1), v);
    }

    static GraphTensor causalAttention(
            GraphBuilder graph, String operation, GraphTensor q, GraphTensor kT, GraphTensor v, float scale) {
        GraphTensor scores = scores(graph, operation, q, kT, scale);
        int columns = scores.rank() - 1;
        GraphTensor masked =
                causalMask(graph, operation + ".mask", scores, columns - 1, columns, Float.NEGATIVE_INFINITY);
        return graph.matmul(operation, softmax(graph, operation + ".softmax", masked, columns), v);
    }

    private static GraphTensor scores(
            GraphBuilder graph, String operation, GraphTensor q, GraphTensor kT, float scale) {
        GraphTensor product = graph.matmul(operation + ".product", q, kT);
        GraphTensor factor = graph.scalar(operation + ".scale", product.rank(), scale);
        return graph.pointwise(operation + ".scores", PointwiseMode.MUL, product, factor);
    }
}
