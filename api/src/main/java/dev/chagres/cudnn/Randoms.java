package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;

/**
 * Adds random numbers to graphs.
 *
 * <p>Threading: that of the builder.
 */
final class Randoms {
    private Randoms() {}

    static GraphTensor rng(
            GraphBuilder graph,
            String name,
            RngDistribution distribution,
            GraphTensor seed,
            GraphTensor offset,
            long... dims) {
        OperationBuilder op = new OperationBuilder(graph, "rng", name, Cudnn.CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR());
        one(op, "seed", seed);
        one(op, "offset", offset);
        Description detail = detail(Checks.given("distribution", distribution));
        op.checkDims(dims);
        GraphTensor y = op.result("", graph.intermediate(), dims.clone(), GraphTensor.rowMajor(dims));
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_RNG_SEED(), seed)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC(), offset)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_RNG_YDESC(), y)
                .detail(Cudnn.CUDNN_ATTR_OPERATION_RNG_DESC(), detail)
                .add();
        return y;
    }

    private static void one(OperationBuilder op, String argument, GraphTensor tensor) {
        DataType type = op.own(argument, tensor).type();
        if (tensor.count() != 1 || (type != DataType.INT64 && type != DataType.INT32)) {
            throw op.refusal(argument, "one INT32 or INT64", tensor);
        }
    }

    private static Description detail(RngDistribution distribution) {
        Description detail = new Description(Cudnn.CUDNN_BACKEND_RNG_DESCRIPTOR());
        return switch (distribution) {
            case RngDistribution.Bernoulli bernoulli ->
                of(detail, Cudnn.CUDNN_RNG_DISTRIBUTION_BERNOULLI())
                        .number(Cudnn.CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY(), bernoulli.probability());
            case RngDistribution.Uniform uniform ->
                of(detail, Cudnn.CUDNN_RNG_DISTRIBUTION_UNIFORM())
                        .number(Cudnn.CUDNN_ATTR_RNG_UNIFORM_DIST_MINIMUM(), uniform.minimum())
                        .number(Cudnn.CUDNN_ATTR_RNG_UNIFORM_DIST_MAXIMUM(), uniform.maximum());
            case RngDistribution.Normal normal ->
                of(detail, Cudnn.CUDNN_RNG_DISTRIBUTION_NORMAL())
                        .number(Cudnn.CUDNN_ATTR_RNG_NORMAL_DIST_MEAN(), normal.mean())
                        .number(Cudnn.CUDNN_ATTR_RNG_NORMAL_DIST_STANDARD_DEVIATION(), normal.standardDeviation());
        };
    }

    private static Description of(Description detail, int code) {
        return detail.integer(Cudnn.CUDNN_ATTR_RNG_DISTRIBUTION(), Cudnn.CUDNN_TYPE_RNG_DISTRIBUTION(), code);
    }
}
