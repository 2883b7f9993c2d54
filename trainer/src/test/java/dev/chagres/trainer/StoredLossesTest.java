package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/**
 * The default run on a CPU against one of version 686dc99, which had no groups and drew first weights one after the other:
 * laid out and drawn as then, each of the 200 losses and gradient norms has the same bits.
 *
 * <p>The run is a process of its own on the reference, with OpenBLAS's kernels for AVX2: those that OpenBLAS chooses by itself
 * for another processor may add in another order.
 */
@Tag("L0")
@Timeout(600)
class StoredLossesTest {
    private static final String STORED = "/vectors/losses_686dc99.txt";

    @TempDir
    private Path folder;

    @Test
    void repeatsTheLossesOfTheVersionWithoutGroups() throws Exception {
        assumeTrue(hasAvx2(), "the stored losses are of OpenBLAS's kernels for AVX2, which this processor lacks");
        List<String> stored = stored();
        List<Map<String, Object>> steps = train(stored.size());
        var differing = new ArrayList<String>();
        for (int i = 0; i < stored.size(); i++) {
            String actual = bits(steps.get(i), "loss") + " " + bits(steps.get(i), "gradNorm");
            if (!actual.equals(stored.get(i))) {
                differing.add("step " + (i + 1) + ": expected " + stored.get(i) + ", got " + actual);
            }
        }
        assertTrue(
                differing.isEmpty(),
                () -> differing.size() + " of " + stored.size() + " steps differ, the first is "
                        + differing.getFirst());
    }

    private static boolean hasAvx2() throws IOException {
        String processor = Files.readString(Path.of("/proc/cpuinfo"));
        return processor.contains(" avx2 ") && processor.contains(" fma ");
    }

    private static List<String> stored() throws IOException {
        try (InputStream file = StoredLossesTest.class.getResourceAsStream(STORED)) {
            byte[] bytes = Objects.requireNonNull(file, STORED).readAllBytes();
            List<String> lines = new String(bytes, StandardCharsets.UTF_8)
                    .lines()
                    .filter(line -> !line.startsWith("#"))
                    .toList();
            assertEquals(200, lines.size());
            return lines;
        }
    }

    /** The report has the shortest number that tells a float from its neighbours: its bits come back. */
    private static String bits(Map<String, Object> step, String key) {
        return Float.toHexString(((Number) step.get(key)).floatValue());
    }

    private List<Map<String, Object>> train(int steps) throws Exception {
        Path report = folder.resolve("r.jsonl");
        Path output = folder.resolve("out");
        List<String> arguments = List.of(
                "--steps",
                Integer.toString(steps),
                "--recipe",
                "fp32",
                "--form",
                "nvidia",
                "--report",
                report.toString());
        List<String> command = TrainJvm.command(List.of(), List.of("-Xmx1g"), UngroupedTraining.class, arguments);
        var builder = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(output.toFile());
        builder.environment().put("OPENBLAS_CORETYPE", "Haswell");
        Process process = builder.start();
        try {
            assertTrue(process.waitFor(540, TimeUnit.SECONDS), "the run has not ended after 540 s");
        } finally {
            process.destroyForcibly();
        }
        assertEquals(0, process.exitValue(), Files.readString(output));
        var lines = new ArrayList<Map<String, Object>>();
        for (String line : Files.readAllLines(report)) {
            lines.add(JSON.std.mapFrom(line));
        }
        assertEquals(steps + 1, lines.size());
        return lines.subList(1, lines.size());
    }
}
