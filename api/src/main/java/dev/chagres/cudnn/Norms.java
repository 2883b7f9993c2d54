package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.Arrays;
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
        OperationBuilder op = forward(graph, name, mode, " training");
        check(op, mode, x, scale, bias);
        op.checkEpsilon(epsilon);
        long[] dims = statistics(mode, x, scale);
        GraphTensor y = op.result(x.dims(), x);
        GraphTensor mean = mode == NormMode.RMS_NORM ? null : op.result(".mean", dims, x);
        GraphTensor inverse = op.result(".invVariance", dims, x);
        describe(op, mode, Cudnn.CUDNN_NORM_FWD_TRAINING(), x, scale, y, bias, epsilon)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC(), mean)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC(), inverse)
                .add();
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
        OperationBuilder op = forward(graph, name, mode, " inference");
        check(op, mode, x, scale, bias);
        op.checkEpsilon(epsilon);
        if (mode != NormMode.LAYER_NORM && mode != NormMode.RMS_NORM) {
            throw op.refusal("mode", "LAYER_NORM or RMS_NORM, the others read mean and variance", mode);
        }
        GraphTensor y = op.result(x.dims(), x);
        describe(op, mode, Cudnn.CUDNN_NORM_FWD_INFERENCE(), x, scale, y, bias, epsilon)
                .add();
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
        OperationBuilder op = new OperationBuilder(
                graph,
                Checks.given("mode", mode) + " backward",
                name,
                Cudnn.CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR());
        check(op, mode, x, scale, null);
        GraphTensor mean = Checks.given("saved", saved).mean();
        op.sized("dy", dy, x.dims());
        long[] dims = statistics(mode, x, scale);
        op.sized("invVariance", saved.invVariance(), dims);
        if ((mean == null) != (mode == NormMode.RMS_NORM)) {
            throw op.refusal("mean", mode == NormMode.RMS_NORM ? "none" : Arrays.toString(dims), mean);
        }
        if (mean != null) {
            op.sized("mean", mean, dims);
        }
        GraphTensor dx = op.result(x.dims(), x);
        GraphTensor dscale = op.result(".dscale", scale.dims(), scale);
        GraphTensor dbias = mean == null ? null : op.result(".dbias", scale.dims(), scale);
        op.description.integer(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_MODE(), Cudnn.CUDNN_TYPE_NORM_MODE(), mode.code());
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC(), dy)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_XDESC(), x)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC(), scale)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC(), saved.invVariance())
                .reads(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC(), mean)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC(), dx)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC(), dscale)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC(), dbias)
                .addRefusedOnGpu(
                        mode == NormMode.INSTANCE_NORM,
                        "gives another gradient of the scale of INSTANCE_NORM from run to run");
        return new NormGradients(dx, dscale, dbias);
    }

    private static OperationBuilder forward(GraphBuilder graph, String name, NormMode mode, String phase) {
        return new OperationBuilder(
                graph,
                Checks.given("mode", mode) + phase,
                name,
                Cudnn.CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR());
    }

    private static OperationBuilder describe(
            OperationBuilder op,
            NormMode mode,
            int phase,
            GraphTensor x,
            GraphTensor scale,
            GraphTensor y,
            @Nullable GraphTensor bias,
            float epsilon) {
        op.description
                .integer(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_MODE(), Cudnn.CUDNN_TYPE_NORM_MODE(), mode.code())
                .integer(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_PHASE(), Cudnn.CUDNN_TYPE_NORM_FWD_PHASE(), phase);
        return op.reads(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_XDESC(), x)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC(), scale)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_YDESC(), y)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC(), bias)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC(), op.scalar(".epsilon", x.rank(), epsilon));
    }

    private static void check(
            OperationBuilder op, NormMode mode, GraphTensor x, GraphTensor scale, @Nullable GraphTensor bias) {
        boolean spatial = mode == NormMode.INSTANCE_NORM || mode == NormMode.BATCH_NORM;
        if (op.own("x", x).rank() < (spatial ? 3 : 2)) {
            throw op.refusal("x", spatial ? "[N, C, …] with spatial dimensions" : "[N, …]", x);
        }
        boolean fits = op.own("scale", scale).rank() == x.rank();
        for (int i = 0; fits && i < x.rank(); i++) {
            boolean wanted = spatial ? i == 1 : i != 0;
            fits = scale.dim(i) == (wanted ? x.dim(i) : 1) || (!spatial && scale.dim(i) == 1);
        }
        if (!fits) {
            throw op.refusal(
                    "scale",
                    spatial ? "[1, C, 1, …] with the channels of " + x : "[1, …] with sizes of " + x + " or 1",
                    scale);
        }
        if (bias != null) {
            op.sized("bias", bias, scale.dims());
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
