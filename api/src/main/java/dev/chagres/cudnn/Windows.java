package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * Adds convolutions and resampling to graphs.
 *
 * <p>Threading: that of the builder.
 */
final class Windows {
    private static final int FIVE_DIMENSIONS = 5;

    private static final int[] FORWARD = {
        Cudnn.CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC()
    };
    private static final int[] BACKWARD_DATA = {
        Cudnn.CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC()
    };
    private static final int[] BACKWARD_FILTER = {
        Cudnn.CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA(),
        Cudnn.CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC()
    };

    private Windows() {}

    static GraphTensor forward(
            GraphBuilder graph, String name, GraphTensor x, GraphTensor w, ConvolutionConfig config) {
        OperationBuilder op = new OperationBuilder(graph, "convolution", name, FORWARD[0]);
        op.own("x", x);
        op.own("w", w);
        long[] dims = resultDims(op, config, x.dims(), w.dims());
        GraphTensor y = op.result(dims, x);
        add(graph, op, FORWARD, config, y, x, w, y);
        return y;
    }

    static GraphTensor backwardData(
            GraphBuilder graph, String name, GraphTensor dy, GraphTensor w, ConvolutionConfig config, long... dims) {
        OperationBuilder op = new OperationBuilder(graph, "convolutionBackwardData", name, BACKWARD_DATA[0]);
        op.own("dy", dy);
        op.own("w", w);
        op.checkDims(dims);
        op.sized("dy", dy, resultDims(op, config, dims, w.dims()));
        GraphTensor dx = op.result(dims.clone(), dy);
        add(graph, op, BACKWARD_DATA, config, dx, dx, w, dy);
        return dx;
    }

    static GraphTensor backwardFilter(
            GraphBuilder graph, String name, GraphTensor dy, GraphTensor x, ConvolutionConfig config, long... dims) {
        OperationBuilder op = new OperationBuilder(graph, "convolutionBackwardFilter", name, BACKWARD_FILTER[0]);
        op.own("dy", dy);
        op.own("x", x);
        op.checkDims(dims);
        op.sized("dy", dy, resultDims(op, config, x.dims(), dims));
        GraphTensor dw = op.result(dims.clone(), x);
        add(graph, op, BACKWARD_FILTER, config, dw, x, dw, dy);
        return dw;
    }

    /** Returns the sizes of y[N, K, …] for x[N, C, …] and w[K, C / groups, …]. */
    private static long[] resultDims(OperationBuilder op, ConvolutionConfig config, long[] x, long[] w) {
        int spatial = Checks.given("config", config).strides().size();
        if (x.length != spatial + 2) {
            throw op.refusal("x", "[N, C, …] with " + spatial + " spatial dimensions", Arrays.toString(x));
        }
        boolean fits = w.length == x.length && x[1] % w[1] == 0 && w[0] % (x[1] / w[1]) == 0;
        long[] dims = new long[x.length];
        for (int i = 0; fits && i < spatial; i++) {
            dims[i + 2] = config.resultSize(i, x[i + 2], w[i + 2]);
            fits = dims[i + 2] > 0;
        }
        if (!fits) {
            throw op.refusal(
                    "w",
                    "[K, C / groups, …] that fits into " + Arrays.toString(x) + " with its padding",
                    Arrays.toString(w));
        }
        dims[0] = x[0];
        dims[1] = w[0];
        return dims;
    }

    /** {@code names}: of the descriptor, x, w, y, their factors and the detail; {@code result}: that of {@code all}, which are x, w, y. */
    private static void add(
            GraphBuilder graph,
            OperationBuilder op,
            int[] names,
            ConvolutionConfig config,
            GraphTensor result,
            GraphTensor... all) {
        for (int i = 0; i < all.length; i++) {
            if (all[i] == result) {
                op.writes(names[1 + i], result);
            } else {
                op.reads(names[1 + i], all[i]);
            }
        }
        op.description.single(names[4], 1).single(names[5], 0);
        Description detail = new Description(Cudnn.CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR())
                .type(Cudnn.CUDNN_ATTR_CONVOLUTION_COMP_TYPE(), graph.compute())
                .integer(
                        Cudnn.CUDNN_ATTR_CONVOLUTION_CONV_MODE(),
                        Cudnn.CUDNN_TYPE_CONVOLUTION_MODE(),
                        config.mode() == ConvolutionConfig.Mode.CONVOLUTION
                                ? Cudnn.CUDNN_CONVOLUTION()
                                : Cudnn.CUDNN_CROSS_CORRELATION())
                .longs(
                        Cudnn.CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS(),
                        config.strides().size())
                .longs(Cudnn.CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS(), ConvolutionConfig.array(config.prePadding()))
                .longs(Cudnn.CUDNN_ATTR_CONVOLUTION_POST_PADDINGS(), ConvolutionConfig.array(config.postPadding()))
                .longs(Cudnn.CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES(), ConvolutionConfig.array(config.strides()))
                .longs(Cudnn.CUDNN_ATTR_CONVOLUTION_DILATIONS(), ConvolutionConfig.array(config.dilations()));
        op.detail(names[6], detail)
                .addRefusedOnGpu(
                        names != FORWARD && result.dims().length == FIVE_DIMENSIONS,
                        "gives other gradients of three-dimensional convolutions than double precision");
    }

