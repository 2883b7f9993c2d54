package dev.chagres.checkpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DevicesNeeded;
import dev.chagres.conformance.ChildJvm;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.sharding.RankedRun.Span;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Programs that are killed while they save: what was published loads, and the next losses are those of a run that nobody killed. */
@Tag("L0")
class KilledSaveTest {
    @TempDir
    private Path folder;

    private static final class Killed {
        private final float[] expected;
        private final Random random;
        private final Path folder;
        private final int ranks;
        private final String way;

        Killed(float[] expected, Random random, Path folder, int ranks, String way) {
            this.expected = expected;
            this.random = random;
            this.folder = folder;
            this.ranks = ranks;
            this.way = way;
        }

        /** Starts a program, reads some of its lines, and kills it: where it is then is another place each time. */
        void once() throws IOException, InterruptedException {
            int lines = 1 + random.nextInt(4);
            int turns = random.nextInt(1 << 20);
            Process process = ChildJvm.of(
                            List.of("-Xmx256m"), KilledRuns.class, folder.toString(), Integer.toString(ranks), way)
                    .redirectErrorStream(true)
                    .start();
            try (BufferedReader reader = process.inputReader(StandardCharsets.UTF_8)) {
                for (int line = 0; line < lines; ) {
                    String text = reader.readLine();
                    assertTrue(text != null, "expected a program that trains until it is killed, got its end");
                    String[] words = text.split(" ");
                    switch (words[0]) {
                        case "loss" -> {
                            int step = Integer.parseInt(words[1]);
                            assertEquals(expected[step], Float.intBitsToFloat(Integer.parseInt(words[2])), text);
                            line++;
                        }
                        case "published" -> {
                            Path steps = Span.steps(folder.resolve("run" + words[1]));
                            assertTrue(KilledRuns.published(steps) >= Integer.parseInt(words[2]), text);
                            line++;
                        }
                        default -> assertTrue(!text.contains("xception"), text);
                    }
                }
                for (int turn = 0; turn < turns; turn++) {
                    Thread.onSpinWait();
                }
            } finally {
                process.destroyForcibly().waitFor();
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"1, 20, waiting", "3, 10, waiting", "1, 10, background", "3, 20, background"})
    void theLastPublishedOneGoesOnWithTheSameBits(int ranks, int kills, String way)
            throws IOException, InterruptedException {
        DevicesNeeded.assume(ranks);
        long seed = 11L * ranks + way.length();
        float[] expected = KilledRuns.train(ranks, new Span(0, KilledRuns.END, null, null));
        var killed = new Killed(expected, new Random(seed), folder, ranks, way);
        for (int i = 0; i < kills; i++) {
            killed.once();
        }
        try (Stream<Path> runs = Files.list(folder)) {
            for (Path run :
                    runs.filter(file -> file.toString().endsWith(".steps")).toList()) {
                for (long step : CheckpointFolder.of(run).steps()) {
                    try (SafetensorsFile whole =
                            SafetensorsFile.open(CheckpointFolder.of(run).step(step))) {
                        whole.verifyRest();
                        whole.entries().values().forEach(entry -> entry.verify());
                    }
                }
            }
        }
    }
}
