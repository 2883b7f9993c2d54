package dev.chagres.trainer.command;

import java.io.IOException;
import java.util.function.Supplier;
import javax.imageio.ImageIO;
import org.jspecify.annotations.Nullable;
import org.knowm.xchart.BitmapEncoder;
import org.knowm.xchart.internal.chartpart.Chart;

/** Pictures as PNG. They need fonts, and a Java runtime that draws. */
public final class Pictures {
    private static final String MODULE = "java.desktop";

    private Pictures() {}

    /** Returns why this Java runtime cannot draw at all; null where it has what draws. */
    public static @Nullable String missing() {
        return ModuleLayer.boot().findModule(MODULE).isPresent()
                ? null
                : "expected a Java runtime with the module " + MODULE
                        + ", which draws pictures, got one without it; take a whole JDK, or make yours with jlink"
                        + " --add-modules " + MODULE;
    }

    /**
     * Returns the bytes of a picture.
     *
     * @throws IOException when it cannot be drawn here; the text says how to mend that
     */
    public static byte[] png(Supplier<? extends Chart<?, ?>> chart) throws IOException {
        String missing = missing();
        if (missing != null) {
            throw new IOException("no picture can be drawn: " + missing);
        }
        System.setProperty("java.awt.headless", "true");
        // A picture fits into memory; the folder for temporary files, which may be missing or full, is not needed.
        ImageIO.setUseCache(false);
        try {
            return BitmapEncoder.getBitmapBytes(chart.get(), BitmapEncoder.BitmapFormat.PNG);
        } catch (IOException e) {
            throw new IOException("no picture can be drawn: " + e, e);
        } catch (RuntimeException | LinkageError e) {
            // Where Java finds no font it fails in one of several classes, none of which says what is missing.
            throw new IOException(
                    "no picture can be drawn here (" + e
                            + "); Java needs fonts: apt-get install fontconfig fonts-dejavu-core",
                    e);
        }
    }
}
