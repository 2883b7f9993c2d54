package dev.chagres.cudnn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Products, reductions, layouts, convolutions, windows and compositions of them, against double precision. */
@Tag("L0")
@Tag("L1")
class OperationsConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** One operation on the reference, and what a GPU's types and order of sums allow. */
    private static final Tolerance SINGLE = Tolerances.product(DType.FLOAT32);

    private static GraphWitness graph(String name) {
        return new GraphWitness(open, name);
    }

    @Test
    void productsWithBroadcastBatchesAndStrides() {
        GraphWitness graph = graph("batches");
        GraphTensor a = graph.normal("a", DType.BFLOAT16, 4, 1, 16, 32);
        GraphTensor b = graph.input(
                graph.builder.tensor("b", DType.BFLOAT16, new long[] {4, 3, 32, 8}, new long[] {768, 256, 1, 32}),
                open.normal(DType.BFLOAT16, 4 * 3 * 32 * 8, 1));
        graph.builder.output(graph.matmul("c", a, b));
        graph.check(SINGLE);
    }

    @Test
    void outputsInTheMiddleOfAGraph() {
        GraphWitness graph = graph("middle");
        GraphTensor c = graph.matmul(
                "c", graph.normal("a", DType.FLOAT16, 1, 16, 64), graph.normal("b", DType.FLOAT16, 1, 64, 32));
        graph.builder.output(c, DataType.FLOAT);
        GraphTensor y = graph.unary("y", PointwiseMode.SIGMOID_FWD, c, x -> 1 / (1 + Math.exp(-x)));
        graph.builder.output(y, DataType.HALF);
        GraphTensor sum = graph.reduction("sum", ReductionMode.ADD, y, 1);
        graph.builder.output(sum);
        graph.rounded(y, DType.FLOAT16);
        // The sum reads y as it is stored.
        double[] sums = new double[32];
        double[] stored = graph.of(y);
        for (int i = 0; i < stored.length; i++) {
            sums[i % 32] += stored[i];
        }
        graph.put(sum, sums);
        graph.check(new Tolerance("outputs in the middle", 1.5e-3, 1e-2));
    }

    @ParameterizedTest
    @EnumSource(ReductionMode.class)
    void everyReduction(ReductionMode mode) {
        int supported = 0;
        for (int[] axes : new int[][] {{2}, {0, 1}, {0, 1, 2}, {1}}) {
            GraphWitness graph = graph(mode + " over " + Arrays.toString(axes));
            double[] values = open.normal(DType.FLOAT32, 4 * 8 * 16, 1);
            for (int i = 0; i < values.length; i++) {
                // Products of some hundred numbers stay in range.
                double near = (float) (1 + 0.05 * values[i]);
                values[i] = mode == ReductionMode.MUL
                        ? near
                        : mode == ReductionMode.MUL_NO_ZEROS ? (i % 7 == 0 ? 0 : near) : values[i];
            }
            GraphTensor x = graph.input("x", DType.FLOAT32, values, 4, 8, 16);
            graph.builder.output(graph.reduction("y", mode, x, axes));
            supported += graph.check(Tolerances.rounded(DType.FLOAT32)) ? 1 : 0;
        }
        System.out.println(mode + ": " + supported + " of 4 choices of axes have an engine");
        assertTrue(Provider.current() == Provider.CUDA || supported == 4, mode + ": " + supported);
    }

    @Test
    void reshapeTransposeAndConcatenation() {
        GraphWitness graph = graph("layouts");
        GraphTensor x = graph.normal("x", DType.FLOAT32, 2, 6, 8);
        GraphTensor y = graph.normal("y", DType.FLOAT32, 2, 3, 8);
        GraphTensor both = graph.concatenate("both", 1, x, y);
        GraphTensor flat = graph.reshape("flat", both, 2, 9, 4, 2);
        GraphTensor turned = graph.transpose("turned", flat, 3, 0, 2, 1);
        GraphTensor negative = graph.unary("negative", PointwiseMode.NEG, turned, v -> -v);
        assertEquals(DataType.FLOAT, negative.type());
        graph.builder.output(negative);
        graph.check(Tolerances.rounded(DType.FLOAT32));
    }

    @ParameterizedTest
    @EnumSource(
            value = DataType.class,
            names = {"INT8", "UINT8", "INT32", "HALF", "BFLOAT16"})
    void conversions(DataType type) {
        GraphWitness graph = graph("conversion to " + type);
        double[] values = {-200, -1.5, -0.5, 0.5, 1.5, 2.5, 100, 300};
        GraphTensor x = graph.input("x", DType.FLOAT32, values, 1, 1, 8);
        GraphTensor y = graph.builder.pointwise("y", PointwiseMode.IDENTITY, x);
        graph.builder.output(y, type);
        double[] expected = switch (type) {
            case INT8 -> new double[] {-128, -2, 0, 0, 2, 2, 100, 127};
            // Bytes are read as signed: 255 is -1.
            case UINT8 -> new double[] {0, 0, 0, 0, 2, 2, 100, -1};
            case INT32 -> new double[] {-200, -2, 0, 0, 2, 2, 100, 300};
            default -> values;
        };
        graph.put(y, expected);
        graph.check(Tolerances.rounded(DType.FLOAT32));
    }

    @Test
    void float8() {
        GraphWitness graph = graph("fp8");
        // 0x38 is 1, 0x40 is 2 and 0xb8 is -1 in E4M3.
        GraphTensor x = graph.input(graph.builder.tensor("x", DType.FLOAT8_E4M3, 1, 1, 16), new double[] {
            0x38, 0x40, 0xb8 - 256, 0, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38
        });
        GraphTensor scale = graph.scalar("scale", 3, 3);
        GraphTensor y = graph.builder.pointwise("y", PointwiseMode.MUL, x, scale);
        graph.builder.output(y, DataType.FP8_E5M2);
        // 3 is 0x42 in E5M2, 6 is 0x46, -3 is 0xc2.
        graph.put(y, new double[] {
            0x42, 0x46, 0xc2 - 256, 0, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42
        });
        graph.check(Tolerances.rounded(DType.FLOAT32));
    }

    record Convolved(String name, long[] x, long[] w, ConvolutionConfig config, boolean channelsLast) {
        @Override
        public String toString() {
            return name;
        }
    }

    static List<Convolved> convolutions() {
        ConvolutionConfig plain = ConvolutionConfig.of(2);
        return List.of(
                new Convolved("plain", new long[] {2, 8, 9, 7}, new long[] {16, 8, 3, 3}, plain, true),
                new Convolved(
                        "padded", new long[] {1, 8, 8, 8}, new long[] {8, 8, 3, 3}, plain.withPadding(1, 1), true),
                new Convolved(
                        "strided",
                        new long[] {2, 16, 11, 9},
                        new long[] {8, 16, 3, 2},
                        plain.withStrides(2, 3).withPadding(1, 0),
                        true),
                new Convolved(
                        "dilated", new long[] {1, 8, 12, 12}, new long[] {8, 8, 3, 3}, plain.withDilations(2, 3), true),
                new Convolved(
                        "groups", new long[] {1, 16, 6, 6}, new long[] {32, 4, 3, 3}, plain.withPadding(1, 1), true),
                new Convolved(
                        "reversed",
                        new long[] {1, 8, 7, 7},
                        new long[] {8, 8, 3, 3},
                        plain.withMode(ConvolutionConfig.Mode.CONVOLUTION),
                        true),
                new Convolved(
                        "channels first",
                        new long[] {2, 8, 6, 6},
                        new long[] {8, 8, 3, 3},
                        plain.withPadding(1, 1),
                        false),
                new Convolved(
                        "one dimension",
                        new long[] {2, 8, 16},
                        new long[] {8, 8, 5},
                        ConvolutionConfig.of(1).withPadding(2),
                        false),
                new Convolved(
                        "three dimensions",
                        new long[] {1, 8, 4, 5, 6},
                        new long[] {8, 8, 2, 3, 2},
                        ConvolutionConfig.of(3).withPadding(1, 1, 0),
                        false));
    }

    /** x, w and y of each product of a convolution. */
    private static List<int[]> products(Convolved c, long... y) {
        List<int[]> all = new ArrayList<>();
        long groups = c.x[1] / c.w[1];
        for (int i = 0; i < GraphWitness.count(y); i++) {
            long[] to = GraphWitness.index(y, i);
            long[] taps = c.w.clone();
            taps[0] = 1;
            for (int j = 0; j < GraphWitness.count(taps); j++) {
                long[] tap = GraphWitness.index(taps, j);
                long[] from = new long[to.length];
                from[0] = to[0];
                from[1] = to[1] / (c.w[0] / groups) * c.w[1] + tap[1];
                boolean in = true;
                long[] at = tap.clone();
                at[0] = to[1];
                for (int d = 2; d < to.length; d++) {
                    from[d] = to[d] * c.config.strides().get(d - 2)
                            - c.config.prePadding().get(d - 2)
                            + tap[d] * c.config.dilations().get(d - 2);
                    in = in && from[d] >= 0 && from[d] < c.x[d];
                    at[d] = c.config.mode() == ConvolutionConfig.Mode.CONVOLUTION ? c.w[d] - 1 - tap[d] : tap[d];
                }
                if (in) {
                    all.add(new int[] {
                        (int) GraphWitness.offset(from, GraphWitness.rowMajor(c.x)),
                        (int) GraphWitness.offset(at, GraphWitness.rowMajor(c.w)),
                        i
                    });
                }
            }
        }
        return all;
    }

    private static long[] strides(Convolved c, long... dims) {
        if (!c.channelsLast) {
            return GraphWitness.rowMajor(dims);
        }
        return new long[] {dims[1] * dims[2] * dims[3], 1, dims[1] * dims[3], dims[1]};
    }

    private static GraphTensor image(GraphWitness graph, Convolved c, String name, long... dims) {
        return graph.input(
                graph.builder.tensor(name, DType.FLOAT16, dims, strides(c, dims)),
                open.normal(DType.FLOAT16, (int) GraphWitness.count(dims), 1));
    }

    @ParameterizedTest
    @MethodSource("convolutions")
    void convolution(Convolved c) {
        GraphWitness graph = graph("convolution");
        GraphTensor x = image(graph, c, "x", c.x);
        GraphTensor w = image(graph, c, "w", c.w);
        GraphTensor y = graph.builder.convolution("y", x, w, c.config);
        double[] expected = new double[(int) y.count()];
        products(c, y.dims()).forEach(p -> expected[p[2]] += graph.of(x)[p[0]] * graph.of(w)[p[1]]);
        graph.builder.output(graph.put(y, expected));
        graph.check(SINGLE);
    }

    @ParameterizedTest
    @MethodSource("convolutions")
    void gradientsOfConvolution(Convolved c) {
        GraphBuilder sizes = OperationGraph.builder("sizes");
        GraphTensor image = sizes.tensor("x", DType.FLOAT16, c.x);
        long[] dims = sizes.convolution("y", image, sizes.tensor("w", DType.FLOAT16, c.w), c.config)
                .dims();
        GraphWitness data = graph("convolutionBackwardData");
        GraphTensor dy = image(data, c, "dy", dims);
        GraphTensor w = image(data, c, "w", c.w);
        GraphTensor dx = data.builder.convolutionBackwardData("dx", dy, w, c.config, c.x);
        double[] expected = new double[(int) dx.count()];
        products(c, dims).forEach(p -> expected[p[0]] += data.of(w)[p[1]] * data.of(dy)[p[2]]);
        data.builder.output(data.put(dx, expected));
        data.check(SINGLE);
        GraphWitness filter = graph("convolutionBackwardFilter");
        GraphTensor gradient = image(filter, c, "dy", dims);
        GraphTensor x = image(filter, c, "x", c.x);
        GraphTensor dw = filter.builder.convolutionBackwardFilter("dw", gradient, x, c.config, c.w);
        double[] sums = new double[(int) dw.count()];
        products(c, dims).forEach(p -> sums[p[1]] += filter.of(x)[p[0]] * filter.of(gradient)[p[2]]);
        filter.builder.output(filter.put(dw, sums));
        filter.check(SINGLE);
    }

    record Resampled(ResampleConfig config, long... x) {}

    static List<Resampled> windows() {
        return List.of(
                new Resampled(ResampleConfig.of(ResampleMode.MAXPOOL, 2, 2), 2, 8, 6, 8),
                new Resampled(
                        ResampleConfig.of(ResampleMode.MAXPOOL, 3, 3)
                                .withStrides(2, 2)
                                .withPadding(1, 1),
                        1,
                        8,
                        9,
                        7),
                new Resampled(
                        ResampleConfig.of(ResampleMode.AVGPOOL_INCLUDE_PADDING, 3, 2)
                                .withStrides(2, 1)
                                .withPadding(1, 0),
                        1,
                        8,
                        7,
                        8),
                new Resampled(
                        ResampleConfig.of(ResampleMode.AVGPOOL_EXCLUDE_PADDING, 3, 3)
                                .withStrides(1, 2)
                                .withPadding(1, 1),
                        2,
                        8,
                        8,
                        5));
    }

    @ParameterizedTest
    @MethodSource("windows")
    void resampling(Resampled c) {
        GraphWitness graph = graph("resample");
        GraphTensor x = lastChannels(graph, "x", c.x);
        GraphTensor y = graph.builder.resample("y", x, c.config);
        double[] expected = new double[(int) y.count()];
        List<List<int[]>> windows = new ArrayList<>();
        for (int i = 0; i < expected.length; i++) {
            List<int[]> window = window(c, GraphWitness.index(y.dims(), i));
            windows.add(window);
            double[] from = graph.of(x);
            expected[i] = switch (c.config.mode()) {
                case MAXPOOL ->
                    window.stream().mapToDouble(p -> from[p[0]]).max().orElseThrow();
                case AVGPOOL_INCLUDE_PADDING ->
                    window.stream().mapToDouble(p -> from[p[0]]).sum() / volume(c);
                default ->
                    window.stream().mapToDouble(p -> from[p[0]]).average().orElseThrow();
            };
        }
        graph.builder.output(graph.put(y, expected));
        graph.check(Tolerances.rounded(DType.FLOAT32));
        gradientOfResampling(c, y.dims(), windows);
    }

    private static GraphTensor lastChannels(GraphWitness graph, String name, long... dims) {
        long[] strides = {dims[1] * dims[2] * dims[3], 1, dims[1] * dims[3], dims[1]};
        return graph.input(
                graph.builder.tensor(name, DType.FLOAT32, dims, strides),
                open.normal(DType.FLOAT32, (int) GraphWitness.count(dims), 1));
    }

    private static void gradientOfResampling(Resampled c, long[] dims, List<List<int[]>> windows) {
        GraphWitness graph = graph("resampleBackward");
        GraphTensor dy = lastChannels(graph, "dy", dims);
        double[] expected = new double[(int) GraphWitness.count(c.x)];
        GraphTensor dx;
        if (c.config.mode() == ResampleMode.MAXPOOL) {
            GraphTensor x = lastChannels(graph, "x", c.x);
            double[] from = graph.of(x);
            double[] largest = new double[windows.size()];
            for (int i = 0; i < largest.length; i++) {
                int best = windows.get(i).getFirst()[0];
                for (int[] p : windows.get(i)) {
                    best = from[p[0]] > from[best] ? p[0] : best;
                }
                largest[i] = from[best];
                expected[best] += graph.of(dy)[i];
            }
            long[] strides = {dims[1] * dims[2] * dims[3], 1, dims[1] * dims[3], dims[1]};
            GraphTensor y = graph.input(graph.builder.tensor("y", DType.FLOAT32, dims, strides), largest);
            dx = graph.builder.resampleBackward("dx", dy, x, y, c.config);
        } else {
            for (int i = 0; i < windows.size(); i++) {
                double share = c.config.mode() == ResampleMode.AVGPOOL_INCLUDE_PADDING
                        ? volume(c)
                        : windows.get(i).size();
                for (int[] p : windows.get(i)) {
                    expected[p[0]] += graph.of(dy)[i] / share;
                }
            }
            dx = graph.builder.resampleBackward("dx", dy, c.config, c.x);
        }
        graph.builder.output(graph.put(dx, expected));
        graph.check(Tolerances.rounded(DType.FLOAT32));
    }

    private static double volume(Resampled c) {
        return c.config.window().get(0) * c.config.window().get(1);
    }

    /** Places of a window's elements in x. */
    private static List<int[]> window(Resampled c, long... to) {
        List<int[]> all = new ArrayList<>();
        for (long i = 0; i < c.config.window().get(0); i++) {
            for (long j = 0; j < c.config.window().get(1); j++) {
                long row = to[2] * c.config.strides().get(0)
                        - c.config.prePadding().get(0)
                        + i;
                long column = to[3] * c.config.strides().get(1)
                        - c.config.prePadding().get(1)
                        + j;
                if (row >= 0 && row < c.x[2] && column >= 0 && column < c.x[3]) {
                    all.add(new int[] {
                        (int) GraphWitness.offset(new long[] {to[0], to[1], row, column}, GraphWitness.rowMajor(c.x))
                    });
                }
            }
        }
        return all;
    }

    @Test
    void softmaxOfEachAxis() {
        for (int axis = 0; axis < 3; axis++) {
            GraphWitness graph = graph("softmax " + axis);
            GraphTensor x = graph.normal("x", DType.FLOAT32, 4, 8, 16);
            graph.builder.output(graph.softmax("y", x, axis));
            graph.check(Tolerances.rounded(DType.FLOAT32));
        }
    }

    @Test
    void randomNumbers() {
        List<RngDistribution> distributions = List.of(
                new RngDistribution.Bernoulli(0.25),
                new RngDistribution.Uniform(-1, 3),
                new RngDistribution.Normal(2, 0.5));
        double[] means = {0.25, 1, 2};
        double[] deviations = {Math.sqrt(0.25 * 0.75), 4 / Math.sqrt(12), 0.5};
        for (int i = 0; i < means.length; i++) {
            GraphWitness graph = graph("rng " + distributions.get(i));
            GraphTensor seed = graph.input(graph.builder.tensor("seed", DType.INT64, 1, 1, 1, 1), 7);
            GraphTensor offset = graph.input(graph.builder.tensor("offset", DType.INT64, 1, 1, 1, 1), 3);
            GraphTensor y = graph.builder.rng("y", distributions.get(i), seed, offset, 1, 8, 64, 64);
            graph.builder.output(y);
            if (!graph.check(SINGLE)) {
                continue;
            }
            float[] drawn = graph.read(y);
            double mean = 0;
            double square = 0;
            for (float value : drawn) {
                mean += value / drawn.length;
                square += (double) value * value / drawn.length;
            }
            double deviation = Math.sqrt(square - mean * mean);
            // Five standard errors of 32,768 draws.
            assertEquals(
                    means[i],
                    mean,
                    5 * deviations[i] / Math.sqrt(drawn.length),
                    distributions.get(i).toString());
            assertEquals(
                    deviations[i],
                    deviation,
                    0.02 * deviations[i],
                    distributions.get(i).toString());
        }
    }
}
