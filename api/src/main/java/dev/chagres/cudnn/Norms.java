package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Adds norms to graphs.
 *
 * <p>Threading: that of the builder.
 */
final class Norms {
    private Norms() {}

    static NormTraining training(
            GraphBuilder graph,
            String name,
            NormMode mode,
            GraphTensor x,
            GraphTensor scale,
            @Nullable GraphTensor bias,
            float epsilon) {
        String kind = Checks.given("mode", mode) + " training";
        check(graph, kind, name, mode, x, scale, bias);
        checkEpsilon(kind, name, epsilon);
        long[] dims = statistics(mode, x, scale);
        GraphTensor y = result(graph, kind, name, x.dims(), x);
        GraphTensor mean = mode == NormMode.RMS_NORM ? null : result(graph, kind, name + ".mean", dims, x);
        GraphTensor inverse = result(graph, kind, name + ".invVariance", dims, x);
        Description description = forward(mode, Cudnn.CUDNN_NORM_FWD_TRAINING(), x, scale, y);
        List<GraphTensor> reads = new ArrayList<>(List.of(x, scale));
        List<GraphTensor> writes = new ArrayList<>(List.of(y));
        if (bias != null) {
            description.tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC(), bias);
            reads.add(bias);
        }
        addEpsilon(graph, name, description, reads, x, epsilon);
        if (mean != null) {
            description.tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC(), mean);
            writes.add(mean);
        }
        description.tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC(), inverse);
        writes.add(inverse);
        graph.add(new Operation(kind, name, reads, writes, description));
        return new NormTraining(y, mean, inverse);
    }

    static GraphTensor inference(
            GraphBuilder graph,
            String name,
            NormMode mode,
            GraphTensor x,
            GraphTensor scale,
            @Nullable GraphTensor bias,
            float epsilon) {
        String kind = Checks.given("mode", mode) + " inference";
        check(graph, kind, name, mode, x, scale, bias);
        checkEpsilon(kind, name, epsilon);
        if (mode != NormMode.LAYER_NORM && mode != NormMode.RMS_NORM) {
            throw GraphChecks.refusal(
                    kind, name, "mode", "LAYER_NORM or RMS_NORM, the others read mean and variance", mode);
        }
        GraphTensor y = result(graph, kind, name, x.dims(), x);
        Description description = forward(mode, Cudnn.CUDNN_NORM_FWD_INFERENCE(), x, scale, y);
        List<GraphTensor> reads = new ArrayList<>(List.of(x, scale));
        if (bias != null) {
            description.tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC(), bias);
            reads.add(bias);
        }
        addEpsilon(graph, name, description, reads, x, epsilon);
        graph.add(new Operation(kind, name, reads, List.of(y), description));
        return y;
    }

    static NormGradients backward(
            GraphBuilder graph,
            String name,
            NormMode mode,
            GraphTensor dy,
            GraphTensor x,
            NormTraining saved,
            GraphTensor scale) {
        String kind = Checks.given("mode", mode) + " backward";
        check(graph, kind, name, mode, x, scale, null);
        GraphTensor mean = Checks.given("saved", saved).mean();
        if (!graph.own(kind, name, "dy", dy).hasDims(x.dims())) {
            throw GraphChecks.refusal(kind, name, "dy", Arrays.toString(x.dims()), dy);
        }
        long[] dims = statistics(mode, x, scale);
        checkStatistics(graph, kind, name, "invVariance", saved.invVariance(), dims);
        if ((mean == null) != (mode == NormMode.RMS_NORM)) {
            throw GraphChecks.refusal(
                    kind, name, "mean", mode == NormMode.RMS_NORM ? "none" : Arrays.toString(dims), mean);
        }
        Description description = new Description(Cudnn.CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR())
                .integer(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_MODE(), Cudnn.CUDNN_TYPE_NORM_MODE(), mode.code())
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_XDESC(), x)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC(), dy)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC(), scale)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC(), saved.invVariance());
        List<GraphTensor> reads = new ArrayList<>(List.of(dy, x, scale, saved.invVariance()));
        if (mean != null) {
            checkStatistics(graph, kind, name, "mean", mean, dims);
            description.tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC(), mean);
            reads.add(mean);
        }
        GraphTensor dx = result(graph, kind, name, x.dims(), x);
        GraphTensor dscale = result(graph, kind, name + ".dscale", scale.dims(), scale);
        GraphTensor dbias = mean == null ? null : result(graph, kind, name + ".dbias", scale.dims(), scale);
        description
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC(), dx)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC(), dscale);
        List<GraphTensor> writes = new ArrayList<>(List.of(dx, dscale));
        if (dbias != null) {
            description.tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC(), dbias);
            writes.add(dbias);
        }
        Operation operation = new Operation(kind, name, reads, writes, description);
        graph.add(
                mode == NormMode.INSTANCE_NORM
                        ? operation.refusedOnGpu("gives another gradient of the scale of INSTANCE_NORM from run to run")
                        : operation);
        return new NormGradients(dx, dscale, dbias);
    }

    private static GraphTensor result(GraphBuilder graph, String kind, String name, long[] dims, GraphTensor model) {
        return graph.result(kind, name, graph.intermediate(), dims, GraphTensor.ordered(dims, model));
    }

    private static Description forward(NormMode mode, int phase, GraphTensor x, GraphTensor scale, GraphTensor y) {
        return new Description(Cudnn.CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR())
                .integer(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_MODE(), Cudnn.CUDNN_TYPE_NORM_MODE(), mode.code())
                .integer(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_PHASE(), Cudnn.CUDNN_TYPE_NORM_FWD_PHASE(), phase)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_XDESC(), x)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC(), scale)
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_YDESC(), y);
    }

    private static void addEpsilon(
            GraphBuilder graph,
            String name,
            Description description,
            List<GraphTensor> reads,
            GraphTensor x,
            float epsilon) {
        GraphTensor number = graph.scalar(name + ".epsilon", x.rank(), epsilon);
        description.tensor(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC(), number);
        reads.add(number);
    }

    private static void check(
            GraphBuilder graph,
            String kind,
            String name,
            NormMode mode,
            GraphTensor x,
            GraphTensor scale,
            @Nullable GraphTensor bias) {
        boolean spatial = mode == NormMode.INSTANCE_NORM || mode == NormMode.BATCH_NORM;
        if (graph.own(kind, name, "x", x).rank() < (spatial ? 3 : 2)) {
            throw GraphChecks.refusal(kind, name, "x", spatial ? "[N, C, …] with spatial dimensions" : "[N, …]", x);
        }
        boolean fits = graph.own(kind, name, "scale", scale).rank() == x.rank();
        for (int i = 0; fits && i < x.rank(); i++) {
            boolean wanted = spatial ? i == 1 : i != 0;
            fits = scale.dim(i) == (wanted ? x.dim(i) : 1) || (!spatial && scale.dim(i) == 1);
        }
        if (!fits) {
            throw GraphChecks.refusal(
                    kind,
                    name,
                    "scale",
                    spatial ? "[1, C, 1, …] with the channels of " + x : "[1, …] with sizes of " + x + " or 1",
                    scale);
        }
        if (bias != null && !graph.own(kind, name, "bias", bias).hasDims(scale.dims())) {
            throw GraphChecks.refusal(kind, name, "bias", Arrays.toString(scale.dims()), bias);
        }
    }

    private static void checkEpsilon(String kind, String name, float epsilon) {
        if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
            throw GraphChecks.refusal(kind, name, "epsilon", "a positive number", epsilon);
        }
    }

    private static void checkStatistics(
            GraphBuilder graph, String kind, String name, String argument, GraphTensor given, long... dims) {
        if (!graph.own(kind, name, argument, given).hasDims(dims)) {
            throw GraphChecks.refusal(kind, name, argument, Arrays.toString(dims), given);
        }
    }

    /** Returns the sizes of means: 1 where they are taken over. */
    private static long[] statistics(NormMode mode, GraphTensor x, GraphTensor scale) {
        long[] dims = x.dims();
        for (int i = 0; i < dims.length; i++) {
            boolean over = switch (mode) {
                case INSTANCE_NORM -> i >= 2;
                case BATCH_NORM -> i != 1;
                case LAYER_NORM, RMS_NORM -> scale.dim(i) != 1;
            };
            dims[i] = over ? 1 : dims[i];
        }
        return dims;
    }
}
