package dev.chagres.cudnn;

import dev.chagres.DType;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Norms of graphs against double precision; the gradient of x against differences of the forward formula. */
@Tag("L0")
@Tag("L1")
class GraphNormConformance {
    private static final float EPSILON = 1e-5f;
    private static final double STEP = 1e-4;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(NormMode mode, DType dtype, long[] x, long[] scale) {
        @Override
        public String toString() {
            return mode + " " + dtype + " " + List.of(x[0], x[1], x[2], x[3]);
        }

        /** The place of the mean of an element. */
        int group(int i) {
            long[] at = GraphWitness.index(x, i);
            return (int)
                    switch (mode) {
                        case BATCH_NORM -> at[1];
                        case INSTANCE_NORM -> at[0] * x[1] + at[1];
                        default -> at[0];
                    };
        }

        int groups() {
            return (int)
                    switch (mode) {
                        case BATCH_NORM -> x[1];
                        case INSTANCE_NORM -> x[0] * x[1];
                        default -> x[0];
                    };
        }

        int scaleOf(int i) {
            long[] at = GraphWitness.index(x, i);
            for (int d = 0; d < at.length; d++) {
                at[d] = scale[d] == 1 ? 0 : at[d];
            }
            return (int) GraphWitness.offset(at, GraphWitness.rowMajor(scale));
        }

        long[] statistics() {
            return switch (mode) {
                case BATCH_NORM -> new long[] {1, x[1], 1, 1};
                case INSTANCE_NORM -> new long[] {x[0], x[1], 1, 1};
                default -> new long[] {x[0], 1, 1, 1};
            };
        }
    }

    static List<Case> cases() {
        return List.of(
                new Case(NormMode.LAYER_NORM, DType.BFLOAT16, new long[] {16, 128, 1, 1}, new long[] {1, 128, 1, 1}),
                new Case(NormMode.RMS_NORM, DType.BFLOAT16, new long[] {16, 128, 1, 1}, new long[] {1, 128, 1, 1}),
                new Case(NormMode.LAYER_NORM, DType.FLOAT32, new long[] {3, 8, 4, 2}, new long[] {1, 8, 4, 2}),
                new Case(NormMode.RMS_NORM, DType.FLOAT32, new long[] {5, 24, 1, 1}, new long[] {1, 24, 1, 1}),
                new Case(NormMode.INSTANCE_NORM, DType.FLOAT16, new long[] {2, 8, 6, 4}, new long[] {1, 8, 1, 1}),
                new Case(NormMode.BATCH_NORM, DType.FLOAT16, new long[] {4, 8, 4, 4}, new long[] {1, 8, 1, 1}));
    }

    /** Mean and inverse variance of each group. */
    private static double[][] statistics(Case c, double... x) {
        double[] mean = new double[c.groups()];
        double[] inverse = new double[c.groups()];
        double size = (double) x.length / c.groups();
        for (int i = 0; i < x.length; i++) {
            mean[c.group(i)] += c.mode == NormMode.RMS_NORM ? 0 : x[i] / size;
        }
        for (int i = 0; i < x.length; i++) {
            inverse[c.group(i)] += Math.pow(x[i] - mean[c.group(i)], 2) / size;
        }
        for (int g = 0; g < inverse.length; g++) {
            inverse[g] = 1 / Math.sqrt(inverse[g] + EPSILON);
        }
        return new double[][] {mean, inverse};
    }

    private static double[] norm(Case c, double[] x, double[] scale, double[] bias) {
        double[][] statistics = statistics(c, x);
        double[] y = new double[x.length];
        for (int i = 0; i < y.length; i++) {
            double normed = (x[i] - statistics[0][c.group(i)]) * statistics[1][c.group(i)];
            y[i] = scale[c.scaleOf(i)] * normed + bias[c.scaleOf(i)];
        }
        return y;
    }

    /** Channels lie innermost, as cuDNN's engines want it. */
    private static GraphTensor image(GraphWitness graph, String name, DType dtype, long... dims) {
        long[] strides = {dims[1] * dims[2] * dims[3], 1, dims[1] * dims[3], dims[1]};
        return graph.input(
                graph.builder.tensor(name, dtype, dims, strides),
                open.normal(dtype, (int) GraphWitness.count(dims), 1));
    }

