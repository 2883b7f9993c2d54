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

    static GraphTensor rotary(
            GraphBuilder graph, String operation, GraphTensor x1, GraphTensor x2, GraphTensor cos, GraphTensor sin) {
        long[] halves = graph.own("rotary", operation, "x1", x1).dims();
        GraphChecks.sized(graph, "rotary", operation, "x2", x2, halves);
        long[] angles = graph.own("rotary", operation, "cos", cos).dims();
        GraphChecks.sized(graph, "rotary", operation, "sin", sin, angles);
        GraphTensor first = graph.pointwise(
                operation + ".first",
                PointwiseMode.SUB,
                graph.pointwise(operation + ".x1Cos", PointwiseMode.MUL, x1, cos),
                graph.pointwise(operation + ".x2Sin", PointwiseMode.MUL, x2, sin));
        GraphTensor second = graph.pointwise(
                operation + ".second",
                PointwiseMode.ADD,
                graph.pointwise(operation + ".x2Cos", PointwiseMode.MUL, x2, cos),
                graph.pointwise(operation + ".x1Sin", PointwiseMode.MUL, x1, sin));
        return graph.concatenate(operation, x1.rank() - 1, first, second);
    }
}
