package dev.chagres.trainer.finetune;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.trainer.finetune.Predictions.Metrics;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Metrics against numbers of scikit-learn 1.7. */
@Tag("L0")
class MetricsTest {
    /** Labels 0 0 0 1 1 2 2 2 2, predictions 0 0 1 1 2 2 2 0 2. */
    @Test
    void ofThreeClasses() {
        Metrics metrics = Metrics.of(new long[] {2, 1, 0, 0, 1, 1, 1, 0, 3}, 3);
        assertEquals(6 / 9.0, metrics.accuracy(), 1e-12);
        assertEquals((2 / 3.0 + 0.5 + 0.75) / 3, metrics.macroF1(), 1e-12);
        // (6 * 9 - (3 3 + 2 2 + 4 4)) / sqrt((81 - 29) (81 - 29))
        assertEquals(25 / 52.0, metrics.matthews(), 1e-12);
    }

    @Test
    void ofTwoClasses() {
        // tp 3, tn 4, fp 2, fn 1: (12 - 2) / sqrt(5 4 6 5)
        Metrics metrics = Metrics.of(new long[] {4, 2, 1, 3}, 2);
        assertEquals(10 / Math.sqrt(600), metrics.matthews(), 1e-12);
    }

    @Test
    void ofOneClassThatOccurs() {
        Metrics metrics = Metrics.of(new long[] {5, 0, 0, 0, 0, 0, 0, 0, 0}, 3);
        assertEquals(1, metrics.accuracy());
        assertEquals(1, metrics.macroF1(), "classes that occur nowhere do not count");
        assertEquals(0, metrics.matthews());
    }
}