    @ParameterizedTest
    @MethodSource("cases")
    void training(Case c) {
        GraphWitness graph = new GraphWitness(open, c + " training");
        GraphTensor x = image(graph, "x", c.dtype, c.x);
        GraphTensor scale = image(graph, "scale", DType.FLOAT32, c.scale);
        GraphTensor bias = image(graph, "bias", DType.FLOAT32, c.scale);
        NormTraining norm = graph.builder.normTraining("y", c.mode, x, scale, bias, EPSILON);
        double[][] statistics = statistics(c, graph.of(x));
        graph.builder.output(
                graph.put(norm.y(), norm(c, graph.of(x), graph.of(scale), graph.of(bias))), DataType.of(c.dtype));
        graph.builder.output(graph.put(norm.invVariance(), statistics[1]));
        GraphTensor mean = norm.mean();
        if (mean != null) {
            graph.builder.output(graph.put(mean, statistics[0]));
        }
        graph.check(1, Tolerances.rounded(c.dtype));
    }

    @ParameterizedTest
    @MethodSource("cases")
    void inference(Case c) {
        if (c.mode != NormMode.LAYER_NORM && c.mode != NormMode.RMS_NORM) {
            return;
        }
        GraphWitness graph = new GraphWitness(open, c + " inference");
        GraphTensor x = image(graph, "x", c.dtype, c.x);
        GraphTensor scale = image(graph, "scale", DType.FLOAT32, c.scale);
        GraphTensor y = graph.builder.normInference("y", c.mode, x, scale, null, EPSILON);
        double[] none = new double[(int) scale.count()];
        graph.builder.output(graph.put(y, norm(c, graph.of(x), graph.of(scale), none)), DataType.of(c.dtype));
        graph.check(Tolerances.rounded(c.dtype));
    }

    @ParameterizedTest
    @MethodSource("cases")
    void backward(Case c) {
        GraphWitness graph = new GraphWitness(open, c + " backward");
        GraphTensor dy = image(graph, "dy", c.dtype, c.x);
        GraphTensor x = image(graph, "x", c.dtype, c.x);
        GraphTensor scale = image(graph, "scale", DType.FLOAT32, c.scale);
        double[][] statistics = statistics(c, graph.of(x));
        GraphTensor inverse = graph.input("invVariance", DType.FLOAT32, floats(statistics[1]), c.statistics());
        GraphTensor mean = c.mode == NormMode.RMS_NORM
                ? null
                : graph.input("mean", DType.FLOAT32, floats(statistics[0]), c.statistics());
        NormGradients gradients =
                graph.builder.normBackward("dx", c.mode, dy, x, new NormTraining(x, mean, inverse), scale);
        double[] from = graph.of(x).clone();
        double[] gradient = graph.of(dy);
        double[] dx = new double[from.length];
        double[] dscale = new double[(int) scale.count()];
        double[] dbias = new double[(int) scale.count()];
        double[] none = new double[dscale.length];
        for (int i = 0; i < dx.length; i++) {
            double at = from[i];
            from[i] = at + STEP;
            double[] above = norm(c, from, graph.of(scale), none);
            from[i] = at - STEP;
            double[] below = norm(c, from, graph.of(scale), none);
            from[i] = at;
            for (int j = 0; j < dx.length; j++) {
                dx[i] += gradient[j] * (above[j] - below[j]) / (2 * STEP);
            }
            double normed = (at - statistics[0][c.group(i)]) * statistics[1][c.group(i)];
            dscale[c.scaleOf(i)] += gradient[i] * normed;
            dbias[c.scaleOf(i)] += gradient[i];
        }
        graph.builder.output(graph.put(gradients.dx(), dx), DataType.of(c.dtype));
        graph.builder.output(graph.put(gradients.dscale(), dscale));
        GraphTensor bias = gradients.dbias();
        if (bias != null) {
            graph.builder.output(graph.put(bias, dbias));
        }
        graph.check(1, Tolerances.rounded(c.dtype));
    }

    private static double[] floats(double... values) {
        double[] floats = new double[values.length];
        for (int i = 0; i < values.length; i++) {
            floats[i] = (float) values[i];
        }
        return floats;
    }
}
