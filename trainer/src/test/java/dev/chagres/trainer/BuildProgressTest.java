package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What {@code ./chagres} says of a build where there is no terminal: a line for each part, never silence for minutes. */
@Tag("L0")
@Timeout(60)
class BuildProgressTest {
    @TempDir
    private Path folder;

    @Test
    void aLineForEachPartAndEachTwentiethOfTheNativeOne() throws IOException, InterruptedException {
        var log = new StringBuilder(
                "[INFO] Building Chagres bindings 0.1.0-SNAPSHOT                  [1/4]\n[INFO] other\n"
                        + "[INFO] Building Chagres native 0.1.0-SNAPSHOT                  [2/4]\n");
        for (int percent = 0; percent <= 100; percent++) {
            log.append(String.format("[%3d%%] Building CXX object%n", percent));
        }
        log.append("[INFO] Building Chagres 0.1.0-SNAPSHOT                  [3/4]\n");
        String told = progress(log.toString());
        var steps = new StringBuilder();
        for (int percent = 5; percent <= 100; percent += 5) {
            steps.append("  Chagres native ").append(percent).append("%\n");
        }
        assertEquals("  Chagres bindings\n  Chagres native\n" + steps + "  Chagres\n", told);
        assertEquals(log.toString(), Files.readString(folder.resolve("log")));
    }

    /** Runs the script's own function over the output of a build. */
    private String progress(String build) throws IOException, InterruptedException {
        String script = Files.readString(Path.of("..", "chagres"));
        Path program = Files.writeString(
                folder.resolve("progress"),
                "set -eu\n" + function(script, "say") + function(script, "show_progress") + "show_progress \"$1\"\n");
        Path input = Files.writeString(folder.resolve("build"), build);
        Process process = new ProcessBuilder(
                        "sh", program.toString(), folder.resolve("log").toString())
                .redirectInput(input.toFile())
                .start();
        String told = new String(process.getErrorStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor(), told);
        return told;
    }

    private static String function(String script, String name) {
        int begin = script.indexOf("\n" + name + "() {\n");
        return script.substring(begin, script.indexOf("\n}\n", begin) + 3);
    }
}
