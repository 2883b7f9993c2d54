package dev.chagres.samples.train;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.awt.image.BufferedImage;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import javax.imageio.ImageIO;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class LossPlotTest {
    private static final byte[] PNG = {(byte) 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

    @TempDir
    private Path folder;

    @Test
    void drawsAValidPngOfAnyNumberOfSteps() throws IOException {
        for (int steps : List.of(1, 2, 11, 9_999)) {
            double[] losses = new double[10_000];
            for (int i = 0; i < steps; i++) {
                losses[i] = 2.9 + 0.6 * Math.exp(-i / 20.0);
            }
            Path file = folder.resolve(steps + ".png");
            LossPlot.probe(file);
            assertFalse(Files.exists(file));
            LossPlot.write(file, "ESM-2 tiny", losses, steps);
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

    @Test
    void placesThatCannotBeWrittenAreToldBeforeTheTraining() {
        Path absent = folder.resolve("absent/loss.png");
        var e = assertThrows(TrainingException.class, () -> LossPlot.probe(absent));
        assertEquals(absent + ": cannot be written: its folder does not exist", e.getMessage());
        e = assertThrows(TrainingException.class, () -> LossPlot.probe(folder));
        assertEquals(folder + ": is a directory; --plot expects a file", e.getMessage());
    }
}
