package dev.chagres.trainer.plan;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** What {@code advise} tells. */
class AdviseTest {
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    private int run(String... arguments) {
        return Advise.run(
                new PrintStream(out, true, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments);
    }

    @Test
    void countsTilesAndWaves() {
        var tiles = new TileCount(132, 16);
        assertEquals(1, tiles.efficiency(128 * 132, 256, 4096), 1e-12); // one wave, full
        // One row of tiles more: two waves of 178 tiles of 192 x 128 take less than two of the largest.
        double work = 128.0 * 133 * 256 / 132;
        assertEquals(work / (2 * 192 * 128 / 0.97), tiles.efficiency(128 * 133, 256, 64), 1e-12);
        assertTrue(tiles.efficiency(128 * 132 + 1, 256, 4096) < 0.97);
        assertEquals(
                0.5,
                new TileCount(1, 16).efficiency(128, 128, 32) / new TileCount(1, 16).efficiency(128, 128, 64),
                1e-12);
        assertEquals(16, new TileCount(132, 8).alignment());
    }

    /** No efficiency is above that of full tiles, and none of a multiple of all sizes is far below it. */
    @Test
    void staysBelowFullTiles() {
        for (int bits : new int[] {8, 16}) {
            var tiles = new TileCount(132, bits);
            for (int size = 1; size < 6000; size += 37) {
                double efficiency = tiles.efficiency(size, 1280, 5120);
                assertTrue(efficiency > 0 && efficiency <= 1, size + " " + efficiency);
            }
        }
        assertTrue(new TileCount(132, 16).efficiency(8192, 8192, 8192) > 0.93);
    }

    @Test
    void namesWhatIsNotAligned() throws IOException {
        assertEquals(
                0,
                run(
                        "--hidden",
                        "1000",
                        "--heads",
                        "10",
                        "--vocabulary",
                        "50257",
                        "--tokens",
                        "8200",
                        "--recipe",
                        "fp8-delayed",
                        "--json"));
        List<?> rows =
                (List<?>) JSON.std.mapFrom(out.toString(StandardCharsets.UTF_8)).get("dimensions");
        assertRow("hidden", 1008, "products in eight bits take multiples of 16 alone", rows.get(0));
        assertRow("head dimension", 104, "attention takes multiples of 8 up to 256 alone", rows.get(3));
        assertRow("vocabulary", 50264, "kernels that load by 16 bytes take multiples of 8 alone", rows.get(4));
        assertRow("tokens", 8208, "products in eight bits take multiples of 16 alone", rows.get(5));
    }

    private static void assertRow(String dimension, int better, String reason, Object row) {
        Map<?, ?> members = (Map<?, ?>) row;
        assertEquals(dimension, members.get("dimension"));
        assertEquals(better, members.get("better"), row.toString());
        assertEquals(reason, members.get("reason"));
    }

    @Test
    void findsTheNextBetterValue() {
        var sizes = new Advise.Sizes(33, 1280, 20, 20, 64, 5120, 64, 16_384, false, true);
        double now = sizes.efficiency(132, 16);
        for (Advise.Row row : Advise.rows(sizes, 132, 16)) {
            if (row.better() != 0 && row.dimension().equals("hidden")) {
                assertEquals(row.gain(), sizes.withHidden(row.better()).efficiency(132, 16) / now - 1, 1e-12);
                assertTrue(row.gain() > 0 && row.better() > 1280, row.toString());
                assertEquals(0, row.better() % 64, "a whole number of heads");
            }
            assertTrue(!row.dimension().equals("heads") || row.better() == 0, "heads follow from the columns");
        }
        assertEquals(0, run("--model", "8M"));
        assertTrue(
                out.toString(StandardCharsets.UTF_8).contains("of attention: its kernels fill heads up"),
                out.toString(StandardCharsets.UTF_8));
    }

    @Test
    void refusesWrongOptions() {
        assertEquals(2, run("--heads", "4"));
        assertTrue(
                err.toString(StandardCharsets.UTF_8)
                        .startsWith("advise: --hidden: expected at least 1, or --model, got nothing"),
                err.toString(StandardCharsets.UTF_8));
        assertEquals(2, run("--model", "8M", "--tokens", "0"));
    }
}
