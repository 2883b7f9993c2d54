package dev.chagres.samples.train;

import dev.chagres.train.WholeFile;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import javax.imageio.ImageIO;
import org.knowm.xchart.BitmapEncoder;
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

    private final Path target;
    private final WholeFile file;

    /**
     * Makes sure before the training that drawing will work afterwards: it needs fonts, which a bare machine may lack, and a
     * file that no other run writes.
     *
     * @throws TrainingException when nothing can be drawn here
     * @throws java.io.UncheckedIOException when the file cannot be written
     */
    LossPlot(Path target) {
        this.target = target;
        if (!Files.isDirectory(target) && WholeFile.isDirect(target)) {
            throw new TrainingException(target + ": is no place for a picture; --plot expects a file");
        }
        var probe = new LossCurve();
        probe.add(1);
        probe.add(2);
        render("probe", probe);
        file = WholeFile.create(target);
    }

    /**
     * Writes the picture.
     *
     * @throws java.io.UncheckedIOException when the file cannot be written
     */
    void write(String title, LossCurve losses) {
        file.append(render(title, losses));
        file.publish();
    }

    /** Removes what was not written to its end. */
    @Override
    public void close() {
        file.discard();
    }

    private byte[] render(String title, LossCurve losses) {
        System.setProperty("java.awt.headless", "true");
        // A picture fits into memory; the folder for temporary files, which may be missing or full, is not needed.
        ImageIO.setUseCache(false);
        try {
            return BitmapEncoder.getBitmapBytes(chart(title, losses), BitmapEncoder.BitmapFormat.PNG);
        } catch (IOException e) {
            throw new TrainingException(target + ": no picture can be drawn: " + e, e);
        } catch (RuntimeException | LinkageError e) {
            // Where Java finds no font it fails in one of several classes, none of which says what is missing.
            throw new TrainingException(
                    target + ": no picture can be drawn here (" + e
                            + "); Java needs fonts: apt-get install fontconfig fonts-dejavu-core, or leave --plot out",
                    e);
        }
    }

    private static XYChart chart(String title, LossCurve losses) {
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
        int steps = losses.steps();
        int stride = Math.max(1, (steps + MAX_POINTS - 1) / MAX_POINTS);
        int points = (steps + stride - 1) / stride;
        double[] x = new double[points];
        double[] each = new double[points];
        double[] smooth = new double[points];
        for (int i = 0; i < points; i++) {
            int step = Math.min(steps - 1, i * stride);
            x[i] = step + 1;
            each[i] = losses.at(step);
            smooth[i] = losses.mean(step, SMOOTHED_STEPS);
        }
        chart.addSeries("each step", x, each).setMarker(SeriesMarkers.NONE).setLineWidth(0.8f);
        chart.addSeries("mean of 10 steps", x, smooth)
                .setMarker(SeriesMarkers.NONE)
                .setLineWidth(2.2f);
        return chart;
    }
}
