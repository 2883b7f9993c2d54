package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
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
        String kind = "genStats";
        long[] dims = channels(kind, operation, "x", x);
        GraphTensor sum = result(kind, operation + ".sum", dims);
        GraphTensor squares = result(kind, operation + ".squares", dims);
        graph.add(new Operation(
                kind,
                operation,
                List.of(x),
                List.of(sum, squares),
                new Description(Cudnn.CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR())
                        .integer(
                                Cudnn.CUDNN_ATTR_OPERATION_GENSTATS_MODE(),
                                Cudnn.CUDNN_TYPE_GENSTATS_MODE(),
                                Cudnn.CUDNN_GENSTATS_SUM_SQSUM())
                        .type(Cudnn.CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC(), graph.compute())
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_GENSTATS_XDESC(), x)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC(), sum)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC(), squares)));
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
        String kind = "bnFinalize";
        GraphTensor sum =
                graph.own(kind, operation, "sums", Checks.given("sums", sums).sum());
        long[] dims = sum.dims();
        same(kind, operation, "squares", sums.squares(), dims);
        same(kind, operation, "scale", scale, dims);
        same(kind, operation, "bias", bias, dims);
        if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
            throw GraphChecks.refusal(kind, operation, "epsilon", "a positive number", epsilon);
        }
        if (count < 1 || count > Integer.MAX_VALUE) {
            throw GraphChecks.refusal(kind, operation, "count", "1 to " + Integer.MAX_VALUE, count);
        }
        GraphTensor epsilonNumber = graph.scalar(operation + ".epsilon", sum.rank(), epsilon);
        GraphTensor countNumber = graph.scalar(operation + ".count", DataType.INT32, sum.rank(), count);
        List<GraphTensor> reads =
                new ArrayList<>(List.of(sum, sums.squares(), scale, bias, countNumber, epsilonNumber));
        List<GraphTensor> writes = new ArrayList<>();
        for (String part : new String[] {".mean", ".invStd", ".eqScale", ".eqBias"}) {
            writes.add(result(kind, operation + part, dims));
        }
        Description description = new Description(Cudnn.CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR())
                .integer(
                        Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_STATS_MODE(),
                        Cudnn.CUDNN_TYPE_BN_FINALIZE_STATS_MODE(),
                        Cudnn.CUDNN_BN_FINALIZE_STATISTICS_TRAINING())
                .type(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_MATH_PREC(), graph.compute())
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_Y_SUM_DESC(), sum)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_Y_SQ_SUM_DESC(), sums.squares())
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_SCALE_DESC(), scale)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_BIAS_DESC(), bias)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_MEAN_DESC(), writes.get(0))
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_INV_STD_DESC(), writes.get(1))
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_SCALE_DESC(), writes.get(2))
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_BIAS_DESC(), writes.get(3))
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_ACCUM_COUNT_DESC(), countNumber)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_EPSILON_DESC(), epsilonNumber);
        if (running != null) {
            running(kind, operation, running, dims, reads, writes, description);
        }
        graph.add(new Operation(kind, operation, reads, writes, description));
        return new Finalized(
                writes.get(0),
                writes.get(1),
                writes.get(2),
                writes.get(3),
                running == null ? null : writes.get(4),
                running == null ? null : writes.get(5));
    }

    private void running(
            String kind,
            String operation,
            Running running,
            long[] dims,
            List<GraphTensor> reads,
            List<GraphTensor> writes,
            Description description) {
        same(kind, operation, "running mean", running.mean(), dims);
        same(kind, operation, "running variance", running.variance(), dims);
        if (!(running.momentum() >= 0 && running.momentum() <= 1)) {
            throw GraphChecks.refusal(kind, operation, "momentum", "0 to 1", running.momentum());
        }
        GraphTensor factor = graph.scalar(operation + ".momentum", dims.length, running.momentum());
        reads.addAll(List.of(running.mean(), running.variance(), factor));
        GraphTensor mean = result(kind, operation + ".runningMean", dims);
        GraphTensor variance = result(kind, operation + ".runningVariance", dims);
        writes.addAll(List.of(mean, variance));
        description
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_PREV_RUNNING_MEAN_DESC(), running.mean())
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_PREV_RUNNING_VAR_DESC(), running.variance())
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_MEAN_DESC(), mean)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_VAR_DESC(), variance)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_FINALIZE_EXP_AVERATE_FACTOR_DESC(), factor);
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
        String kind = "bnBackwardWeights";
        long[] dims = channels(kind, operation, "x", x);
        same(kind, operation, "dy", dy, x.dims());
        same(kind, operation, "mean", mean, dims);
        same(kind, operation, "invStd", invStd, dims);
        same(kind, operation, "scale", scale, dims);
        List<GraphTensor> writes = new ArrayList<>();
        for (String part : new String[] {".dscale", ".dbias", ".eqDyScale", ".eqXScale", ".eqBias"}) {
            writes.add(result(kind, operation + part, dims));
        }
        graph.add(new Operation(
                kind,
                operation,
                List.of(dy, x, mean, invStd, scale),
                writes,
                new Description(Cudnn.CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR())
                        .type(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC(), graph.compute())
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC(), mean)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC(), invStd)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC(), scale)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC(), x)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC(), dy)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC(), writes.get(0))
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC(), writes.get(1))
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC(), writes.get(2))
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC(), writes.get(3))
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS(), writes.get(4))));
        return new WeightGradients(writes.get(0), writes.get(1), writes.get(2), writes.get(3), writes.get(4));
    }

    private GraphTensor result(String kind, String name, long... dims) {
        return graph.result(kind, name, DataType.FLOAT, dims.clone(), GraphTensor.rowMajor(dims));
    }

    private long[] channels(String kind, String operation, String argument, GraphTensor x) {
        if (graph.own(kind, operation, argument, x).rank() < 3) {
            throw GraphChecks.refusal(kind, operation, argument, "[N, C, …] with spatial dimensions", x);
        }
        long[] dims = new long[x.rank()];
        Arrays.fill(dims, 1);
        dims[1] = x.dim(1);
        return dims;
    }

    private void same(String kind, String operation, String argument, GraphTensor tensor, long... dims) {
        if (!graph.own(kind, operation, argument, tensor).hasDims(dims)) {
            throw GraphChecks.refusal(kind, operation, argument, Arrays.toString(dims), tensor);
        }
    }
}
