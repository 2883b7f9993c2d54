package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
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
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/**
 * Times and bytes by rank in the report. {@code tiny} in FP32 has H = 64 columns, a vocabulary of V = 64 rows, and
 * <ul>
 *   <li>2 layers: products of 3 H H, H H, 4 H H and 4 H H weights, their 9 H biases, 2 norms of 2 H
 *   <li>a norm of 2 H, and a head of H H + H, a norm of 2 H, and a bias of V
 *   <li>the embedding of V H, which the head has, too
 * </ul>
 *
 * In the first step ranks also tell each other what stays the same; weights of {@code zero3} are there since the warm-up.
 */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class ByRankTest {
    private static final long FLOAT = 4;
    private static final long H = 64;
    private static final long EMBEDDING = 64 * H;
    private static final long LAYER = 12 * H * H + 9 * H + 4 * H;
    private static final long NORM_AND_HEAD = 2 * H + H * H + H + 2 * H + 64;
    private static final long ALL = EMBEDDING + 2 * LAYER + NORM_AND_HEAD;
    /** Each of two ranks says a norm. */
    private static final long NORMS = 2 * FLOAT;

    @TempDir
    private Path folder;

    private final ByteArrayOutputStream out = new ByteArrayOutputStream();

    /** A rank of a step: its milliseconds, its bytes by operation, and the tokens of the whole step. */
    private record Line(double millis, Map<String, Object> bytes, long tokens) {
        long moved(String operation) {
            return ((Number) bytes.getOrDefault(operation, 0)).longValue();
        }

        void assertMoved(Map<String, Long> expected) {
            assertEquals(expected.keySet(), bytes.keySet());
            expected.forEach((operation, moved) -> assertEquals(moved, moved(operation), operation));
        }
    }

    /** Runs three steps, and returns what the second and the third say of each rank. */
    private List<List<Line>> steps(int ranks, String... options) throws IOException {
        DevicesNeeded.assume(ranks);
        Path report = folder.resolve("r.jsonl");
        List<String> words = new ArrayList<>(List.of(options));
        words.addAll(List.of("--model", "tiny", "--recipe", "fp32", "--steps", "3", "--context", "256"));
        words.addAll(List.of("--tokens-per-step", "1024", "--report", report.toString()));
        assertEquals(
                0,
                Train.run(
                        DevicePlatform.opener(),
                        new StandardOutput(out, StandardCharsets.UTF_8),
                        new PrintStream(out, true, StandardCharsets.UTF_8),
                        words.toArray(String[]::new)),
                out.toString(StandardCharsets.UTF_8));
        List<List<Line>> steps = new ArrayList<>();
        for (String line : Files.readAllLines(report).subList(2, 4)) {
            Map<String, Object> step = JSON.std.mapFrom(line);
            List<Line> ofRanks = new ArrayList<>();
            for (Object each : (List<?>) Objects.requireNonNull(step.get("byRank"))) {
                Map<?, ?> rank = (Map<?, ?>) each;
                assertEquals(ofRanks.size(), rank.get("rank"));
                ofRanks.add(new Line(
                        ((Number) Objects.requireNonNull(rank.get("stepMillis"))).doubleValue(),
                        asBytes(rank.get("bytes")),
                        ((Number) step.get("paddedTokens")).longValue()));
            }
            assertEquals(ranks, ofRanks.size());
            assertEquals(
                    ((Number) step.get("stepMillis")).doubleValue(),
                    ofRanks.stream().mapToDouble(Line::millis).max().orElseThrow());
            assertTrue(ofRanks.stream().allMatch(rank -> rank.millis > 0));
            steps.add(ofRanks);
        }
        return steps;
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> asBytes(Object bytes) {
        return (Map<String, Object>) bytes;
    }

    @Test
    void dataParallelRanksSumGradients() throws IOException {
        for (List<Line> step : steps(2, "--ranks", "2")) {
            step.forEach(rank -> rank.assertMoved(Map.of("allReduce", FLOAT * ALL)));
        }
        String moved = String.format(Locale.ROOT, "%,.1f MiB", 3 * FLOAT * ALL / 1048576.0);
        String told = out.toString(StandardCharsets.UTF_8);
        assertTrue(told.lines().anyMatch(line -> line.matches("rank 0: [0-9.]+ s, allReduce " + moved)), told);
        assertTrue(told.lines().anyMatch(line -> line.matches("rank 1: [0-9.]+ s, allReduce " + moved)), told);
    }

    @Test
    void sixteenBitGradientsAreHalfAsManyBytes() throws IOException {
        for (List<Line> step : steps(2, "--ranks", "2", "--reduce-dtype", "bf16")) {
            step.forEach(rank -> rank.assertMoved(Map.of("allReduce", 2 * ALL)));
        }
    }

    @Test
    void shardedRanksGatherWeightsAndScatterGradients() throws IOException {
        for (List<Line> step : steps(2, "--ranks", "2", "--strategy", "zero3")) {
            step.forEach(
                    rank -> rank.assertMoved(Map.of("allGather", FLOAT * ALL + NORMS, "reduceScatter", FLOAT * ALL)));
        }
    }

    /** Forward and backward of two branches a layer, the embedding, and the head's gradient; of a token's scores maximum, sum and label. */
    private static long splitLayers(long tokens) {
        return FLOAT * tokens * (2 * 4 * H + H + H + 3);
    }

    @Test
    void tensorParallelRanksSumActivations() throws IOException {
        for (List<Line> step : steps(2, "--ranks", "2", "--strategy", "tp")) {
            step.forEach(rank -> rank.assertMoved(Map.of("allReduce", splitLayers(rank.tokens), "allGather", NORMS)));
        }
    }

    /** Of its half of the tokens a rank sends the other one's half of the heads: queries, keys, values, results, and their gradients. */
    @Test
    void contextParallelRanksExchangeHeads() throws IOException {
        for (List<Line> step : steps(2, "--ranks", "2", "--form=nvidia", "--strategy", "cp")) {
            for (Line rank : step) {
                long heads = 2 * 8 * FLOAT * rank.tokens / 2 * H / 2;
                rank.assertMoved(Map.of("allReduce", FLOAT * ALL, "send", heads, "receive", heads));
            }
        }
    }

    @Test
    void pipelineRanksSendActivationsAndSumTheSharedEmbedding() throws IOException {
        for (List<Line> step : steps(2, "--ranks", "2", "--strategy", "pp")) {
            for (Line rank : step) {
                long tokens = FLOAT * rank.tokens * H;
                rank.assertMoved(
                        Map.of("allReduce", FLOAT * EMBEDDING, "allGather", NORMS, "send", tokens, "receive", tokens));
            }
        }
    }

    /** Biases behind sums, norms and the head's product are on all ranks that split layers; of the rest each has half. */
    @Test
    void ranksOfAProductDoBoth() throws IOException {
        long whole = 2 * (2 * H + 4 * H) + 2 * H + H * H + H + 2 * H;
        long own = whole + (ALL - whole) / 2;
        for (List<Line> step : steps(4, "--mesh", "shard=2,tensor=2")) {
            for (Line rank : step) {
                assertEquals(FLOAT * own + 2 * NORMS, rank.moved("allGather"));
                assertEquals(FLOAT * own, rank.moved("reduceScatter"));
            }
            // Ranks 0 and 1 have one micro-batch, 2 and 3 the other.
            assertEquals(step.get(0).bytes, step.get(1).bytes);
            assertEquals(step.get(2).bytes, step.get(3).bytes);
            assertEquals(
                    splitLayers(step.getFirst().tokens),
                    step.get(0).moved("allReduce") + step.get(2).moved("allReduce"));
        }
    }

    @Test
    void copiesOfAPipelineSumEachStagesGradients() throws IOException {
        for (List<Line> step : steps(4, "--mesh", "pipeline=2,replicate=2")) {
            for (int i = 0; i < 4; i++) {
                long stage = EMBEDDING + LAYER + (i < 2 ? 0 : NORM_AND_HEAD);
                assertEquals(FLOAT * (stage + EMBEDDING), step.get(i).moved("allReduce"));
                assertEquals(step.get(i).moved("send"), step.get(i).moved("receive"));
            }
            assertEquals(
                    FLOAT * step.getFirst().tokens * H,
                    step.get(0).moved("send") + step.get(1).moved("send"));
        }
    }

    @Test
    void oneRankHasNoList() throws IOException {
        Path report = folder.resolve("one.jsonl");
        assertEquals(
                0,
                Train.run(
                        DevicePlatform.opener(),
                        new StandardOutput(out, StandardCharsets.UTF_8),
                        new PrintStream(out, true, StandardCharsets.UTF_8),
                        "--model",
                        "tiny",
                        "--steps",
                        "1",
                        "--report",
                        report.toString()));
        assertNull(JSON.std.mapFrom(Files.readAllLines(report).getLast()).get("byRank"));
    }

    private int train(String options) {
        return Train.run(
                DevicePlatform.opener(),
                new StandardOutput(out, StandardCharsets.UTF_8),
                new PrintStream(out, true, StandardCharsets.UTF_8),
                options.split(" "));
    }

    @Test
    void stepsAreRecordedOnEachRank() throws IOException {
        DevicesNeeded.assume(2);
        Path to = folder.resolve("profile");
        int status = train("--model tiny --recipe fp32 --steps 7 --tokens-per-step 512 --context 64 --ranks 2"
                + " --strategy zero2 --profile 2 --profile-out " + to);
        String told = out.toString(StandardCharsets.UTF_8);
        assertEquals(0, status, told);
        assertTrue(told.contains("profile of 2 steps: " + to.resolve("kernels.txt")), told);
        Map<String, Object> trace = JSON.std.mapFrom(Files.readString(to.resolve("trace.json")));
        // Each of two ranks makes a step's update twice.
        assertEquals(
                4,
                ((List<?>) trace.get("traceEvents"))
                        .stream()
                                .filter(event ->
                                        ((Map<?, ?>) event).get("name").equals("gradients' norm and optimizer"))
                                .count());
    }

    @Test
    void profilesRefuseWrongOptions() {
        assertEquals(2, train("--profile 0"));
        assertEquals(2, train("--profile-out here"));
        String told = out.toString(StandardCharsets.UTF_8);
        assertTrue(told.contains("--profile: expected at least 1, got 0"), told);
        assertTrue(told.contains("--profile-out: expected --profile beside it, got none"), told);
    }
}
