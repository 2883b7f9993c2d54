package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.Arrays;
import java.util.List;
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
        String kind = "convolution";
        graph.own(kind, name, "x", x);
        graph.own(kind, name, "w", w);
        long[] dims = resultDims(kind, name, config, x.dims(), w.dims());
        GraphTensor y = graph.result(kind, name, graph.intermediate(), dims, GraphTensor.ordered(dims, x));
        add(graph, kind, name, FORWARD, config, List.of(x, w, y), y);
        return y;
    }

    static GraphTensor backwardData(
            GraphBuilder graph, String name, GraphTensor dy, GraphTensor w, ConvolutionConfig config, long... dims) {
        String kind = "convolutionBackwardData";
        graph.own(kind, name, "dy", dy);
        graph.own(kind, name, "w", w);
        GraphChecks.checkDims(kind, name, dims);
        checkResult(kind, name, dy, resultDims(kind, name, config, dims, w.dims()));
        GraphTensor dx = graph.result(kind, name, graph.intermediate(), dims.clone(), GraphTensor.ordered(dims, dy));
        add(graph, kind, name, BACKWARD_DATA, config, List.of(dx, w, dy), dx);
        return dx;
    }

    static GraphTensor backwardFilter(
            GraphBuilder graph, String name, GraphTensor dy, GraphTensor x, ConvolutionConfig config, long... dims) {
        String kind = "convolutionBackwardFilter";
        graph.own(kind, name, "dy", dy);
        graph.own(kind, name, "x", x);
        GraphChecks.checkDims(kind, name, dims);
        checkResult(kind, name, dy, resultDims(kind, name, config, x.dims(), dims));
        GraphTensor dw = graph.result(kind, name, graph.intermediate(), dims.clone(), GraphTensor.ordered(dims, x));
        add(graph, kind, name, BACKWARD_FILTER, config, List.of(x, dw, dy), dw);
        return dw;
    }

    private static void checkResult(String kind, String name, GraphTensor dy, long... dims) {
        if (!dy.hasDims(dims)) {
            throw GraphChecks.refusal(kind, name, "dy", Arrays.toString(dims), dy);
        }
    }

    /** Returns the sizes of y[N, K, …] for x[N, C, …] and w[K, C / groups, …]. */
    private static long[] resultDims(String kind, String name, ConvolutionConfig config, long[] x, long[] w) {
        int spatial = Checks.given("config", config).strides().size();
        if (x.length != spatial + 2) {
            throw GraphChecks.refusal(
                    kind, name, "x", "[N, C, …] with " + spatial + " spatial dimensions", Arrays.toString(x));
        }
        boolean fits = w.length == x.length && x[1] % w[1] == 0 && w[0] % (x[1] / w[1]) == 0;
        long[] dims = new long[x.length];
        for (int i = 0; fits && i < spatial; i++) {
            dims[i + 2] = config.resultSize(i, x[i + 2], w[i + 2]);
            fits = dims[i + 2] > 0;
        }
        if (!fits) {
            throw GraphChecks.refusal(
                    kind,
                    name,
                    "w",
                    "[K, C / groups, …] that fits into " + Arrays.toString(x) + " with its padding",
                    Arrays.toString(w));
        }
        dims[0] = x[0];
        dims[1] = w[0];
        return dims;
    }

    /** {@code names} and {@code all}: those of x, w, y. */
    private static void add(
            GraphBuilder graph,
            String kind,
            String name,
            int[] names,
            ConvolutionConfig config,
            List<GraphTensor> all,
            GraphTensor result) {
        Description description = new Description(names[0]);
        for (int i = 0; i < all.size(); i++) {
            description.tensor(names[1 + i], all.get(i));
        }
        description.single(names[4], 1).single(names[5], 0);
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
        List<GraphTensor> reads =
                all.stream().filter(tensor -> tensor != result).toList();
        Operation operation = new Operation(kind, name, reads, List.of(result), description, detail, names[6]);
        boolean wrong = names != FORWARD && result.dims().length == FIVE_DIMENSIONS;
        graph.add(
                wrong
                        ? operation.refusedOnGpu(
                                "gives other gradients of three-dimensional convolutions than double precision")
                        : operation);
    }

    static GraphTensor resample(GraphBuilder graph, String name, GraphTensor x, ResampleConfig config) {
        String kind = "resample " + Checks.given("config", config).mode();
        graph.own(kind, name, "x", x);
        long[] dims = windowDims(kind, name, x.dims(), config);
        GraphTensor y = graph.result(kind, name, graph.intermediate(), dims, GraphTensor.ordered(dims, x));
        graph.add(new Operation(
                kind,
                name,
                List.of(x),
                List.of(y),
                new Description(Cudnn.CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR())
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC(), x)
                        .tensor(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC(), y)
                        .number(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_ALPHA(), 1)
                        .number(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_BETA(), 0),
                detail(graph, config),
                Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC()));
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
        String kind = "resampleBackward " + Checks.given("config", config).mode();
        graph.own(kind, name, "dy", dy);
        GraphChecks.checkDims(kind, name, dims);
        checkResult(kind, name, dy, windowDims(kind, name, dims, config));
        Description description = new Description(Cudnn.CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR())
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DYDESC(), dy);
        List<GraphTensor> reads = List.of(dy);
        if (x != null && y != null) {
            graph.own(kind, name, "x", x);
            graph.own(kind, name, "y", y);
            description
                    .tensor(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_XDESC(), x)
                    .tensor(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_YDESC(), y);
            reads = List.of(dy, x, y);
        }
        GraphTensor dx = graph.result(kind, name, graph.intermediate(), dims.clone(), GraphTensor.ordered(dims, dy));
        description
                .tensor(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC(), dx)
                .number(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_ALPHA(), 1)
                .number(Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_BETA(), 0);
        Operation operation = new Operation(
                kind,
                name,
                reads,
                List.of(dx),
                description,
                detail(graph, config),
                Cudnn.CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC());
        graph.add(
                config.mode() == ResampleMode.MAXPOOL
                        ? operation.refusedOnGpu(
                                "crashes when it plans a gradient of MAXPOOL that has no tensor of indices")
                        : operation);
        return dx;
    }

    private static long[] windowDims(String kind, String name, long[] x, ResampleConfig config) {
        int spatial = config.window().size();
        boolean fits = x.length == spatial + 2;
        long[] dims = x.clone();
        for (int i = 0; fits && i < spatial; i++) {
            dims[i + 2] = config.resultSize(i, x[i + 2]);
            fits = dims[i + 2] > 0;
        }
        if (!fits) {
            throw GraphChecks.refusal(
                    kind,
                    name,
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
