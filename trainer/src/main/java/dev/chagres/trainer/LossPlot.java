package dev.chagres.trainer;

import dev.chagres.bindings.ForeignText;
import dev.chagres.io.AtomicFile;
import dev.chagres.trainer.command.Pictures;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.knowm.xchart.XYChart;
import org.knowm.xchart.XYChartBuilder;
import org.knowm.xchart.style.Styler;
import org.knowm.xchart.style.markers.SeriesMarkers;

/**
 * Draws loss against step as a PNG: every step, and the mean of the ten steps up to each. An older picture stays until the
 * new one is whole.
 *
 * <p>Threading: one thread at a time.
 */
final class LossPlot implements AutoCloseable {
    /** Steps that the smooth line averages. */
    static final int SMOOTHED_STEPS = 10;

    private static final int MAX_POINTS = 4_000;
    /** Names that have room above the lines, which fall, and the letters of each; more would hide them. */
    private static final int NAMES_INSIDE = 5;

    private static final int LETTERS_INSIDE = 50;
    private static final int HEIGHT = 600;
    /** Of a name below the lines. */
    private static final int NAME_HEIGHT = 24;

    private final Path target;
    private final AtomicFile file;

    /**
     * Makes sure before the training that drawing will work afterwards: it needs fonts, which a bare machine may lack, and a
     * file that no other run writes.
     *
     * @throws TrainingException when nothing can be drawn here
     * @throws java.io.UncheckedIOException when the file cannot be written
     */
    LossPlot(String option, Path target) {
        this.target = target;
        if (!Files.isDirectory(target) && AtomicFile.isDirect(target)) {
            throw new TrainingException(
                    ForeignText.plain(target) + ": is no place for a picture; " + option + " expects a file");
        }
        var probe = new LossCurve();
        probe.add(1, 1);
        probe.add(2, 2);
        render(() -> chart("probe", probe));
        file = AtomicFile.create(target);
    }

    /**
     * Writes the picture.
     *
     * @throws java.io.UncheckedIOException when the file cannot be written
     */
    void write(String title, LossCurve losses) {
        publish(() -> chart(title, losses));
    }

    /**
     * Writes a picture with one line for each name: the mean of the {@code smoothed} steps up to each.
     *
     * @throws java.io.UncheckedIOException when the file cannot be written
     */
    void write(String title, Map<String, LossCurve> curves, int smoothed) {
        publish(() -> chart(title, curves, smoothed));
    }

    private void publish(Supplier<XYChart> chart) {
        file.append(render(chart));
        file.publish();
    }

    /** Removes what was not written to its end. */
    @Override
    public void close() {
        file.discard();
    }

    private byte[] render(Supplier<XYChart> chart) {
        try {
            return Pictures.png(chart);
        } catch (IOException e) {
            throw new TrainingException(ForeignText.plain(target) + ": " + e.getMessage(), e);
        }
    }

    /** Returns a picture of several runs. */
    static XYChart chart(String title, Map<String, LossCurve> curves, int smoothed) {
        int first = curves.values().stream()
                .mapToInt(losses -> losses.number(0))
                .min()
                .orElse(1);
        XYChart chart = empty(title, first, List.copyOf(curves.keySet()));
        curves.forEach((name, losses) -> addSeries(chart, name, losses, smoothed, 1.6f));
        return chart;
    }

    /** Returns a picture of one run. */
    static XYChart chart(String title, LossCurve losses) {
        XYChart chart = empty(title, losses.number(0), List.of());
        addSeries(chart, "each step", losses, 1, 0.8f);
        addSeries(chart, "mean of " + SMOOTHED_STEPS + " steps", losses, SMOOTHED_STEPS, 2.2f);
        return chart;
    }

    /** Returns a chart whose axis begins at the step before {@code first}, with room for these names. */
    private static XYChart empty(String title, int first, List<String> names) {
        boolean inside =
                names.size() <= NAMES_INSIDE && names.stream().allMatch(name -> name.length() <= LETTERS_INSIDE);
        XYChart chart = new XYChartBuilder()
                .width(1_000)
                .height(inside ? HEIGHT : HEIGHT + NAME_HEIGHT * names.size())
                .title(title)
                .xAxisTitle("step")
                .yAxisTitle("masked-token loss (nats)")
                .build();
        chart.getStyler()
                .setLegendPosition(inside ? Styler.LegendPosition.InsideNE : Styler.LegendPosition.OutsideS)
                .setChartBackgroundColor(java.awt.Color.WHITE);
        chart.getStyler().setLegendLayout(Styler.LegendLayout.Vertical);
        chart.getStyler().setXAxisMin(first - 1.0).setXAxisMaxLabelCount(11);
        return chart;
    }

    private static void addSeries(XYChart chart, String name, LossCurve losses, int smoothed, float width) {
        int[] drawn = drawn(losses);
        double[] x = Arrays.stream(drawn).mapToDouble(losses::number).toArray();
        double[] y =
                Arrays.stream(drawn).mapToDouble(i -> losses.mean(i, smoothed)).toArray();
        chart.addSeries(name, x, y).setMarker(SeriesMarkers.NONE).setLineWidth(width);
    }

    /** Returns which losses are drawn: a picture has no room for more. */
    private static int[] drawn(LossCurve losses) {
        int stride = Math.max(1, (losses.steps() + MAX_POINTS - 1) / MAX_POINTS);
        return IntStream.range(0, (losses.steps() + stride - 1) / stride)
                .map(i -> i * stride)
                .toArray();
    }
}
