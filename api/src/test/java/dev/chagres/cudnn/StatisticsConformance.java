package dev.chagres.cudnn;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Thrown;
import dev.chagres.conformance.Tolerance;
import java.util.function.IntToDoubleFunction;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Sums of channels, what batch norm makes of them, and gradients of its weights, against double precision. */
@Tag("L0")
@Tag("L1")
class StatisticsConformance {
    private static final int BATCH = 3;
    private static final int CHANNELS = 8;
    private static final int SPACE = 4 * 5;
    private static final long[] DIMS = {BATCH, CHANNELS, 4, 5};
    private static final long[] STRIDES = {CHANNELS * SPACE, 1, 5 * CHANNELS, CHANNELS};
    private static final Tolerance SUMS = new Tolerance("sums of channels", 1e-5, 1e-4);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static GraphTensor image(GraphWitness graph, String name, double... elements) {
        return graph.input(graph.builder.tensor(name, DType.FLOAT16, DIMS, STRIDES), elements);
    }

    private static double[] drawn() {
        return open.normal(DType.FLOAT16, BATCH * CHANNELS * SPACE, 1);
    }

    private static GraphTensor channels(GraphWitness graph, String name, double... elements) {
        return graph.input(name, DType.FLOAT32, elements, 1, CHANNELS, 1, 1);
    }

    /** Returns the sums over each channel; {@code of} gives the summand at a place. */
    private static double[] summed(IntToDoubleFunction of) {
        double[] sums = new double[CHANNELS];
        for (int i = 0; i < BATCH * CHANNELS * SPACE; i++) {
            sums[i / SPACE % CHANNELS] += of.applyAsDouble(i);
        }
        return sums;
    }

    private static double[] each(IntToDoubleFunction of) {
        double[] all = new double[CHANNELS];
        for (int c = 0; c < CHANNELS; c++) {
            all[c] = of.applyAsDouble(c);
        }
        return all;
    }

    @Test
    void sumsOfChannels() {
        GraphWitness graph = new GraphWitness(open, "sums");
        double[] x = drawn();
        Statistics.Sums sums = graph.builder.statistics().sums("s", image(graph, "x", x));
        graph.put(graph.builder.output(sums.sum()), summed(i -> x[i]));
        graph.put(graph.builder.output(sums.squares()), summed(i -> x[i] * x[i]));
        graph.check(1, SUMS);
    }

    @Test
    void meansAndRunningAverages() {
        GraphWitness graph = new GraphWitness(open, "finalize");
        double count = BATCH * SPACE;
        double[] sum = open.normal(DType.FLOAT32, CHANNELS, 30);
        double[] squares = each(c -> (float) (sum[c] * sum[c] / count + 40));
        double[] scale = open.normal(DType.FLOAT32, CHANNELS, 1);
        double[] bias = open.normal(DType.FLOAT32, CHANNELS, 1);
        double[] mean = open.normal(DType.FLOAT32, CHANNELS, 1);
        Statistics.Finalized made = graph.builder
                .statistics()
                .finalized(
                        "f",
                        new Statistics.Sums(channels(graph, "sum", sum), channels(graph, "squares", squares)),
                        channels(graph, "scale", scale),
                        channels(graph, "bias", bias),
                        1e-3f,
                        (long) count,
                        new Statistics.Running(
                                channels(graph, "mean", mean), channels(graph, "variance", each(c -> 2)), 0.125f));
        double[] variance = each(c -> squares[c] / count - sum[c] * sum[c] / count / count);
        double[] invStd = each(c -> 1 / Math.sqrt(variance[c] + 1e-3f));
        graph.put(graph.builder.output(made.mean()), each(c -> sum[c] / count));
        graph.put(graph.builder.output(made.invStd()), invStd);
        graph.put(graph.builder.output(made.eqScale()), each(c -> scale[c] * invStd[c]));
        graph.put(graph.builder.output(made.eqBias()), each(c -> bias[c] - sum[c] / count * scale[c] * invStd[c]));
        graph.put(graph.builder.output(made.runningMean()), each(c -> 0.875 * mean[c] + 0.125 * sum[c] / count));
        graph.put(
                graph.builder.output(made.runningVariance()),
                each(c -> 0.875 * 2 + 0.125 * variance[c] * count / (count - 1)));
        graph.check(1, SUMS);
    }

