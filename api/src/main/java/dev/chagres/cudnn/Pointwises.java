package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.Arrays;

/**
 * Adds pointwise operations and reductions to graphs.
 *
 * <p>Threading: that of the builder.
 */
final class Pointwises {
    private static final int[] FORWARD_INPUTS = {
        Cudnn.CUDNN_ATTR_OPERATION_POINTWISE_XDESC(),
        Cudnn.CUDNN_ATTR_OPERATION_POINTWISE_BDESC(),
        Cudnn.CUDNN_ATTR_OPERATION_POINTWISE_TDESC()
    };
    private static final int[] BACKWARD_INPUTS = {
        Cudnn.CUDNN_ATTR_OPERATION_POINTWISE_DYDESC(), Cudnn.CUDNN_ATTR_OPERATION_POINTWISE_XDESC()
    };
    private static final String[] FORWARD_NAMES = {"x", "b", "t"};
    private static final String[] BACKWARD_NAMES = {"dy", "x"};

    private Pointwises() {}

    static GraphTensor pointwise(
            GraphBuilder graph, String name, PointwiseMode mode, PointwiseConfig config, GraphTensor... inputs) {
        OperationBuilder op = new OperationBuilder(
                graph, Checks.given("mode", mode).name(), name, Cudnn.CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR());
        Checks.given("config", config);
        Checks.givenAll("inputs", inputs);
        if (inputs.length != mode.inputs()) {
            throw op.refusal("inputs", mode.inputs() + " tensors", Arrays.toString(inputs));
        }
        String[] arguments = mode.isBackward() ? BACKWARD_NAMES : FORWARD_NAMES;
        long[] dims = dims(op, arguments, inputs);
        checkConfig(op, mode, config, dims);
        GraphTensor y = op.result("", type(graph, mode), dims, GraphTensor.ordered(dims, widest(inputs)));
        int[] attributes = mode.isBackward() ? BACKWARD_INPUTS : FORWARD_INPUTS;
        for (int i = 0; i < inputs.length; i++) {
            op.reads(attributes[i], inputs[i]);
        }
        int result = mode.isBackward()
                ? Cudnn.CUDNN_ATTR_OPERATION_POINTWISE_DXDESC()
                : Cudnn.CUDNN_ATTR_OPERATION_POINTWISE_YDESC();
        op.writes(result, y);
        if (config.alpha1() != 1) {
            op.description.single(Cudnn.CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1(), config.alpha1());
        }
        if (config.alpha2() != 1) {
            op.description.single(Cudnn.CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2(), config.alpha2());
        }
        op.detail(Cudnn.CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR(), detail(graph, mode, config))
                .add();
        return y;
    }

    private static GraphTensor widest(GraphTensor... inputs) {
        GraphTensor widest = inputs[0];
        for (GraphTensor input : inputs) {
            widest = input.count() > widest.count() ? input : widest;
        }
        return widest;
    }

    private static DataType type(GraphBuilder graph, PointwiseMode mode) {
        return switch (mode.kind()) {
            case COMPARISON -> DataType.BOOLEAN;
            case INDEX -> DataType.INT32;
            case FORWARD, BACKWARD -> graph.intermediate();
        };
    }

    private static long[] dims(OperationBuilder op, String[] arguments, GraphTensor... inputs) {
        long[] dims = op.own(arguments[0], inputs[0]).dims();
        for (int i = 1; i < inputs.length; i++) {
            op.own(arguments[i], inputs[i]);
            boolean fits = inputs[i].rank() == dims.length;
            for (int d = 0; fits && d < dims.length; d++) {
                fits = dims[d] == inputs[i].dim(d) || dims[d] == 1 || inputs[i].dim(d) == 1;
                dims[d] = Math.max(dims[d], inputs[i].dim(d));
            }
            if (!fits) {
                throw op.refusal(arguments[i], "sizes of " + Arrays.toString(dims) + " or 1", inputs[i]);
            }
        }
        return dims;
    }

    private static void checkConfig(OperationBuilder op, PointwiseMode mode, PointwiseConfig config, long... dims) {
        if (mode == PointwiseMode.GEN_INDEX && config.axis() >= dims.length) {
            throw op.refusal("axis", "one of " + dims.length + " dimensions, from 0", config.axis());
        }
        if (mode.isBackward() && (config.alpha1() != 1 || config.alpha2() != 1)) {
            throw op.refusal("alpha1, alpha2", "1 for a gradient", config.alpha1() + " and " + config.alpha2());
        }
    }

