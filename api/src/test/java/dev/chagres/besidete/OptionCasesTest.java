package dev.chagres.besidete;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.TreeSet;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What {@code WriteOptionCases} draws beside TE. */
@Tag("L0")
class OptionCasesTest {
    /** The seed and the turns of docs/beside-te.md. */
    private static final int SEED = 5000;

    private static final int TURNS = 10;
    private static final int LEAST = 5;

    @Test
    void eachOptionStandsInFiveCases() {
        Map<String, Integer> counts = new TreeMap<>();
        for (int number = 0; number < TURNS * WriteOptionCases.KINDS; number++) {
            for (String option : WriteOptionCases.draw(number, new SplittableRandom((long) SEED + number))
                    .options()) {
                counts.merge(option, 1, Integer::sum);
            }
        }
        TreeSet<String> seldom = new TreeSet<>(CaseOption.names());
        seldom.addAll(counts.keySet());
        seldom.removeIf(option -> counts.getOrDefault(option, 0) >= LEAST);
        assertEquals(new TreeSet<>(), seldom);
        assertTrue(counts.size() > 90, counts::toString);
    }
}
