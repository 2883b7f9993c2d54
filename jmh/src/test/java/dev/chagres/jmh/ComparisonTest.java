package dev.chagres.jmh;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Tag("L0")
class ComparisonTest {
    private static final String RIVAL = """
            {"tiny/bf16": {"ms": 5.5, "host_ms": 5.25, "kernels_ms": 0.2}, "tiny/fp8-delayed": {"ms": 6},
             "packed1280/bf16": {"ms": 3.5, "host_ms": 3.0}, "packed_lengths": [350, 1024]}""";
    private static final String OURS = """
            [{"benchmark": "dev.chagres.jmh.TransformerLayerBenchmark.enqueue", "params": {"shape": "TINY", "recipe": "BF16"},
              "primaryMetric": {"score": 250.0, "scoreUnit": "us/op"}},
             {"benchmark": "dev.chagres.jmh.TransformerLayerBenchmark.untilIdle", "params": {"shape": "TINY", "recipe": "BF16"},
              "primaryMetric": {"score": 275.0, "scoreUnit": "us/op"}},
             {"benchmark": "dev.chagres.jmh.TransformerLayerBenchmark.untilIdle",
              "params": {"shape": "TINY", "recipe": "FP8_DELAYED"}, "primaryMetric": {"score": 0.5, "scoreUnit": "ms/op"}},
             {"benchmark": "dev.chagres.jmh.TransformerLayerBenchmark.untilIdle",
              "params": {"shape": "CPU", "recipe": "BF16"}, "primaryMetric": {"score": 9e6, "scoreUnit": "ns/op"}},
             {"benchmark": "dev.chagres.jmh.GemmBenchmark.product", "primaryMetric": {"score": 1, "scoreUnit": "us/op"}}]""";

    @TempDir
    Path folder;

    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    private int compare(String... arguments) {
        return Comparison.run(
                arguments,
                new PrintStream(out, true, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8));
    }

    private String write(String name, String text) throws IOException {
        return Files.writeString(folder.resolve(name), text).toString();
    }

    @Test
    void printsEachCaseOfBoth() throws IOException {
        assertEquals(0, compare(write("rival.json", RIVAL), write("ours.json", OURS)), err::toString);
        assertEquals("""
                ms                             done      rival    times       host      rival    times
                tiny/bf16                     0.275      5.500    20.00      0.250      5.250    21.00
                tiny/fp8-delayed              0.500      6.000    12.00          -          -        -
                only ours: cpu/bf16
                only the rival's: packed1280/bf16
                """, out.toString(StandardCharsets.UTF_8).replace("\r\n", "\n"));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "[1] | expected an object of cases such as \"tiny/bf16\": {\"ms\": 5.4}, got [1]",
                "{} | expected cases such as \"tiny/bf16\": {\"ms\": 5.4}, got none",
                "{\"tiny/bf16\": 5} | expected an object in tiny/bf16, got 5",
                "{\"tiny/bf16\": {\"ms\": 0}} | tiny/bf16: ms: expected a number above 0, got 0",
                "{\"tiny/bf16\": {\"ms\": \"5\"}} | tiny/bf16: ms: expected a number above 0, got 5",
                "{\"tiny/bf16\": {\"ms\": 5, \"host_ms\": -1}} | tiny/bf16: host_ms: expected a number above 0, got -1"
            })
    void refusesTheRivals(String text, String expected) throws IOException {
        String file = write("rival.json", text);
        assertEquals(1, compare(file, write("ours.json", OURS)));
        assertEquals(
                "bench --compare: " + file + ": " + expected,
                err.toString(StandardCharsets.UTF_8).strip());
        assertEquals("", out.toString(StandardCharsets.UTF_8));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "{} | expected JMH's array of results (bench TransformerLayerBenchmark -rf json)",
                "[] | expected results of TransformerLayerBenchmark, got none",
                "[3] | expected JMH's results to be objects, got 3"
            })
    void refusesOurs(String text, String expected) throws IOException {
        String file = write("ours.json", text);
        assertEquals(1, compare(write("rival.json", RIVAL), file));
        assertEquals(
                "bench --compare: " + file + ": " + expected,
                err.toString(StandardCharsets.UTF_8).strip());
    }

    @Test
    void refusesOtherUnitsParametersAndCases() throws IOException {
        String rival = write("rival.json", RIVAL);
        String units = write("units.json", OURS.replace("us/op", "ops/s"));
        assertEquals(1, compare(rival, units));
        String text = err.toString(StandardCharsets.UTF_8);
        assertTrue(
                text.endsWith("tiny/bf16: expected ns/op, us/op, ms/op or s/op as scoreUnit, got ops/s"
                        + System.lineSeparator()),
                text);
        assertEquals(1, compare(rival, write("params.json", OURS.replace("\"shape\"", "\"form\""))));
        assertTrue(err.toString(StandardCharsets.UTF_8).contains("expected a text in params, shape, got null"));
        assertEquals(1, compare(write("other.json", "{\"huge/bf16\": {\"ms\": 1}}"), write("ours.json", OURS)));
        assertTrue(err.toString(StandardCharsets.UTF_8)
                .contains("[huge/bf16], got [tiny/bf16, tiny/fp8-delayed, cpu/bf16]"));
    }

    @Test
    void refusesFilesThatAreNoneAndWrongArguments() throws IOException {
        assertEquals(1, compare(folder.resolve("none.json").toString()));
        assertTrue(err.toString(StandardCharsets.UTF_8).contains("none.json: there is no such file"));
        assertEquals(1, compare(write("broken.json", "{\"tiny/bf16\": ")));
        assertTrue(err.toString(StandardCharsets.UTF_8).contains("broken.json: expected JSON: "));
        assertEquals(2, compare());
        assertTrue(err.toString(StandardCharsets.UTF_8).contains("expected RIVAL.json [OURS.json], got []"));
    }
}
