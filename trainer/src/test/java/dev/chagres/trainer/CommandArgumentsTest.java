package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Commands of {@code ./chagres} that take no argument leave none unread. */
@Tag("L0")
@Timeout(60)
class CommandArgumentsTest {
    @Test
    void doctorAndJdkTakeNone() throws IOException, InterruptedException {
        refused(
                "chagres: doctor takes no argument, got '--provider' (doctor --help says more)\n",
                "doctor",
                "--provider",
                "cuda");
        refused("chagres: jdk takes no argument, got '25' (jdk --help says more)\n", "jdk", "25");
    }

    private static void refused(String expected, String... arguments) throws IOException, InterruptedException {
        List<String> command =
                new ArrayList<>(List.of("sh", Path.of("..", "chagres").toString()));
        command.addAll(List.of(arguments));
        Process process = new ProcessBuilder(command).start();
        String told = new String(process.getErrorStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(2, process.waitFor(), told);
        assertEquals(expected, told);
    }
}
