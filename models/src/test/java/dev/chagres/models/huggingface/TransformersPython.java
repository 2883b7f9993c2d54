package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** The Python with transformers that {@code -Dchagres.test.transformers} names. */
final class TransformersPython {
    private TransformersPython() {}

    /**
     * Runs a program of {@code src/test/vectors}.
     *
     * @param folder receives what it prints
     * @param arguments of the program, in text
     */
    static void run(Path folder, String program, Object... arguments) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(
                List.of(System.getProperty("chagres.test.transformers"), "src/test/vectors/" + program));
        for (Object argument : arguments) {
            command.add(argument.toString());
        }
        Path text = folder.resolve("python.txt");
        Process process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(text.toFile())
                .start();
        assertTrue(process.waitFor(10, TimeUnit.MINUTES));
        assertEquals(0, process.exitValue(), Files.readString(text));
    }
}