    private static Description detail(GraphBuilder graph, PointwiseMode mode, PointwiseConfig config) {
        Description detail = new Description(Cudnn.CUDNN_BACKEND_POINTWISE_DESCRIPTOR())
                .integer(Cudnn.CUDNN_ATTR_POINTWISE_MODE(), Cudnn.CUDNN_TYPE_POINTWISE_MODE(), mode.code())
                .type(Cudnn.CUDNN_ATTR_POINTWISE_MATH_PREC(), graph.compute());
        return switch (mode) {
            case RELU_FWD, RELU_BWD -> clips(detail, config.clip());
            case ELU_FWD, ELU_BWD -> detail.number(Cudnn.CUDNN_ATTR_POINTWISE_ELU_ALPHA(), config.eluAlpha());
            case SOFTPLUS_FWD, SOFTPLUS_BWD -> detail.number(Cudnn.CUDNN_ATTR_POINTWISE_SOFTPLUS_BETA(), config.beta());
            case SWISH_FWD, SWISH_BWD -> detail.number(Cudnn.CUDNN_ATTR_POINTWISE_SWISH_BETA(), config.beta());
            case GEN_INDEX -> detail.longs(Cudnn.CUDNN_ATTR_POINTWISE_AXIS(), config.axis());
            default -> detail;
        };
    }

    private static Description clips(Description detail, PointwiseConfig.Clip clip) {
        detail.number(Cudnn.CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP(), clip.lower());
        if (clip.upper() != Double.POSITIVE_INFINITY) {
            detail.number(Cudnn.CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP(), clip.upper());
        }
        if (clip.slope() != 0) {
            detail.number(Cudnn.CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE(), clip.slope());
        }
        return detail;
    }

    static GraphTensor reduction(GraphBuilder graph, String name, ReductionMode mode, GraphTensor x, int... axes) {
        OperationBuilder op = reducer(graph, name, mode);
        op.own("x", x);
        long[] dims = x.dims();
        boolean fits = Checks.given("axes", axes).length != 0;
        for (int axis : axes) {
            fits = fits && axis >= 0 && axis < dims.length;
            if (fits) {
                dims[axis] = 1;
            }
        }
        if (!fits) {
            throw op.refusal("axes", "some of the dimensions of " + x, Arrays.toString(axes));
        }
        if (!mode.isOperation()) {
            return composed(graph, name, mode, x, axes);
        }
        return reduced(graph, name, mode, x, dims);
    }

    private static OperationBuilder reducer(GraphBuilder graph, String name, ReductionMode mode) {
        return new OperationBuilder(
                graph,
                "reduction " + Checks.given("mode", mode).name(),
                name,
                Cudnn.CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR());
    }

    /** Adds a reduction to sizes that are 1 or divide those of x: then neighbours are reduced, such as heads that share keys. */
    static GraphTensor reduced(GraphBuilder graph, String name, ReductionMode mode, GraphTensor x, long... dims) {
        OperationBuilder op = reducer(graph, name, mode);
        GraphTensor y = op.result(dims, x);
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_REDUCTION_XDESC(), x)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_REDUCTION_YDESC(), y)
                .detail(
                        Cudnn.CUDNN_ATTR_OPERATION_REDUCTION_DESC(),
                        new Description(Cudnn.CUDNN_BACKEND_REDUCTION_DESCRIPTOR())
                                .integer(
                                        Cudnn.CUDNN_ATTR_REDUCTION_OPERATOR(),
                                        Cudnn.CUDNN_TYPE_REDUCTION_OPERATOR_TYPE(),
                                        mode.code())
                                .type(Cudnn.CUDNN_ATTR_REDUCTION_COMP_TYPE(), graph.compute()))
                .add();
        return y;
    }

    private static GraphTensor composed(
            GraphBuilder graph, String name, ReductionMode mode, GraphTensor x, int... axes) {
        return switch (mode) {
            case AVG -> {
                GraphTensor sum = reduction(graph, name + ".sum", ReductionMode.ADD, x, axes);
                float share = (float) ((double) sum.count() / x.count());
                GraphTensor factor = graph.scalar(name + ".share", x.rank(), share);
                yield graph.pointwise(name, PointwiseMode.MUL, sum, factor);
            }
            case NORM1 -> {
                GraphTensor magnitudes = graph.pointwise(name + ".magnitudes", PointwiseMode.ABS, x);
                yield reduction(graph, name, ReductionMode.ADD, magnitudes, axes);
            }
            case NORM2 -> {
                GraphTensor squares = graph.pointwise(name + ".squares", PointwiseMode.MUL, x, x);
                GraphTensor sum = reduction(graph, name + ".sum", ReductionMode.ADD, squares, axes);
                yield graph.pointwise(name, PointwiseMode.SQRT, sum);
            }
            default -> {
                GraphTensor zero = graph.scalar(name + ".zero", x.rank(), 0);
                GraphTensor one = graph.scalar(name + ".one", x.rank(), 1);
                GraphTensor isZero = graph.pointwise(name + ".isZero", PointwiseMode.CMP_EQ, x, zero);
                GraphTensor factors = graph.pointwise(name + ".factors", PointwiseMode.BINARY_SELECT, one, x, isZero);
                yield reduction(graph, name, ReductionMode.MUL, factors, axes);
            }
        };
    }
}
