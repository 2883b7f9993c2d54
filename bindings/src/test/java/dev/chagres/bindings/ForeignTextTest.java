package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What files and options say reaches a message without acting on the terminal, and shortened. */
@Tag("L0")
class ForeignTextTest {
    private static final String HOSTILE = "a\u001b[2J\u0000\r\n\u009b1m\u202e\u2028\ud800b";
    private static final String VISIBLE = "a\\u001b[2J\\u0000\\u000d\\u000a\\u009b1m\\u202e\\u2028\\ud800b";

    @Test
    void whatIsNotVisibleBecomesAnEscape() {
        assertEquals("\"" + VISIBLE + "\"", ForeignText.quoted(HOSTILE));
        assertEquals(VISIBLE, ForeignText.plain(HOSTILE));
        assertEquals(VISIBLE.replace("\\u000a", "\n"), ForeignText.lines(HOSTILE));
        assertEquals("\"\"", ForeignText.quoted(""));
        assertEquals("Größe 蛋白 \ud83e\uddec", ForeignText.plain("Größe 蛋白 \ud83e\uddec"));
    }

    @Test
    void longTextsAreShortenedAndSayTheirLength() {
        String text = "x".repeat(100_000);
        assertEquals("\"" + "x".repeat(200) + "…\" (100000 characters)", ForeignText.quoted(text));
        assertEquals("x".repeat(1000) + "… (100000 characters)", ForeignText.plain(text));
        assertEquals("x".repeat(20_000) + "… (100000 characters)", ForeignText.lines(text));
        assertEquals("\"" + "x".repeat(200) + "\"", ForeignText.quoted("x".repeat(200)));
        assertTrue(ForeignText.quoted("\u0000".repeat(100_000)).length() < 1300);
    }

    @Test
    void whatWasShownIsShownAgainAlike() {
        assertEquals(VISIBLE, ForeignText.plain(ForeignText.plain(HOSTILE)));
        assertEquals(VISIBLE, ForeignText.lines(ForeignText.plain(HOSTILE)));
    }

    @Test
    void whatLibrariesAndLoadersSayIsShownSo() {
        NativeFailure failure = new NativeFailure("NCCL", "f", 1, "E", HOSTILE, NativeFailure.UNKNOWN_DEVICE);
        assertEquals("NCCL: f returned E (1): " + VISIBLE.replace("\\u000a", "\n"), failure.message());
        MissingLibraryException missing =
                MissingLibraryException.notLoadable("NCCL", "/a\u001b", "\u001b[31m", new LoadFault("", "mend"));
        assertEquals(
                "NCCL: NOT_LOADABLE: /a\\u001b\n  the loader said: \\u001b[31m\n  to mend it: mend",
                missing.getMessage());
    }
}
