package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.bindings.Provider;
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
import java.util.Random;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * {@code --accumulate} and {@code --ranks} through the whole program: the same sequences in one micro-batch, in several, and on
 * several ranks give the same steps.
 *
 * <p>Every sequence fills the context, so that each micro-batch of a step has the sequences that the whole would have there;
 * their labelled tokens differ, as they are drawn.
 */
@Tag("L0")
class AccumulationTest {
    private static final int CONTEXT = 64;

    /** Products on CUDA run as TF32: a last bit that differs may become one of 2^-11 of an operand. */
    private static final boolean CUDA = Provider.current() == Provider.CUDA;

    private static final double LOSS_TOLERANCE = CUDA ? 1e-3 : 1e-5;
    private static final double NORM_TOLERANCE = CUDA ? 1e-2 : 1e-4;

    @TempDir
    private Path folder;

    private Path fasta;

    @BeforeEach
    void write() throws IOException {
        var random = new Random(6);
        var text = new StringBuilder();
        for (int i = 0; i < 100; i++) {
            text.append(">s").append(i).append('\n');
            int length = CONTEXT - 2 + random.nextInt(40);
            // Half of the sequences are of few letters, which are soon learned: the losses of micro-batches differ.
            int letters = i % 2 == 0 ? 2 : 20;
            for (int r = 0; r < length; r++) {
                text.append("LAGVSERTIDPKQNFYMHWC".charAt(random.nextInt(letters)));
            }
            text.append('\n');
        }
        fasta = Files.writeString(folder.resolve("x.fasta"), text);
    }

    private List<Map<String, Object>> train(int microBatches, String packing) throws IOException {
        return train(microBatches, packing, new String[0]);
    }

    private List<Map<String, Object>> train(int microBatches, int ranks, String packing) throws IOException {
        return train(microBatches, ranks, RankStrategy.DDP, packing);
    }

    private List<Map<String, Object>> train(int microBatches, int ranks, RankStrategy strategy, String packing)
            throws IOException {
        return train(microBatches, packing, "--ranks=" + ranks, "--strategy=" + strategy);
    }

