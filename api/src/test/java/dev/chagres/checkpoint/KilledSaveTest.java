package dev.chagres.checkpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.Provider;
import dev.chagres.conformance.ChildJvm;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.sharding.RankedRun.Span;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.stream.Stream;
import org.junit.jupiter.api.Assumptions;
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
        private final List<String> options;

        Killed(float[] expected, Random random, Path folder, int ranks, String way, List<String> options) {
            this.options = options;
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
            Process process = ChildJvm.of(options, KilledRuns.class, folder.toString(), Integer.toString(ranks), way)
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

    /** Many more kills than in a build: so many of each line, of which {@link #COUNTS} has those that were made. */
    private static final int MANY = Integer.getInteger("chagres.test.kills", 0);

    /** Of several calls at a time each has another. */
    private static final int SEED = Integer.getInteger("chagres.test.kills.seed", 0);

    private static final String COUNTS = "kills.txt";
    /** After so many kills what was published is read, and whole runs are removed. */
    private static final int BETWEEN = 50;

    @ParameterizedTest
    @CsvSource({"1, 20, waiting", "3, 10, waiting", "1, 10, background", "3, 20, background"})
    void theLastPublishedOneGoesOnWithTheSameBits(int ranks, int kills, String way)
            throws IOException, InterruptedException {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "the programs run on the reference");
        String kept = System.getProperty("chagres.test.kills.folder");
        Path all = kept == null ? folder : Files.createDirectories(Path.of(kept));
        Path own = Files.createDirectories(all.resolve(way + ranks));
        Path counts = all.resolve(COUNTS);
        int made = Files.exists(counts) ? count(counts, ranks + " " + way) : 0;
        float[] expected = KilledRuns.train(ranks, new Span(0, KilledRuns.END, null, null));
        var random = new Random(11L * ranks + way.length() + made + 1_000_003L * SEED);
        List<String> options = kept == null ? List.of("-Xmx256m") : withArchive(all);
        var killed = new Killed(expected, random, own, ranks, way, options);
        for (int i = made + 1; i <= Math.max(kills, MANY); i++) {
            killed.once();
            Files.writeString(counts, ranks + " " + way + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            if (i % BETWEEN == 0) {
                readAll(own);
            }
        }
        readAll(own);
    }

    /** Many programs begin sooner with their classes in an archive, which a JVM makes of jars alone. */
    private static List<String> withArchive(Path folder) throws IOException, InterruptedException {
        Path archive = folder.resolve("classes.jsa");
        if (!Files.exists(archive)) {
            ChildJvm.of(
                            List.of("-XX:ArchiveClassesAtExit=" + archive),
                            KilledRuns.class,
                            folder.toString(),
                            "1",
                            "once")
                    .redirectErrorStream(true)
                    .redirectOutput(folder.resolve("classes.log").toFile())
                    .start()
                    .waitFor();
        }
        return Files.exists(archive) ? List.of("-Xmx256m", "-XX:SharedArchiveFile=" + archive) : List.of("-Xmx256m");
    }

    private static int count(Path counts, String line) throws IOException {
        return (int) Files.readAllLines(counts).stream().filter(line::equals).count();
    }

    /** Reads every byte that was published, and removes runs that have all their steps. */
    private static void readAll(Path folder) throws IOException {
        List<Path> runs;
        try (Stream<Path> files = Files.list(folder)) {
            runs = files.filter(file -> file.toString().endsWith(".steps")).toList();
        }
        for (Path run : runs) {
            for (long step : CheckpointFolder.of(run).steps()) {
                try (SafetensorsFile whole =
                        SafetensorsFile.open(CheckpointFolder.of(run).step(step))) {
                    whole.verifyRest();
                    whole.entries().values().forEach(entry -> entry.verify());
                }
            }
            if (KilledRuns.published(run) == KilledRuns.END) {
                try (Stream<Path> files = Files.walk(run)) {
                    for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                        Files.delete(file);
                    }
                }
            }
        }
    }
}
