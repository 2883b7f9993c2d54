package dev.chagres.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.OpsException;
import dev.chagres.conformance.Allocation;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
@Tag("L1")
class RangeTest {
    private static void assertNoneOpen() {
        String text =
                String.valueOf(assertThrows(OpsException.class, Range::pop).getMessage());
        assertTrue(text.endsWith("ops_range_pop: this thread has no range open; expected ops_range_push before"), text);
    }

    @Test
    void whatIsPushedCanBePoppedOnce() {
        assertNoneOpen();
        try (Range outer = new Range("outer");
                Range inner = new Range("")) {
            assertEquals("outer", outer.name());
            assertEquals("range outer", outer.toString());
            outer.push();
            inner.push();
            inner.push();
            Range.pop();
            Range.pop();
            Range.pop();
            assertNoneOpen();
        }
    }

    @Test
    void eachThreadHasRangesOfItsOwn() throws InterruptedException {
        try (Range range = new Range("here")) {
            range.push();
            Thread other = new Thread(() -> {
                assertNoneOpen();
                range.push();
                Range.pop();
            });
            Throwable[] failure = new Throwable[1];
            other.setUncaughtExceptionHandler((thread, thrown) -> failure[0] = thrown);
            other.start();
            other.join();
            assertEquals(null, failure[0]);
            Range.pop();
        }
    }

    @Test
    void aClosedNameIsRefusedAndOpenRangesOutliveIt() {
        Range range = new Range("upload");
        range.push();
        range.close();
        range.close();
        Range.pop();
        assertEquals(
                "range upload is closed",
                assertThrows(IllegalStateException.class, range::push).getMessage());
        assertEquals(
                "name: expected a value, got null",
                assertThrows(NullPointerException.class, () -> new Range(null)).getMessage());
    }

    @Test
    void makesNoGarbage() {
        try (Range range = new Range("step")) {
            Allocation.assertNone("a range", () -> {
                range.push();
                Range.pop();
            });
        }
    }
}
