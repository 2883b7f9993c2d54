package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** {@code --recompute} through the whole program: the same losses and norms, bit for bit, in less memory. */
@Tag("L0")
class RecomputationTest {
    private static final String MEMORY = "memoryBytes";

    @TempDir
    private Path folder;

    private List<Map<String, Object>> train(String recompute, String... more) throws IOException {
        Path report = folder.resolve("r.jsonl");
        var err = new ByteArrayOutputStream();
        var arguments = new ArrayList<>(
                List.of("--warm-up-steps=0", "--context=128", "--recompute=" + recompute, "--report=" + report));
        arguments.addAll(List.of(more));
        int status = Train.run(
                DevicePlatform::open,
                new StandardOutput(OutputStream.nullOutputStream(), StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments.toArray(String[]::new));
        assertEquals(0, status, err.toString(StandardCharsets.UTF_8));
        var lines = new ArrayList<Map<String, Object>>();
        for (String line : Files.readAllLines(report)) {
            lines.add(JSON.std.mapFrom(line));
        }
        assertEquals(recompute, lines.removeFirst().get("recompute"));
        return lines;
    }

    private static List<Object> numbers(List<Map<String, Object>> steps) {
        return steps.stream()
                .<Object>map(step -> step.get("loss") + " " + step.get("gradNorm"))
                .toList();
    }

    private void assertSame(String given) throws IOException {
        String[] options = ("--model=tiny --steps=4 " + given).split(" ");
        List<Object> expected = numbers(train("none", options));
        for (String recompute : List.of("norms", "layers")) {
            assertEquals(expected, numbers(train(recompute, options)), recompute);
        }
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "--recipe=fp32",
                "--recipe=bf16 --accumulate=2",
                "--recipe=fp16",
                "--recipe=fp8-delayed",
                "--recipe=fp8-block",
                "--recipe=fp32 --graph=on",
                "--recipe=bf16 --packing=off"
            })
    void lossesOfOneRankHaveTheSameBits(String options) throws IOException {
        assertSame(options);
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "--strategy=zero3 --recipe=fp32",
                "--strategy=zero3 --recipe=fp8-current",
                "--strategy=zero3 --recipe=bf16 --reshard=after-step",
                "--strategy=ddp --recipe=bf16",
                "--strategy=tp --sequence-parallel --recipe=bf16",
                "--strategy=tp --sequence-parallel --recipe=fp8-block",
                "--form=nvidia --strategy=cp --cp-comm-type=p2p --recipe=fp32",
                "--strategy=pp --accumulate=4 --recipe=bf16"
            })
    void lossesOfTwoRanksHaveTheSameBits(String options) throws IOException {
        DevicesNeeded.assume(2);
        assertSame("--ranks=2 " + options);
    }

    /** Of six layers: with fewer, whole chunks of memory hide what they do not keep. */
    @Test
    void takesLessMemory() throws IOException {
        List<Long> bytes = new ArrayList<>();
        for (String recompute : List.of("none", "norms", "layers")) {
            Object most = train(recompute, "--model=8M", "--recipe=bf16", "--tokens-per-step=2048", "--steps=1")
                    .getLast()
                    .get(MEMORY);
            bytes.add(((Number) most).longValue());
        }
        assertTrue(bytes.get(1) < bytes.get(0) && bytes.get(2) < bytes.get(1), bytes.toString());
    }
}
