package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** A run in eight bits whose scales come from earlier steps finds the first ones before its first step. */
@Tag("L0")
@Timeout(120)
class CalibratedStartTest {
    /** In so many tokens gradients are so small that scales of 1 lose 7 % of their norm. */
    private static final int TOKENS = 8192;

    @TempDir
    private Path folder;

    /** Returns the norm of the gradients of the first step. */
    private double norm(String name, List<String> more) throws IOException {
        Path report = folder.resolve(name + ".jsonl");
        List<String> arguments = new ArrayList<>(List.of(
                "--model=tiny", "--context=64", "--tokens-per-step=" + TOKENS, "--steps=1", "--report=" + report));
        arguments.addAll(more);
        var err = new ByteArrayOutputStream();
        int status = Train.run(
                DevicePlatform::open,
                new StandardOutput(new ByteArrayOutputStream(), StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments.toArray(String[]::new));
        assertEquals(0, status, () -> err.toString(StandardCharsets.UTF_8));
        for (String line : Files.readAllLines(report)) {
            Map<String, Object> one = JSON.std.mapFrom(line);
            if (one.containsKey("step")) {
                return ((Number) one.get("gradNorm")).doubleValue();
            }
        }
        throw new AssertionError("expected a step in the report, got none");
    }

    @ParameterizedTest
    @CsvSource({"1, --graph=on", "2, --strategy=zero3", "2, --strategy=pp"})
    void theFirstStepHasNearlyTheNormOf16Bits(int ranks, String option) throws IOException {
        DevicesNeeded.assume(ranks);
        List<String> options = ranks == 1 ? List.of(option) : List.of("--ranks=" + ranks, option, "--accumulate=2");
        double ratio =
                norm("fp8", plus(options, "--recipe=fp8-delayed")) / norm("bf16", plus(options, "--recipe=bf16"));
        assertTrue(Math.abs(ratio - 1) < 0.03, "norm of step 1 over that of BF16: " + ratio);
    }

    private static List<String> plus(List<String> options, String more) {
        List<String> all = new ArrayList<>(options);
        all.add(more);
        return all;
    }
}