    /** dx = eqDyScale dy + eqXScale x + eqBias is the gradient of batch norm. */
    @Test
    void gradientsOfWeights() {
        GraphWitness graph = new GraphWitness(open, "weights");
        double[] x = drawn();
        double[] dy = drawn();
        double m = BATCH * SPACE;
        double[] mean = each(c -> (float) (summed(i -> x[i])[c] / m));
        double[] squares = summed(i -> Math.pow(x[i] - mean[i / SPACE % CHANNELS], 2));
        double[] invStd = each(c -> (float) (1 / Math.sqrt(squares[c] / m + 1e-5)));
        double[] scale = open.normal(DType.FLOAT32, CHANNELS, 1);
        Statistics.WeightGradients made = graph.builder
                .statistics()
                .weightGradients(
                        "w",
                        image(graph, "dy", dy),
                        image(graph, "x", x),
                        channels(graph, "mean", mean),
                        channels(graph, "invStd", invStd),
                        channels(graph, "scale", scale));
        double[] dbias = summed(i -> dy[i]);
        double[] dscale = summed(i -> {
            int c = i / SPACE % CHANNELS;
            return dy[i] * (x[i] - mean[c]) * invStd[c];
        });
        graph.put(graph.builder.output(made.dscale()), dscale);
        graph.put(graph.builder.output(made.dbias()), dbias);
        graph.put(graph.builder.output(made.eqDyScale()), each(c -> scale[c] * invStd[c]));
        graph.put(graph.builder.output(made.eqXScale()), each(c -> -scale[c] * invStd[c] * invStd[c] * dscale[c] / m));
        graph.put(
                graph.builder.output(made.eqBias()),
                each(c -> scale[c] * invStd[c] * (-dbias[c] + mean[c] * invStd[c] * dscale[c]) / m));
        graph.check(1, SUMS);
    }

    @Test
    void misuse() {
        GraphBuilder builder = OperationGraph.builder("g");
        Statistics statistics = builder.statistics();
        GraphTensor x = builder.tensor("x", DType.FLOAT32, DIMS);
        GraphTensor wrong = builder.tensor("wrong", DType.FLOAT32, 1, CHANNELS + 1, 1, 1);
        Thrown.assertThrown(
                IllegalArgumentException.class,
                "genStats \"s\", x: expected [N, C, …] with spatial dimensions, got m FLOAT[3, 4]",
                () -> statistics.sums("s", builder.tensor("m", DType.FLOAT32, 3, 4)));
        Statistics.Sums sums = statistics.sums("t", x);
        Thrown.assertThrown(
                IllegalArgumentException.class,
                "bnFinalize \"f\", scale: expected [1, 8, 1, 1], got wrong FLOAT[1, 9, 1, 1]",
                () -> statistics.finalized("f", sums, wrong, wrong, 1, 1, null));
        GraphTensor scale = builder.tensor("scale", DType.FLOAT32, 1, CHANNELS, 1, 1);
        Thrown.assertThrown(
                IllegalArgumentException.class,
                "bnFinalize \"f\", epsilon: expected a positive number, got 0.0",
                () -> statistics.finalized("f", sums, scale, scale, 0, 1, null));
        Thrown.assertThrown(
                IllegalArgumentException.class,
                "bnFinalize \"f\", count: expected 1 to 2147483647, got 0",
                () -> statistics.finalized("f", sums, scale, scale, 1, 0, null));
        Thrown.assertThrown(
                IllegalArgumentException.class,
                "bnBackwardWeights \"w\", dy: expected [3, 8, 4, 5], got scale FLOAT[1, 8, 1, 1]",
                () -> statistics.weightGradients("w", scale, x, scale, scale, scale));
        assertEquals(CHANNELS, sums.sum().count());
    }
}
