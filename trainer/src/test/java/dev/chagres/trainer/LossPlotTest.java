package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.awt.image.BufferedImage;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import javax.imageio.ImageIO;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.knowm.xchart.XYChart;
import org.knowm.xchart.style.Styler;

@Tag("L0")
class LossPlotTest {
    private static final byte[] PNG = {(byte) 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

    @TempDir
    private Path folder;

    @Test
    void drawsAValidPngOfAnyNumberOfSteps() throws IOException {
        for (int steps : List.of(1, 2, 11, 9_999)) {
            var losses = new LossCurve();
            for (int i = 0; i < steps; i++) {
                losses.add(i + 1, 2.9 + 0.6 * Math.exp(-i / 20.0));
            }
            Path file = folder.resolve(steps + ".png");
            try (var plot = new LossPlot("--plot", file)) {
                assertFalse(Files.exists(file));
                plot.write("ESM-2 tiny", losses);
            }
            byte[] bytes = Files.readAllBytes(file);
            assertTrue(Arrays.equals(PNG, 0, 8, bytes, 0, 8));
            BufferedImage image = ImageIO.read(file.toFile());
            assertEquals("1000 600", image.getWidth() + " " + image.getHeight());
            long coloured = 0;
            for (int pixel : image.getRGB(0, 0, 1000, 600, null, 0, 1000)) {
                int red = pixel >> 16 & 0xff;
                int blue = pixel & 0xff;
                coloured += Math.abs(red - blue) > 60 ? 1 : 0;
            }
            assertTrue(coloured > 20, steps + " steps left " + coloured + " coloured pixels");
        }
        try (var files = Files.list(folder)) {
            assertEquals(4, files.count());
        }
    }

    /** Of a run that went on after step 3, and skipped step 5. */
    @Test
    void lossesStandAtTheNumbersOfTheirSteps() {
        var whole = new LossCurve();
        whole.add(1, 4);
        var resumed = new LossCurve();
        resumed.add(4, 3);
        resumed.add(6, 2);
        XYChart alone = LossPlot.chart("a run", resumed);
        for (String name : List.of("each step", "mean of 10 steps")) {
            assertArrayEquals(
                    new double[] {4, 6}, alone.getSeriesMap().get(name).getXData(), name);
        }
        assertEquals(3.0, alone.getStyler().getXAxisMin());
        XYChart beside = LossPlot.chart("two", Map.of("whole", whole, "resumed", resumed), 2);
        assertArrayEquals(
                new double[] {4, 6}, beside.getSeriesMap().get("resumed").getXData());
        assertArrayEquals(
                new double[] {3, 2.5}, beside.getSeriesMap().get("resumed").getYData());
        assertArrayEquals(new double[] {1}, beside.getSeriesMap().get("whole").getXData());
        assertEquals(0.0, beside.getStyler().getXAxisMin());
    }

    @Test
    void manyOrLongNamesStandBelowTheLines() {
        Map<String, LossCurve> curves = new HashMap<>();
        for (int i = 0; i < 6; i++) {
            var losses = new LossCurve();
            losses.add(1, i);
            curves.put("run " + i, losses);
        }
        XYChart six = LossPlot.chart("six", curves, 1);
        assertEquals(Styler.LegendPosition.OutsideS, six.getStyler().getLegendPosition());
        assertEquals(744, six.getHeight());
        curves.remove("run 0");
        XYChart five = LossPlot.chart("five", curves, 1);
        assertEquals(Styler.LegendPosition.InsideNE, five.getStyler().getLegendPosition());
        assertEquals(600, five.getHeight());
        var losses = new LossCurve();
        losses.add(1, 2);
        XYChart one = LossPlot.chart("one", Map.of("a".repeat(51), losses), 1);
        assertEquals(Styler.LegendPosition.OutsideS, one.getStyler().getLegendPosition());
    }

    @Test
    void placesThatCannotBeWrittenAreToldBeforeTheTraining() {
        Path absent = folder.resolve("absent/loss.png");
        var e = assertThrows(UncheckedIOException.class, () -> new LossPlot("--plot", absent));
        assertEquals(absent + ": cannot be written: its folder does not exist", e.getMessage());
        e = assertThrows(UncheckedIOException.class, () -> new LossPlot("--plot", folder));
        assertEquals(folder + ": cannot be written: it is a directory; name a file", e.getMessage());
    }

    @Test
    void anOlderPictureStaysUntilTheNewOneIsWhole() throws IOException {
        Path file = Files.writeString(folder.resolve("p.png"), "older");
        new LossPlot("--plot", file).close();
        assertEquals("older", Files.readString(file));
        try (var files = Files.list(folder)) {
            assertEquals(1, files.count());
        }
    }

    @Test
    void curvesGrowAndAverageWhatThereIs() {
        var losses = new LossCurve();
        for (int i = 0; i < 5_000; i++) {
            losses.add(i + 1, i);
        }
        assertEquals(5_000, losses.steps());
        assertEquals(4_999, losses.at(4_999));
        assertEquals(5_000, losses.number(4_999));
        assertEquals(4_994.5, losses.mean(4_999, 10));
        assertEquals(1, losses.mean(2, 10));
    }
}