    private List<Map<String, Object>> train(int microBatches, String packing, String... more) throws IOException {
        DevicesNeeded.assumeFor(more);
        Path report = folder.resolve("r.jsonl");
        var err = new ByteArrayOutputStream();
        var arguments = new ArrayList<>(List.of(
                "--model=tiny",
                "--steps=5",
                "--warm-up-steps=0",
                "--fasta=" + fasta,
                "--context=" + CONTEXT,
                "--tokens-per-step=1024",
                "--packing=" + packing,
                "--accumulate=" + microBatches,
                "--report=" + report));
        arguments.addAll(List.of(more));
        if (arguments.stream().noneMatch(argument -> argument.startsWith("--recipe="))) {
            arguments.add("--recipe=fp32");
        }
        int status = Train.run(
                DevicePlatform::open,
                new StandardOutput(OutputStream.nullOutputStream(), StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments.toArray(String[]::new));
        assertEquals(0, status, err.toString(StandardCharsets.UTF_8));
        var steps = new ArrayList<Map<String, Object>>();
        for (String line : Files.readAllLines(report)) {
            steps.add(JSON.std.mapFrom(line));
        }
        return steps.subList(1, steps.size());
    }

    private static double number(Map<String, Object> step, String key) {
        return ((Number) step.get(key)).doubleValue();
    }

    private static void compare(List<Map<String, Object>> expected, List<Map<String, Object>> actual) {
        assertEquals(5, actual.size());
        for (int i = 0; i < 5; i++) {
            assertEquals(1024, number(actual.get(i), "tokens"));
            double loss = number(expected.get(i), "loss");
            assertEquals(loss, number(actual.get(i), "loss"), LOSS_TOLERANCE * loss, "loss of step " + (i + 1));
            double norm = number(expected.get(i), "gradNorm");
            assertEquals(norm, number(actual.get(i), "gradNorm"), NORM_TOLERANCE * norm, "norm of step " + (i + 1));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"on", "off"})
    void microBatchesGiveTheStepsOfTheWhole(String packing) throws IOException {
        List<Map<String, Object>> whole = train(1, packing);
        for (int microBatches : new int[] {2, 4, 16}) {
            compare(whole, train(microBatches, packing));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"on", "off"})
    @Tag("L2")
    void ranksGiveTheStepsOfMicroBatches(String packing) throws IOException {
        List<Map<String, Object>> one = train(4, packing);
        compare(one, train(1, 4, packing));
        compare(one, train(2, 2, packing));
    }

    @ParameterizedTest
    @EnumSource(
            value = RankStrategy.class,
            names = {"ZERO1", "ZERO2", "ZERO3"})
    @Tag("L2")
    void ranksThatShareTheModelOutTakeTheSameSteps(RankStrategy strategy) throws IOException {
        List<Map<String, Object>> one = train(4, "on");
        compare(one, train(1, 4, strategy, "on"));
        compare(one, train(2, 2, strategy, "on"));
    }

    /** Weights of 16 bits round to others where sums have another order. */
    @ParameterizedTest
    @CsvSource({"fp8-delayed, ddp", "fp8-current, zero1", "fp8-block, zero2", "fp8-delayed, zero3"})
    @Tag("L2")
    void ranksThatComputeInEightBitsTakeTheSameSteps(String recipe, String strategy) throws IOException {
        List<Map<String, Object>> one = train(2, "on", "--recipe=" + recipe);
        List<Map<String, Object>> two = train(1, "on", "--recipe=" + recipe, "--ranks=2", "--strategy=" + strategy);
        for (int i = 0; i < one.size(); i++) {
            double loss = number(one.get(i), "loss");
            assertEquals(loss, number(two.get(i), "loss"), 1e-2 * loss, "loss of step " + (i + 1));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"each-copy", "all-ranks"})
    @Tag("L2")
    void shardedCopiesTakeTheSameSteps(String optimizer) throws IOException {
        List<Map<String, Object>> one = train(4, "on");
        compare(one, train(1, "on", "--mesh=replicate=2,shard=2", "--shard-optimizer=" + optimizer));
        compare(one, train(1, "on", "--ranks=4", "--strategy=hsdp", "--shard-optimizer=" + optimizer));
    }

    @Test
    @Tag("L2")
    void ranksThatKeepWeightsForAStepTakeTheSameSteps() throws IOException {
        compare(
                train(4, "on"),
                train(
                        2,
                        "on",
                        "--ranks=2",
                        "--strategy=zero3",
                        "--reshard=after-step",
                        "--gradient-sync=last-micro-batch"));
    }

    /** A single rank has nothing to shard. */
    @ParameterizedTest
    @EnumSource(RankStrategy.class)
    void oneRankTakesTheStepsOfOneWhateverItsStrategy(RankStrategy strategy) throws IOException {
        List<Map<String, Object>> one = train(2, "on");
        List<Map<String, Object>> named = train(2, 1, strategy, "on");
        assertEquals(one.size(), named.size());
        for (int i = 0; i < one.size(); i++) {
            assertEquals(one.get(i).get("loss"), named.get(i).get("loss"), "loss of step " + (i + 1));
        }
    }

    /** The tiny model has four heads. */
    @Test
    @Tag("L2")
    void ranksThatSplitLayersTakeTheSameSteps() throws IOException {
        compare(train(2, "on"), train(2, "on", "--ranks=4", "--strategy=tp"));
        compare(train(4, "off"), train(2, "off", "--mesh=replicate=2,tensor=2", "--sequence-parallel"));
        compare(train(2, "on", "--form=nvidia"), train(2, "on", "--form=nvidia", "--ranks=4", "--strategy=cp"));
        compare(train(4, "off", "--form=nvidia"), train(2, "off", "--form=nvidia", "--mesh=replicate=2,context=2"));
    }

    @Test
    void moreRanksThanDevicesAreToldInOneLine() {
        var err = new ByteArrayOutputStream();
        int status = Train.run(
                DevicePlatform::open,
                new StandardOutput(OutputStream.nullOutputStream(), StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                "--tokens-per-step=65536",
                "--context=64",
                "--ranks=1024");
        assertEquals(2, status);
        assertTrue(
                err.toString(StandardCharsets.UTF_8).startsWith("train: --ranks: expected 1 to "),
                err.toString(StandardCharsets.UTF_8));
    }

    @Test
    void microBatchesTakeLessMemory() throws IOException {
        double whole = number(train(1, "on").getLast(), "memoryBytes");
        double parts = number(train(8, "on").getLast(), "memoryBytes");
        assertTrue(parts < 0.95 * whole, parts + " of " + whole + " bytes");
    }
}
