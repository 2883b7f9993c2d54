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
             {"benchmark": "dev.chagres.jmh.TransformerLayerBenchmark.backToBack", "params": {"shape": "TINY", "recipe": "BF16"},
              "primaryMetric": {"score": 220.0, "scoreUnit": "us/op"}},
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
                ms                                     done      rival    times   in a row    times       host      rival    times
                tiny/bf16                             0.275      5.500    20.00      0.220    25.00      0.250      5.250    21.00
                tiny/fp8-delayed                      0.500      6.000    12.00          -        -          -          -        -
                only ours: cpu/bf16
                only the rival's: packed1280/bf16
                """, out.toString(StandardCharsets.UTF_8).replace("\r\n", "\n"));
    }

    private static String result(String method, String params, int micros) {
        return "{\"benchmark\": \"dev.chagres.jmh.TransformerLayerBenchmark." + method + "\", \"params\": {" + params
                + "}, \"primaryMetric\": {\"score\": " + micros + ", \"scoreUnit\": \"us/op\"}}";
    }

    private static String params(String shape, String layout, String plan) {
        return "\"shape\": \"" + shape + "\", \"recipe\": \"BF16\", \"layout\": \"" + layout + "\", \"productPlan\": \""
                + plan + "\"";
    }

    /** Results that differ by other parameters stand in lines of their own, each beside the same of the rival's. */
    @Test
    void namesWhatElseDiffers() throws IOException {
        String ours = "["
                + String.join(
                        ",",
                        result("untilIdle", params("TINY", "DENSE", "MEASURED"), 1000),
                        result("untilIdle", params("TINY", "PACKED", "MEASURED"), 2000),
                        result("backToBack", params("TINY", "PACKED", "MEASURED"), 500),
                        result("untilIdle", params("TINY", "DENSE", "FIRST"), 4000),
                        result("untilIdle", params("ESM650M", "UNEVEN", "FIRST"), 1750))
                + "]";
        assertEquals(0, compare(write("rival.json", RIVAL), write("ours.json", ours)), err::toString);
        assertEquals("""
                ms                                     done      rival    times   in a row    times       host      rival    times
                tiny/bf16 dense measured              1.000      5.500     5.50          -        -          -      5.250        -
                tiny/bf16 packed measured             2.000      5.500     2.75      0.500    11.00          -      5.250        -
                tiny/bf16 dense first                 4.000      5.500     1.38          -        -          -      5.250        -
                packed1280/bf16 uneven first          1.750      3.500     2.00          -        -          -      3.000        -
                only the rival's: tiny/fp8-delayed
                """, out.toString(StandardCharsets.UTF_8).replace("\r\n", "\n"));
    }

    /** One case that was measured twice is not the later of the two. */
    @Test
    void refusesTwoResultsOfOneCase() throws IOException {
        String once = result("untilIdle", params("TINY", "DENSE", "FIRST"), 1000);
        String file = write("ours.json", "[" + once + "," + once + "]");
        assertEquals(1, compare(write("rival.json", RIVAL), file));
        assertEquals(
                "bench --compare: " + file + ": expected one result of untilIdle for a case, got two for tiny/bf16"
                        + " {layout=dense, productPlan=first}",
                err.toString(StandardCharsets.UTF_8).strip());
    }

    @Test
    void refusesAShapeThatIsNone() throws IOException {
        String file = write("ours.json", "[" + result("untilIdle", params("HUGE", "UNEVEN", "FIRST"), 1000) + "]");
        assertEquals(1, compare(write("rival.json", RIVAL), file));
        assertEquals(
                "bench --compare: " + file + ": expected one of [CPU, TINY, ESM650M, SEED4096] as shape, got huge",
                err.toString(StandardCharsets.UTF_8).strip());
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
