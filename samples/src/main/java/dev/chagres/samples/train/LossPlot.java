package dev.chagres.samples.train;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.knowm.xchart.BitmapEncoder;
import org.knowm.xchart.XYChart;
import org.knowm.xchart.XYChartBuilder;
import org.knowm.xchart.style.Styler;
import org.knowm.xchart.style.markers.SeriesMarkers;

/**
 * Draws loss against step as a PNG: every step, and the mean of the ten steps up to each.
 *
 * <p>Threading: thread-safe.
 */
final class LossPlot {
    /** Steps that the smooth line averages. */
    static final int SMOOTHED_STEPS = 10;

    private static final int MAX_POINTS = 4_000;

    private LossPlot() {}

    /**
     * Makes sure before the training that drawing will work afterwards: it needs fonts, which a bare machine may lack.
     *
     * @throws TrainingException when nothing can be drawn here, or the file cannot be written
     */
    static void probe(Path file) {
        if (Files.isDirectory(file)) {
            throw new TrainingException(file + ": is a directory; --plot expects a file");
        }
        if (OutputFiles.isDirect(file)) {
            throw new TrainingException(file + ": is no place for a picture; --plot expects a file");
        }
        render(file, "probe", new double[] {1, 2}, 2);
        Path part = OutputFiles.part(OutputFiles.behindLink(file));
        try {
            Files.write(part, new byte[0]);
            Files.delete(part);
        } catch (IOException e) {
            throw OutputFiles.unwritable(file, e);
        }
    }

    /**
     * Writes the picture.
     *
     * @param losses loss by step, {@code steps} of them
     * @throws TrainingException when the file cannot be written; none is left behind then
     */
    static void write(Path file, String title, double[] losses, int steps) {
        byte[] png = render(file, title, losses, steps);
        Path whole = OutputFiles.behindLink(file);
        Path part = OutputFiles.part(whole);
        try {
            try {
                Files.write(part, png);
                Files.move(part, whole, StandardCopyOption.REPLACE_EXISTING);
            } finally {
                Files.deleteIfExists(part);
            }
        } catch (IOException e) {
            throw OutputFiles.unwritable(file, e);
        }
    }

    private static byte[] render(Path file, String title, double[] losses, int steps) {
        System.setProperty("java.awt.headless", "true");
        try {
            return BitmapEncoder.getBitmapBytes(chart(title, losses, steps), BitmapEncoder.BitmapFormat.PNG);
        } catch (IOException | RuntimeException | LinkageError e) {
            // Where Java finds no font it fails in one of several classes, none of which says what is missing.
            throw new TrainingException(
                    file + ": no picture can be drawn here (" + e
                            + "); Java needs fonts: apt-get install fontconfig fonts-dejavu-core, or leave --plot out",
                    e);
        }
    }

    private static XYChart chart(String title, double[] losses, int steps) {
        XYChart chart = new XYChartBuilder()
                .width(1000)
                .height(600)
                .title(title)
                .xAxisTitle("step")
                .yAxisTitle("masked-token loss (nats)")
                .build();
        chart.getStyler()
                .setLegendPosition(Styler.LegendPosition.InsideNE)
                .setChartBackgroundColor(java.awt.Color.WHITE);
        chart.getStyler().setXAxisMin(0.0);
        int stride = Math.max(1, (steps + MAX_POINTS - 1) / MAX_POINTS);
        int points = (steps + stride - 1) / stride;
        double[] x = new double[points];
        double[] each = new double[points];
        double[] smooth = new double[points];
        for (int i = 0; i < points; i++) {
            int step = Math.min(steps - 1, i * stride);
            x[i] = step + 1;
            each[i] = losses[step];
            smooth[i] = mean(losses, Math.max(0, step + 1 - SMOOTHED_STEPS), step + 1);
        }
        chart.addSeries("each step", x, each).setMarker(SeriesMarkers.NONE).setLineWidth(0.8f);
        chart.addSeries("mean of 10 steps", x, smooth)
                .setMarker(SeriesMarkers.NONE)
                .setLineWidth(2.2f);
        return chart;
    }

    /** Returns the mean of {@code values[from]} to {@code values[to - 1]}. */
    static double mean(double[] values, int from, int to) {
        double sum = 0;
        for (int i = from; i < to; i++) {
            sum += values[i];
        }
        return sum / (to - from);
    }
}
