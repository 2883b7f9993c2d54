package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * Adds the parts of batch norm that cuDNN fuses with convolutions to a graph: sums of channels, what follows from sums, and gradients of
 * weights. A tensor of channels is [1, C, 1, …] for x[N, C, …].
 *
 * <p>Threading: that of the builder.
 *
 * <p>Source: {@code CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR}, {@code …BN_FINALIZE_STATISTICS_DESCRIPTOR} and {@code
 * …BN_BWD_WEIGHTS_DESCRIPTOR} of {@code cudnn_graph.h}.
 */
public final class Statistics {
    private final GraphBuilder graph;

    Statistics(GraphBuilder graph) {
        this.graph = graph;
    }

    /**
     * Sums of channels; each must be read or an output.
     *
     * @param sum of x
     * @param squares the sum of x&sup2;
     */
    public record Sums(GraphTensor sum, GraphTensor squares) {}

    /**
     * Averages over past steps, next = (1 - momentum) previous + momentum now.
     *
     * @param mean of channels
     * @param variance of channels, unbiased
     * @param momentum the share of this step
     */
    public record Running(GraphTensor mean, GraphTensor variance, float momentum) {}

    /**
     * What follows from sums; the norm is eqScale x + eqBias.
     *
     * @param mean of each channel
     * @param invStd 1 / sqrt(variance + epsilon)
     * @param eqScale scale invStd
     * @param eqBias bias - mean eqScale
     * @param runningMean the next average; null without averages
     * @param runningVariance the next average; null without averages
     */
    public record Finalized(
            GraphTensor mean,
            GraphTensor invStd,
            GraphTensor eqScale,
            GraphTensor eqBias,
            @Nullable GraphTensor runningMean,
            @Nullable GraphTensor runningVariance) {}

    /**
     * Gradients of weights, and the numbers of dx = eqDyScale dy + eqXScale x + eqBias.
     *
     * @param dscale the gradient of scale
     * @param dbias the gradient of bias
     * @param eqDyScale scale invStd
     * @param eqXScale -scale invStd&sup2; dscale / m, where m elements have a channel
     * @param eqBias -scale invStd dbias / m - eqXScale mean
     */
    public record WeightGradients(
            GraphTensor dscale, GraphTensor dbias, GraphTensor eqDyScale, GraphTensor eqXScale, GraphTensor eqBias) {}

