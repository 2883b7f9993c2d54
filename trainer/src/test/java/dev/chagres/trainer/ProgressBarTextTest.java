package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Tag("L0")
class ProgressBarTextTest {
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
                "51 | 10 | ] 90/200  left 0:00:55  loss 2.512"
            })
    void aNarrowLineLosesItsLastFacts(int width, int cells, String tail) {
        String line = new Progress.ProgressBarText(0, 90, 200, Duration.ofSeconds(45), FACTS).fit(width);
        assertTrue(line.startsWith("train [") && line.endsWith(tail), line);
        String bar = line.substring("train [".length(), line.indexOf(']'));
        assertEquals(cells, bar.length(), line);
        assertEquals(cells * 90 / 200, bar.indexOf('>'), line);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "50 | train 90/200  loss 2.512  left 0:00:55",
                "40 | train 90/200  loss 2.512  left 0:00:55",
                "38 | train 90/200  loss 2.512  left 0:00:55",
                "37 | train 90/200  loss 2.512",
                "24 | train 90/200  loss 2.512",
                "23 | 90/200  loss 2.512",
                "18 | 90/200  loss 2.512",
                "17 | loss 2.512",
                "10 | loss 2.512",
                "9 | 90/200"
            })
    void aNarrowerLineLosesItsBarAndKeepsTheLoss(int width, String line) {
        assertEquals(line, new Progress.ProgressBarText(0, 90, 200, Duration.ofSeconds(45), FACTS).fit(width));
    }

    /** The time that is left follows from the steps of this run. */
    @Test
    void aResumedRunHasAsMuchLeftAsItsOwnStepsSay() {
        var line = new Progress.ProgressBarText(900, 901, 1000, Duration.ofSeconds(10), List.of());
        assertEquals("left 0:16:30", line.fit(60).substring(line.fit(60).indexOf("left")));
        assertEquals(
                -1,
                new Progress.ProgressBarText(900, 900, 1000, Duration.ZERO, List.of())
                        .fit(60)
                        .indexOf("left"));
    }

    @Test
    void noLineIsWiderThanItsTerminal() {
        for (int step = 0; step <= 1000; step += 50) {
            var line = new Progress.ProgressBarText(0, step, 1000, Duration.ofHours(1), FACTS);
            for (int width = 10; width < 200; width++) {
                assertTrue(line.fit(width).length() <= width, line.fit(width));
            }
        }
    }

    @Test
    void theEndsAreEmptyAndFull() {
        assertEquals("train [>         ] 0/7", new Progress.ProgressBarText(0, 0, 7, Duration.ZERO, List.of()).fit(22));
        assertEquals(
                "train [==========] 7/7  left 0:00:00",
                new Progress.ProgressBarText(0, 7, 7, Duration.ofSeconds(7), List.of()).fit(36));
    }
}