    static GraphTensor resample(GraphBuilder graph, String name, GraphTensor x, ResampleConfig config) {
        OperationBuilder op = new OperationBuilder(
                graph,
                "resample " + Checks.given("config", config).mode(),
                name,
                Cudnn.CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR());
        op.own("x", x);
        long[] dims = windowDims(op, x.dims(), config);
        GraphTensor y = op.result(dims, x);
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC(), x)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC(), y)
                .detail(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC(), detail(graph, config))
                .description
                .number(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_ALPHA(), 1)
                .number(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_BETA(), 0);
        op.add();
        return y;
    }

    static GraphTensor resampleBackward(
            GraphBuilder graph,
            String name,
            GraphTensor dy,
            @Nullable GraphTensor x,
            @Nullable GraphTensor y,
            ResampleConfig config,
            long... dims) {
        OperationBuilder op = new OperationBuilder(
                graph,
                "resampleBackward " + Checks.given("config", config).mode(),
                name,
                Cudnn.CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR());
        op.own("dy", dy);
        op.checkDims(dims);
        op.sized("dy", dy, windowDims(op, dims, config));
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DYDESC(), dy);
        if (x != null && y != null) {
            op.reads(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_XDESC(), op.own("x", x))
                    .reads(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_YDESC(), op.own("y", y));
        }
        GraphTensor dx = op.result(dims.clone(), dy);
        op.writes(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC(), dx)
                .description
                .number(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_ALPHA(), 1)
                .number(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_BETA(), 0);
        op.detail(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC(), detail(graph, config))
                .addRefusedOnGpu(
                        config.mode() == ResampleMode.MAXPOOL,
                        "crashes when it plans a gradient of MAXPOOL that has no tensor of indices");
        return dx;
    }

    private static long[] windowDims(OperationBuilder op, long[] x, ResampleConfig config) {
        int spatial = config.window().size();
        boolean fits = x.length == spatial + 2;
        long[] dims = x.clone();
        for (int i = 0; fits && i < spatial; i++) {
            dims[i + 2] = config.resultSize(i, x[i + 2]);
            fits = dims[i + 2] > 0;
        }
        if (!fits) {
            throw op.refusal(
                    "x",
                    "[N, C, …] with " + spatial + " spatial dimensions of at least the window " + config.window(),
                    Arrays.toString(x));
        }
        return dims;
    }

    private static Description detail(GraphBuilder graph, ResampleConfig config) {
        boolean largest = config.mode() == ResampleMode.MAXPOOL;
        return new Description(Cudnn.CUDNN_BACKEND_RESAMPLE_DESCRIPTOR())
                .integer(
                        Cudnn.CUDNN_ATTR_RESAMPLE_MODE(),
                        Cudnn.CUDNN_TYPE_RESAMPLE_MODE(),
                        config.mode().code())
                .type(Cudnn.CUDNN_ATTR_RESAMPLE_COMP_TYPE(), graph.compute())
                .integer(
                        Cudnn.CUDNN_ATTR_RESAMPLE_NAN_PROPAGATION(),
                        Cudnn.CUDNN_TYPE_NAN_PROPOGATION(),
                        Cudnn.CUDNN_PROPAGATE_NAN())
                .integer(
                        Cudnn.CUDNN_ATTR_RESAMPLE_PADDING_MODE(),
                        Cudnn.CUDNN_TYPE_PADDING_MODE(),
                        largest ? Cudnn.CUDNN_NEG_INF_PAD() : Cudnn.CUDNN_ZERO_PAD())
                .longs(Cudnn.CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS(), config.window().size())
                .longs(Cudnn.CUDNN_ATTR_RESAMPLE_WINDOW_DIMS(), ConvolutionConfig.array(config.window()))
                .longs(Cudnn.CUDNN_ATTR_RESAMPLE_PRE_PADDINGS(), ConvolutionConfig.array(config.prePadding()))
                .longs(Cudnn.CUDNN_ATTR_RESAMPLE_POST_PADDINGS(), ConvolutionConfig.array(config.postPadding()))
                .longs(Cudnn.CUDNN_ATTR_RESAMPLE_STRIDES(), ConvolutionConfig.array(config.strides()));
    }
}
