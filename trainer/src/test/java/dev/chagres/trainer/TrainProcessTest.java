package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.io.SafetensorsFile;
import java.io.IOException;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The command as users start it: a process of its own, computing on the reference. */
@Tag("L0")
@Timeout(1200)
class TrainProcessTest {
    @TempDir
    private Path folder;

    /** Variables of the process, such as {@code LC_ALL=C}. */
    private List<String> environment = List.of();

    private String temporary = System.getProperty("java.io.tmpdir");

    /** Where standard output goes instead of its file. */
    private @Nullable Path out;

    private Process start(String... arguments) throws IOException {
        return startAs("", arguments);
    }

    /** Starts a run whose standard output and error go to files of these names, {@code out} and {@code err} by themselves. */
    private Process startAs(String prefix, String... arguments) throws IOException {
        List<String> options = List.of("-Xmx1g", "-Djava.io.tmpdir=" + temporary);
        List<String> command = TrainJvm.command(environment, options, Train.class, List.of(arguments));
        return new ProcessBuilder(command)
                .redirectOutput((out == null ? folder.resolve(prefix + "out") : out).toFile())
                .redirectError(folder.resolve(prefix + "err").toFile())
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

    private static void kill(Process process, String signal) throws Exception {
        new ProcessBuilder("kill", "-" + signal, Long.toString(process.pid()))
                .inheritIO()
                .start()
                .waitFor();
    }

    @ParameterizedTest
    @CsvSource({"INT, 130", "TERM, 143", "HUP, 129"})
    void aSignalEndsTheRunWithWhatIsTrue(String signal, int status) throws Exception {
        Path report = folder.resolve("r.jsonl");
        Path plot = folder.resolve("p.png");
        Path state = folder.resolve("state");
        environment =
                List.of("env", "--default-signal=" + signal); // A terminal's signals may be ignored where tests run.
        Process process =
                start("--steps", "100000", "--report", "" + report, "--plot", "" + plot, "--save", state.toString());
        awaitLines(process, folder.resolve("r.jsonl.part"), 4);
        assertTrue(process.isAlive(), text("err"));
        assertFalse(Files.exists(report));
        kill(process, signal);
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals(status, process.exitValue(), text("err"));
        List<String> lines = Files.readAllLines(report);
        for (int i = 1; i < lines.size(); i++) {
            assertEquals(i, JSON.std.mapFrom(lines.get(i)).get("step"));
        }
        assertTrue(lines.size() >= 4, lines.toString());
        assertTrue(text("out").contains("stopped after " + (lines.size() - 1) + " of 100,000 steps"), text("out"));
        assertTrue(Files.size(plot) > 1000);
        try (SafetensorsFile saved = SafetensorsFile.open(state)) {
            assertEquals(lines.size() - 1, saved.entry("step").bytes().get(ValueLayout.JAVA_LONG_UNALIGNED, 0));
        }
        assertFalse(Files.exists(folder.resolve("r.jsonl.part")) || Files.exists(folder.resolve("state.part")));
        assertFalse(text("err").contains("\tat "), text("err"));
    }

    /** Else each would overwrite the other's, and both would say that all went well. */
    @Test
    void aSecondRunWithTheSameStateIsRefusedBeforeItBegins() throws Exception {
        Path state = folder.resolve("state");
        Process first = start("--steps", "100000", "--report", "" + folder.resolve("r.jsonl"), "--save", "" + state);
        awaitLines(first, folder.resolve("r.jsonl.part"), 2);
        Process second = startAs("second-", "--steps", "2", "--save", state.toString());
        assertTrue(second.waitFor(10, TimeUnit.MINUTES));
        assertEquals(1, second.exitValue());
        assertEquals(
                "train: " + state + ": cannot be written: process " + first.pid() + " is writing it (" + state
                        + ".part is locked); wait for its end, or name another file",
                text("second-err").lines().toList().getLast());
        assertTrue(first.isAlive(), text("err"));
        kill(first, "KILL");
        assertTrue(first.waitFor(10, TimeUnit.MINUTES));
        assertFalse(Files.exists(state));
        second = startAs("second-", "--steps", "2", "--save", state.toString());
        assertTrue(second.waitFor(10, TimeUnit.MINUTES));
        assertEquals(0, second.exitValue(), text("second-err"));
        assertTrue(Files.exists(state) && !Files.exists(folder.resolve("state.part")));
    }

    @Test
    void aSecondRunWithTheSameReportIsRefusedAndTheFirstUnharmed() throws Exception {
        Path report = folder.resolve("r.jsonl");
        Process first = start("--steps", "100000", "--seed", "5", "--report", report.toString());
        awaitLines(first, folder.resolve("r.jsonl.part"), 2);
        Process second = startAs("second-", "--steps", "2", "--seed", "6", "--report", report.toString());
        assertTrue(second.waitFor(10, TimeUnit.MINUTES));
        assertEquals(1, second.exitValue());
        String refusal = "train: " + report + ": cannot be written: process " + first.pid() + " is writing it ("
                + report + ".part is locked); wait for its end, or name another file";
        assertEquals(refusal, text("second-err").lines().toList().getLast());
        assertTrue(first.isAlive(), text("err"));
        kill(first, "INT");
        assertTrue(first.waitFor(10, TimeUnit.MINUTES));
        assertEquals(130, first.exitValue(), text("err"));
        List<String> lines = Files.readAllLines(report);
        assertEquals(5, JSON.std.mapFrom(lines.getFirst()).get("seed"));
        for (int i = 1; i < lines.size(); i++) {
            assertEquals(i, JSON.std.mapFrom(lines.get(i)).get("step"));
        }
    }

    /** A pipe that nobody opens, and one that is opened and stays empty. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void ctrlCEndsTheWaitForDataAndKeepsAnOlderReport(boolean opened) throws Exception {
        Path pipe = folder.resolve("pipe.fasta");
        Path report = Files.writeString(folder.resolve("r.jsonl"), "older");
        assertEquals(
                0,
                new ProcessBuilder("mkfifo", pipe.toString())
                        .inheritIO()
                        .start()
                        .waitFor());
        Process process = start("--fasta", pipe.toString(), "--report", report.toString());
        // Opening a pipe to write waits for its reader.
        Process writer = opened ? new ProcessBuilder("sh", "-c", "exec sleep 100 >" + pipe).start() : null;
        while (process.isAlive() && !Files.exists(folder.resolve("r.jsonl.part"))) {
            Thread.sleep(20);
        }
        Thread.sleep(500);
        assertTrue(process.isAlive(), text("err"));
        kill(process, "INT");
        assertTrue(process.waitFor(1, TimeUnit.MINUTES), "still waits for data"); // which come after 100 s or never
        if (writer != null) {
            writer.destroy();
        }
        assertEquals(130, process.exitValue(), text("err"));
        assertEquals("older", Files.readString(report));
        assertTrue(text("out").contains("stopped after 0 of 200 steps"), text("out"));
        assertFalse(Files.exists(folder.resolve("r.jsonl.part")));
    }

    @Test
    void aFullStandardOutputEndsTheRunWithAReason() throws Exception {
        Process process = start("--steps", "3");
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals(0, process.exitValue(), text("err"));
        assertTrue(text("out").contains("getting ready: "), text("out"));
        out = Path.of("/dev/full");
        process = start("--steps", "3");
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals(1, process.exitValue(), text("err"));
        assertEquals(
                "train: standard output cannot be written: No space left on device; the run ends, since nothing would be"
                        + " left of it: ask for --save, --report or --plot",
                text("err").lines().toList().getLast());
    }

    @Test
    void aNameThatTheLocaleCannotExpressComesWithItsRemedy() throws Exception {
        byte[] name = "sé.fasta".getBytes(StandardCharsets.UTF_8);
        var octal = new StringBuilder();
        for (byte letter : name) {
            octal.append(String.format("\\%03o", letter & 0xff));
        }
        // Passed through a shell: the locale of this process may not express it either.
        environment = List.of("LC_ALL=C", "sh", "-c", "exec \"$@\" --fasta \"$(printf '" + octal + "')\"", "sh");
        Process process = start("--steps", "1");
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals(2, process.exitValue(), text("err"));
        assertEquals(
                "train: --fasta: the locale's character set, ANSI_X3.4-1968, lacks a letter of"
                        + " this name; begin the command with LC_ALL=C.UTF-8 (train --help lists the options)",
                text("err").strip());
        environment = List.of("LC_ALL=C.UTF-8", environment.get(1), environment.get(2), environment.get(3), "sh");
        process = start("--steps", "1");
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals(1, process.exitValue(), text("err"));
        assertTrue(text("err").contains("sé.fasta: there is no such file"), text("err"));
    }

    @Test
    void aPictureNeedsNoFolderForTemporaryFiles() throws Exception {
        temporary = folder.resolve("absent").toString();
        Path plot = folder.resolve("p.png");
        Process process = start("--steps", "2", "--plot", plot.toString());
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals(0, process.exitValue(), text("err"));
        assertTrue(Files.size(plot) > 1000);
    }

    @Test
    void aRunEndsWithStatus0AndAFailureWithStatus1() throws Exception {
        Path report = folder.resolve("r.jsonl");
        Process process = start("--steps", "3", "--report", report.toString());
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals(0, process.exitValue(), text("err"));
        List<String> lines = Files.readAllLines(report);
        assertEquals(4, lines.size());
        assertEquals("reference", JSON.std.mapFrom(lines.getFirst()).get("provider"));

        process = start("--steps", "3", "--report", "/dev/full");
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals(1, process.exitValue());
        assertTrue(text("err").contains("train: /dev/full: cannot be written: No space left on device"), text("err"));
        assertFalse(text("err").contains("\tat "), text("err"));

        // Standard output is a file here; the link to it must stay.
        process = start("--steps", "2", "--report", "/dev/stdout");
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals(1, process.exitValue());
        assertTrue(
                text("err")
                        .contains(
                                "train: /dev/stdout: cannot be written: it is a second name of a file that may be in use; "),
                text("err"));
        assertTrue(Files.isSymbolicLink(Path.of("/dev/stdout")));

        process = start("--fasta", folder.toString());
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals(1, process.exitValue());
        assertTrue(
                text("err").contains("train: " + folder + ": holds no FASTA file: none ends with .fasta, "),
                text("err"));
    }
}
