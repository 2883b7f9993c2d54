package dev.chagres.trainer.command;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** A process of {@code embed} is killed while it writes, and another one ends its work. */
@Tag("L0")
@Timeout(120)
class EmbedKillTest {
    private static final int PROTEINS = 600;
    private static final int LEAST = 20;

    @TempDir
    private Path temporary;

    private Process start(SmallModel model, String... options) throws IOException {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        String natives = System.getProperty("chagres.native.path");
        if (natives != null) {
            command.add("-Dchagres.native.path=" + natives);
        }
        command.addAll(List.of(
                "--enable-native-access=ALL-UNNAMED",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-Xmx128m",
                "-cp",
                System.getProperty("java.class.path"),
                Embed.class.getName(),
                "--model=" + model.folder()));
        command.addAll(List.of(options));
        return new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(temporary.resolve("told").toFile())
                .start();
    }

    private static long lines(Path file) throws IOException {
        return Files.exists(file)
                ? Files.readString(file).chars().filter(c -> c == '\n').count()
                : 0;
    }

    @Test
    void anotherProcessEndsTheWork() throws IOException, InterruptedException {
        SmallModel model = new SmallModel(temporary);
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < PROTEINS; i++) {
            text.append(">P")
                    .append(i)
                    .append("\nMKTAYIAKQR")
                    .append("ACDEFGHIK", 0, i % 9)
                    .append('\n');
        }
        Files.writeString(model.fasta(), text);
        Path out = temporary.resolve("killed.npy");
        Path index = temporary.resolve("killed.npy.jsonl.part");
        String[] options = {"--fasta=" + model.fasta(), "--batch-tokens=1", "--rows=tokens", "--out=" + out};
        Process process = start(model, options);
        while (lines(index) <= LEAST && process.isAlive()) {
            TimeUnit.MILLISECONDS.sleep(5);
        }
        process.destroyForcibly().waitFor();
        assertFalse(Files.exists(out), () -> "it was done already, or failed: " + temporary.resolve("told"));
        assertEquals(0, model.run(Embed::run, options), model::told);
        Matcher told = Pattern.compile("going on after (\\d+) of 600 proteins").matcher(model.told());
        assertTrue(told.find() && Integer.parseInt(told.group(1)) >= LEAST, model::told);
        Path whole = temporary.resolve("whole.npy");
        options[3] = "--out=" + whole;
        assertEquals(0, model.run(Embed::run, options), model::told);
        assertArrayEquals(Files.readAllBytes(whole), Files.readAllBytes(out));
    }
}
