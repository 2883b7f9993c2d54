package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The commands of several ranks on their page about training have options that fit each other on a CPU. */
@Tag("L0")
class TrainingPageTest {
    private static final Path PAGE = Path.of("").toAbsolutePath().getParent().resolve("docs/training-ranks.md");
    private static final String COMMAND = "./chagres train ";

    @Test
    void itsCommandsOfSeveralRanksAreAccepted() throws IOException {
        List<String> commands = Files.readAllLines(PAGE).stream()
                .filter(line -> line.startsWith(COMMAND))
                .filter(line -> line.contains(" --ranks ") || line.contains(" --mesh "))
                .toList();
        assertTrue(commands.size() >= 5, () -> PAGE + " has " + commands);
        for (String command : commands) {
            List<String> words =
                    new ArrayList<>(List.of(command.substring(COMMAND.length()).split(" ", -1)));
            words.addAll(List.of("--steps", "1"));
            var told = new ByteArrayOutputStream();
            int status = Train.run(
                    FakePlatform::new,
                    new StandardOutput(told, StandardCharsets.UTF_8),
                    new PrintStream(told, true, StandardCharsets.UTF_8),
                    words.toArray(String[]::new));
            assertEquals(0, status, () -> command + ": " + told.toString(StandardCharsets.UTF_8));
        }
    }
}
