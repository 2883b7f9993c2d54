package dev.chagres.samples.train;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The command as users start it: a process of its own, computing on the reference. */
@Tag("L0")
@Timeout(240)
class TrainProcessTest {
    @TempDir
    private Path folder;

    private Process start(String... arguments) throws IOException {
        var command = new ArrayList<String>();
        // A shell that runs tests in the background makes its children ignore Ctrl-C; this undoes it.
        command.addAll(List.of("env", "--default-signal=INT"));
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        String natives = System.getProperty("chagres.native.path");
        if (natives != null) {
            command.add("-Dchagres.native.path=" + natives);
        }
        command.addAll(List.of(
                "--enable-native-access=ALL-UNNAMED",
                "-Xmx1g",
                "-Dchagres.provider=reference",
                "-cp",
                System.getProperty("java.class.path"),
                "dev.chagres.samples.train.Train"));
        command.addAll(List.of(arguments));
        return new ProcessBuilder(command)
                .redirectOutput(folder.resolve("out").toFile())
                .redirectError(folder.resolve("err").toFile())
                .start();
    }

    private String text(String name) throws IOException {
        return Files.readString(folder.resolve(name), StandardCharsets.UTF_8);
    }

    private static void awaitLines(Process process, Path file, int count) throws Exception {
        while (process.isAlive()
                && (!Files.exists(file) || Files.readAllLines(file).size() < count)) {
            Thread.sleep(50);
        }
    }

    @ParameterizedTest
    @CsvSource({"INT, 130", "TERM, 143"})
    void aSignalEndsTheRunWithWhatIsTrue(String signal, int status) throws Exception {
        Path report = folder.resolve("r.jsonl");
        Path plot = folder.resolve("p.png");
        Process process = start("--steps", "100000", "--report", report.toString(), "--plot", plot.toString());
        awaitLines(process, folder.resolve("r.jsonl.part"), 4);
        assertTrue(process.isAlive(), () -> "ended early");
        assertFalse(Files.exists(report));
        new ProcessBuilder("kill", "-" + signal, Long.toString(process.pid()))
                .inheritIO()
                .start()
                .waitFor();
        assertTrue(process.waitFor(120, TimeUnit.SECONDS));
        assertEquals(status, process.exitValue(), text("err"));
        List<String> lines = Files.readAllLines(report);
        for (int i = 1; i < lines.size(); i++) {
            assertEquals(i, JSON.std.mapFrom(lines.get(i)).get("step"));
        }
        assertTrue(lines.size() >= 4, lines.toString());
        assertTrue(text("out").contains("stopped after " + (lines.size() - 1) + " of 100000 steps"), text("out"));
        assertTrue(Files.size(plot) > 1000);
        assertFalse(Files.exists(folder.resolve("r.jsonl.part")));
        assertFalse(text("err").contains("\tat "), text("err"));
    }

    @Test
    void aRunEndsWithStatus0AndAFailureWithStatus1() throws Exception {
        Path report = folder.resolve("r.jsonl");
        Process process = start("--steps", "3", "--report", report.toString());
        assertTrue(process.waitFor(120, TimeUnit.SECONDS));
        assertEquals(0, process.exitValue(), text("err"));
        List<String> lines = Files.readAllLines(report);
        assertEquals(4, lines.size());
        assertEquals("reference", JSON.std.mapFrom(lines.getFirst()).get("provider"));

        process = start("--steps", "3", "--report", "/dev/full");
        assertTrue(process.waitFor(120, TimeUnit.SECONDS));
        assertEquals(1, process.exitValue());
        assertTrue(text("err").contains("train: /dev/full: cannot be written: No space left on device"), text("err"));
        assertFalse(text("err").contains("\tat "), text("err"));

        // Standard output is a file here; the link to it must stay.
        process = start("--steps", "2", "--report", "/dev/stdout");
        assertTrue(process.waitFor(120, TimeUnit.SECONDS));
        assertEquals(1, process.exitValue());
        assertTrue(
                text("err").contains("train: /dev/stdout: is a second name of a file that may be in use; "),
                text("err"));
        assertTrue(Files.isSymbolicLink(Path.of("/dev/stdout")));

        process = start("--fasta", folder.toString());
        assertTrue(process.waitFor(120, TimeUnit.SECONDS));
        assertEquals(1, process.exitValue());
        assertTrue(
                text("err").contains("train: " + folder + ": is a directory; name one FASTA file, plain or gz"),
                text("err"));
    }
}
