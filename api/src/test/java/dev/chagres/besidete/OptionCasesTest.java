package dev.chagres.besidete;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.besidete.LayerCase.Precision;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.TreeSet;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What {@code WriteCases} draws beside TE. */
@Tag("L0")
class OptionCasesTest {
    /** The seed and the turns of docs/beside-te.md. */
    private static final int SEED = 5000;

    private static final int TURNS = 10;
    private static final int LEAST = 5;

    @Test
    void eachOptionStandsInFiveCases() {
        Map<String, Integer> counts = new TreeMap<>();
        for (int number = 0; number < TURNS * WriteCases.OPTION_KINDS; number++) {
            for (String option : WriteCases.Kind.OPTIONS
                    .draw(number, new SplittableRandom((long) SEED + number))
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

    @Test
    void layersAreTrainedInEachPrecisionAndGradientsJump() {
        Set<Precision> trained = EnumSet.noneOf(Precision.class);
        Set<Integer> jumps = new TreeSet<>();
        for (int number = 0; number < 60; number++) {
            LayerCase drawn = (LayerCase) WriteCases.Kind.STEPS.draw(number, new SplittableRandom(7000L + number));
            List<Integer> gradients = drawn.gradients();
            if (number % 3 == 2) {
                jumps.add(gradients.getLast());
                assertEquals(gradients.size() - 2, gradients.lastIndexOf(1), drawn::toString);
            } else {
                trained.add(drawn.precision());
                assertEquals(Collections.nCopies(8, 1), gradients);
            }
        }
        assertEquals(
                EnumSet.of(Precision.BF16, Precision.FP8_DELAYED, Precision.FP8_CURRENT, Precision.FP8_BLOCK), trained);
        assertEquals(Set.of(4, 8, 16, 32), jumps);
    }
}
