package dev.chagres.io;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

/** Several writers of one file: threads and processes. */
@Tag("L0")
@Timeout(1200)
class AtomicFileLockTest {
    @TempDir
    private Path folder;

    private Path name;
    private Path part;

    @BeforeEach
    void name() {
        name = folder.resolve("r.jsonl");
        part = folder.resolve("r.jsonl.part");
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void assertProblem(String text, Executable action) {
        assertEquals(text, assertThrows(UncheckedIOException.class, action).getMessage());
    }

    @Test
    void aSecondWriterOfThisProcessIsRefused() throws IOException {
        try (AtomicFile file = AtomicFile.create(name)) {
            file.append(bytes("a\n"));
            assertProblem(
                    name + ": cannot be written: this process is writing it (" + part
                            + " is locked); wait for its end, or name another file",
                    () -> AtomicFile.create(name));
            file.append(bytes("b\n"));
            file.publish();
        }
        assertEquals("a\nb\n", Files.readString(name));
        AtomicFile.create(name).close();
    }

    @Test
    void theLockOutlastsASecondWriterOfThisProcess() throws IOException, InterruptedException {
        try (AtomicFile file = AtomicFile.create(name)) {
            file.append(bytes("a\n"));
            assertThrows(UncheckedIOException.class, () -> AtomicFile.create(name));
            Process other = beginWriter();
            assertTrue(other.waitFor(10, TimeUnit.MINUTES));
            assertTrue(other.exitValue() != 0);
            file.publish();
        }
        assertEquals("a\n", Files.readString(name));
    }

    /** Writes a line, says so, and waits for its end. */
    static final class Writer {
        public static void main(String[] arguments) throws IOException {
            try (AtomicFile file = AtomicFile.create(Path.of(arguments[0]))) {
                file.append(bytes("of the other process\n"));
                System.out.println("ready");
                int end = System.in.read();
                if (end == 'p') {
                    file.publish();
                }
            }
        }
    }

    private Process startWriter() throws IOException {
        Process process = beginWriter();
        assertEquals("ready", process.inputReader().readLine());
        return process;
    }

    private Process beginWriter() throws IOException {
        return new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "-cp",
                        System.getProperty("java.class.path"),
                        Writer.class.getName(),
                        name.toString())
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
    }

    @Test
    void aSecondProcessIsRefusedByNameAndDisturbsNothing() throws Exception {
        Process process = startWriter();
        assertProblem(
                name + ": cannot be written: process " + process.pid() + " is writing it (" + part
                        + " is locked); wait for its end, or name another file",
                () -> AtomicFile.create(name));
        process.getOutputStream().write('p');
        process.getOutputStream().flush();
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals("of the other process\n", Files.readString(name));
        try (AtomicFile file = AtomicFile.create(name)) {
            file.append(bytes("mine\n"));
            file.publish();
        }
        assertEquals("mine\n", Files.readString(name));
    }

    @Test
    void theLockOfAKilledProcessHoldsNobodyUp() throws Exception {
        Process process = startWriter();
        process.destroyForcibly();
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        try (AtomicFile file = AtomicFile.create(name)) {
            file.publish();
        }
        assertEquals("", Files.readString(name));
    }

    /** Publishing, opening and discarding at full speed: a published file is never emptied by the one who comes next. */
    @Test
    void whoMeetsThePublishingOfAnotherLeavesThatFileAlone() throws Exception {
        var failure = new Throwable[1];
        Thread other = Thread.ofPlatform().start(() -> {
            try {
                for (int i = 0; i < 2_000; i++) {
                    writeOnce("other\n");
                }
            } catch (IOException | RuntimeException | AssertionError e) {
                failure[0] = e;
            }
        });
        for (int i = 0; i < 2_000; i++) {
            writeOnce("mine\n");
        }
        other.join();
        assertEquals(null, failure[0]);
    }

    private void writeOnce(String text) throws IOException {
        try (AtomicFile file = AtomicFile.create(name)) {
            file.append(bytes(text));
            file.publish();
        } catch (UncheckedIOException e) {
            assertTrue(e.getMessage().contains(" is writing it "), e.getMessage());
        }
        if (Files.exists(name)) {
            assertTrue(Files.size(name) > 0, "a published file was emptied");
        }
    }
}
