package dev.chagres.samples.train;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Tag("L0")
class BarLineTest {
    private static final List<String> FACTS = List.of("loss 2.512", "107,432 tokens/s", "MFU 31.5 %", "padding 3.1 %");

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '\0',
            value = {
                "140 | 40 | ] 90/200  left 0:00:55  loss 2.512  107,432 tokens/s  MFU 31.5 %  padding 3.1 %",
                "100 | 14 | ] 90/200  left 0:00:55  loss 2.512  107,432 tokens/s  MFU 31.5 %  padding 3.1 %",
                "81 | 10 | ] 90/200  left 0:00:55  loss 2.512  107,432 tokens/s  MFU 31.5 %",
                "80 | 21 | ] 90/200  left 0:00:55  loss 2.512  107,432 tokens/s",
                "70 | 11 | ] 90/200  left 0:00:55  loss 2.512  107,432 tokens/s",
                "60 | 19 | ] 90/200  left 0:00:55  loss 2.512",
                "40 | 11 | ] 90/200  left 0:00:55",
                "38 | 23 | ] 90/200",
                "30 | 15 | ] 90/200",
                "5 | 10 | ] 90/200"
            })
    void aNarrowLineLosesItsLastFactsAndKeepsItsBar(int width, int cells, String tail) {
        String line = new BarLine(90, 200, Duration.ofSeconds(45), FACTS).fit(width);
        assertTrue(line.startsWith("train [") && line.endsWith(tail), line);
        String bar = line.substring("train [".length(), line.indexOf(']'));
        assertEquals(cells, bar.length(), line);
        assertEquals(cells * 90 / 200, bar.indexOf('>'), line);
    }

    @Test
    void noLineIsWiderThanItsTerminal() {
        for (int step = 0; step <= 1000; step += 50) {
            var line = new BarLine(step, 1000, Duration.ofHours(1), FACTS);
            for (int width = 28; width < 200; width++) {
                assertTrue(line.fit(width).length() <= width, line.fit(width));
            }
        }
    }

    @Test
    void theEndsAreEmptyAndFull() {
        assertEquals("train [>         ] 0/7", new BarLine(0, 7, Duration.ZERO, List.of()).fit(20));
        assertEquals(
                "train [==========] 7/7  left 0:00:00", new BarLine(7, 7, Duration.ofSeconds(7), List.of()).fit(36));
    }
}