    /**
     * Adds the sums of each channel of x[N, C, …] and of its squares.
     *
     * @throws IllegalArgumentException when x has no channels
     */
    public Sums sums(String operation, GraphTensor x) {
        OperationBuilder op = new OperationBuilder(
                graph, "genStats", operation, Cudnn.CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR());
        long[] dims = channels(op, x);
        GraphTensor sum = result(op, ".sum", dims);
        GraphTensor squares = result(op, ".squares", dims);
        op.description
                .integer(
                        Cudnn.CUDNN_ATTR_OPERATION_GENSTATS_MODE(),
                        Cudnn.CUDNN_TYPE_GENSTATS_MODE(),
                        Cudnn.CUDNN_GENSTATS_SUM_SQSUM())
                .type(Cudnn.CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC(), graph.compute());
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_GENSTATS_XDESC(), x)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC(), sum)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC(), squares)
                .add();
        return new Sums(sum, squares);
    }

    /**
     * Adds mean, 1 / sqrt(variance + epsilon) and the norm's factor and summand from sums over {@code count} elements of each channel.
     *
     * @param running averages that go on, or null for none
     * @throws IllegalArgumentException when shapes do not fit, or epsilon or count is not positive
     */
    public Finalized finalized(
            String operation,
            Sums sums,
            GraphTensor scale,
            GraphTensor bias,
            float epsilon,
            long count,
            @Nullable Running running) {
        OperationBuilder op = new OperationBuilder(
                graph, "bnFinalize", operation, Cudnn.CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR());
        GraphTensor sum = op.own("sums", Checks.given("sums", sums).sum());
        long[] dims = sum.dims();
        op.sized("squares", sums.squares(), dims);
        op.sized("scale", scale, dims);
        op.sized("bias", bias, dims);
        op.checkEpsilon(epsilon);
        if (count < 1 || count > Integer.MAX_VALUE) {
            throw op.refusal("count", "1 to " + Integer.MAX_VALUE, count);
        }
        GraphTensor epsilonNumber = op.scalar(".epsilon", sum.rank(), epsilon);
        GraphTensor countNumber = graph.scalar(operation + ".count", DataType.INT32, sum.rank(), count);
        GraphTensor mean = result(op, ".mean", dims);
        GraphTensor invStd = result(op, ".invStd", dims);
        GraphTensor eqScale = result(op, ".eqScale", dims);
        GraphTensor eqBias = result(op, ".eqBias", dims);
        op.description
                .integer(
                        Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_STATS_MODE(),
                        Cudnn.CUDNN_TYPE_BN_FINALIZE_STATS_MODE(),
                        Cudnn.CUDNN_BN_FINALIZE_STATISTICS_TRAINING())
                .type(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_MATH_PREC(), graph.compute());
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_Y_SUM_DESC(), sum)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_Y_SQ_SUM_DESC(), sums.squares())
                .reads(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_SCALE_DESC(), scale)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_BIAS_DESC(), bias)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_MEAN_DESC(), mean)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_INV_STD_DESC(), invStd)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_SCALE_DESC(), eqScale)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_BIAS_DESC(), eqBias)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_ACCUM_COUNT_DESC(), countNumber)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_EPSILON_DESC(), epsilonNumber);
        GraphTensor nextMean = null;
        GraphTensor nextVariance = null;
        if (running != null) {
            op.sized("running mean", running.mean(), dims);
            op.sized("running variance", running.variance(), dims);
            if (!(running.momentum() >= 0 && running.momentum() <= 1)) {
                throw op.refusal("momentum", "0 to 1", running.momentum());
            }
            GraphTensor factor = op.scalar(".momentum", dims.length, running.momentum());
            nextMean = result(op, ".runningMean", dims);
            nextVariance = result(op, ".runningVariance", dims);
            op.reads(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_PREV_RUNNING_MEAN_DESC(), running.mean())
                    .reads(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_PREV_RUNNING_VAR_DESC(), running.variance())
                    .writes(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_MEAN_DESC(), nextMean)
                    .writes(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_VAR_DESC(), nextVariance)
                    .reads(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_EXP_AVERATE_FACTOR_DESC(), factor);
        }
        op.add();
        return new Finalized(mean, invStd, eqScale, eqBias, nextMean, nextVariance);
    }

    /**
     * Adds the gradients of batch norm's scale and bias.
     *
     * @param mean of each channel, as {@link #finalized} gave it
     * @param invStd as {@link #finalized} gave it
     * @throws IllegalArgumentException when shapes do not fit
     */
    public WeightGradients weightGradients(
            String operation, GraphTensor dy, GraphTensor x, GraphTensor mean, GraphTensor invStd, GraphTensor scale) {
        OperationBuilder op = new OperationBuilder(
                graph, "bnBackwardWeights", operation, Cudnn.CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR());
        long[] dims = channels(op, x);
        op.sized("dy", dy, x.dims());
        op.sized("mean", mean, dims);
        op.sized("invStd", invStd, dims);
        op.sized("scale", scale, dims);
        GraphTensor dscale = result(op, ".dscale", dims);
        GraphTensor dbias = result(op, ".dbias", dims);
        GraphTensor eqDyScale = result(op, ".eqDyScale", dims);
        GraphTensor eqXScale = result(op, ".eqXScale", dims);
        GraphTensor eqBias = result(op, ".eqBias", dims);
        op.description.type(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC(), graph.compute());
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC(), dy)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC(), x)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC(), mean)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC(), invStd)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC(), scale)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC(), dscale)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC(), dbias)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC(), eqDyScale)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC(), eqXScale)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS(), eqBias)
                .add();
        return new WeightGradients(dscale, dbias, eqDyScale, eqXScale, eqBias);
    }

    private static GraphTensor result(OperationBuilder op, String part, long... dims) {
        return op.result(part, DataType.FLOAT, dims.clone(), GraphTensor.rowMajor(dims));
    }

    private static long[] channels(OperationBuilder op, GraphTensor x) {
        if (op.own("x", x).rank() < 3) {
            throw op.refusal("x", "[N, C, …] with spatial dimensions", x);
        }
        long[] dims = new long[x.rank()];
        Arrays.fill(dims, 1);
        dims[1] = x.dim(1);
        return dims;
    }
}
