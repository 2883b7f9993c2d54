package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The command when standard output is full or closed. */
@Tag("L0")
@Timeout(60)
class StandardOutputTest {
    private final FakePlatform platform = new FakePlatform();
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();
    private OutputStream stdout = out;

    @TempDir
    private Path folder;

    private int train(String... arguments) {
        return Train.run(
                () -> platform,
                new StandardOutput(stdout, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments);
    }

    private String out() {
        return out.toString(StandardCharsets.UTF_8);
    }

    private String err() {
        return err.toString(StandardCharsets.UTF_8);
    }

    /** Standard output that takes so many bytes and then is a closed pipe. */
    private final class Closing extends OutputStream {
        private int left;

        Closing(int bytes) {
            left = bytes;
        }

        @Override
        public void write(int b) throws IOException {
            if (left-- <= 0) {
                throw new IOException("Broken pipe");
            }
            out.write(b);
        }
    }

    @Test
    void aRunThatNobodyHearsOfEndsBeforeItsFirstStep() {
        stdout = new Closing(40);
        assertEquals(1, train("--steps", "9"));
        assertEquals(
                "train: standard output cannot be written: Broken pipe; the run ends, since nothing would be left of it:"
                        + " ask for --save, --report or --plot" + System.lineSeparator(),
                err());
        assertEquals("[]", platform.model.calls.toString());
        assertTrue(platform.closed && platform.model.closed);
    }

    @Test
    void aRunWithAReportGoesOnWithoutStandardOutput() throws IOException {
        stdout = new Closing(40);
        Path report = folder.resolve("r.jsonl");
        assertEquals(1, train("--steps", "9", "--report", report.toString()));
        assertEquals(
                "train: standard output cannot be written: Broken pipe; training goes on for --save, --report or --plot",
                err().lines().findFirst().orElseThrow());
        assertEquals(1, err().lines().filter(line -> line.startsWith("train: ")).count(), err());
        assertEquals(10, Files.readAllLines(report).size());
    }

    /** Its state is worth more than its lines. */
    @Test
    void aRunThatSavesGoesOnWithoutStandardOutput() {
        stdout = new Closing(40);
        assertEquals(1, train("--steps", "9", "--save", folder.resolve("state").toString()));
        assertEquals("save9", platform.model.calls.getLast());
        assertEquals(
                "train: standard output cannot be written: Broken pipe; training goes on for --save, --report or --plot",
                err().lines().findFirst().orElseThrow());
    }

    @Test
    void aSummaryThatIsLostIsAFailure() {
        stdout = new Closing(250);
        assertEquals(1, train("--steps", "9"));
        assertTrue(out().contains("getting ready: "), out());
        assertEquals(
                "train: standard output cannot be written: Broken pipe",
                err().lines().toList().getLast());
    }

    @Test
    void helpThatIsLostIsAFailure() {
        stdout = new Closing(0);
        assertEquals(1, train("--help"));
        assertEquals("train: standard output cannot be written: Broken pipe" + System.lineSeparator(), err());
    }
}
