package dev.chagres.trainer.callback;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What it does to a run: {@code EvaluateTest}. */
@Tag("L0")
class EarlyStoppingTest {
    private static String refusal(int patience, double minDelta) {
        return assertThrows(IllegalArgumentException.class, () -> new EarlyStopping(patience, minDelta))
                .getMessage();
    }

    @Test
    void numbersAreChecked() {
        assertEquals("patience: expected at least 1, got 0", refusal(0, 0));
        assertEquals("minDelta: expected a finite number from 0 on, got -1.0", refusal(1, -1));
        assertEquals("minDelta: expected a finite number from 0 on, got NaN", refusal(1, Double.NaN));
        var fresh = new EarlyStopping(1, 0);
        assertEquals(Double.POSITIVE_INFINITY, fresh.best());
        assertEquals(0, fresh.bestStep());
        assertEquals(true, fresh.reason().isEmpty());
    }
}
