package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Tag("L0")
class TerminalLineTest {
    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private int columns = 100;

    private TerminalLine line(Map<String, String> environment) {
        return new TerminalLine(new PrintStream(bytes, true, StandardCharsets.UTF_8), environment) {
            @Override
            public int getMaxRenderedLength() {
                return columns - 1;
            }
        };
    }

    private String drawn() {
        String text =
                bytes.toString(StandardCharsets.UTF_8).replace('\u001b', '^').replace('\r', '<');
        bytes.reset();
        return text;
    }

    @Test
    void aLineIsWipedBeforeItIsDrawnAgain() {
        TerminalLine line = line(Map.of());
        line.accept("step 1 of 1000");
        assertEquals("<^[Jstep 1 of 1000", drawn());
        line.accept("short");
        assertEquals("<^[Jshort", drawn());
    }

    @Test
    void aLineIsCutToTheWindow() {
        columns = 10;
        line(Map.of()).accept("0123456789abc");
        assertEquals("<^[J012345678", drawn());
    }

    /** A line of 99 characters in a window of 40 columns takes three rows, in one of 50 two. */
    @ParameterizedTest
    @CsvSource({"40, ^[2A", "50, ^[1A", "98, ^[1A", "99, ''", "100, ''"})
    void whatANarrowerWindowMadeOfItIsWipedWhole(int narrower, String up) {
        TerminalLine line = line(Map.of("TERM", "xterm-256color"));
        line.accept("x".repeat(99));
        drawn();
        columns = narrower;
        line.accept("y");
        assertEquals(up + "<^[Jy", drawn());
        line.accept("z");
        assertEquals("<^[Jz", drawn());
    }

    @ParameterizedTest
    @CsvSource({"TERM, linux", "XTERM_VERSION, XTerm(390)", "STY, 1234.pts-0.host"})
    void whereATerminalCutsLinesOffTheRowsAboveAreLeftAlone(String variable, String value) {
        TerminalLine line = line(Map.of(variable, value));
        line.accept("x".repeat(99));
        drawn();
        columns = 40;
        line.accept("y");
        assertEquals("<^[Jy", drawn());
    }
}
