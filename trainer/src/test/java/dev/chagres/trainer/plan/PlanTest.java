package dev.chagres.trainer.plan;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.bindings.Provider;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** What {@code plan} tells. */
class PlanTest {
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    @BeforeEach
    void assumeReference() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "only the reference counts");
    }

    private int run(String... arguments) {
        out.reset();
        err.reset();
        return Plan.run(
                new PrintStream(out, true, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments);
    }

    private String out() {
        return out.toString(StandardCharsets.UTF_8);
    }

    private String err() {
        return err.toString(StandardCharsets.UTF_8);
    }

    private List<?> choices(String... arguments) throws IOException {
        assertEquals(0, run(arguments), this::err);
        return (List<?>) JSON.std.mapFrom(out()).get("choices");
    }

    @Test
    void tellsMemoryAndRateThatWereMeasured() throws IOException {
        Map<?, ?> best = (Map<?, ?>)
                choices("--model", "650M", "--mean-length", "330", "--json").getFirst();
        assertEquals("none", best.get("recompute"));
        // An H200 held 26.25 GiB and trained 110,300 tokens/s (docs/planning.md).
        assertEquals(26.25 + 0.6, ((Number) best.get("memoryBytes")).doubleValue() / (1L << 30), 0.5);
        assertEquals(110_300, ((Number) best.get("tokensPerSecond")).doubleValue(), 5_000);
        Map<?, ?> holders = (Map<?, ?>) best.get("holders");
        assertTrue(((Number) holders.get("activations")).longValue() > 16_000L << 20, holders.toString());
    }

    @Test
    void takesLessMemoryWhereThereIsLess() throws IOException {
        String[] arguments = {"--model", "650M", "--json", "--memory", "20"};
        for (Object one : choices(arguments)) {
            assertTrue(
                    ((Number) ((Map<?, ?>) one).get("memoryBytes")).doubleValue() <= 20.0 * (1L << 30), one.toString());
        }
    }

    @Test
    void comparesStrategies() {
        assertEquals(
                0, run("--model", "tiny", "--gpus", "2", "--context", "64", "--tokens-per-step", "256"), this::err);
        for (String strategy : List.of("ddp", "zero1", "zero2", "zero3", "tp", "pp", "cp")) {
            assertTrue(out().contains("\n" + strategy + " "), out());
        }
        assertTrue(
                out().contains("./chagres train --model tiny --recipe bf16 --context 64 --ranks 2 --strategy "), out());
        assertTrue(out().contains("memory of the first: "), out());
    }

    /** Two copies of a sharded model need four GPUs; a pipeline's stages wait less the more micro-batches there are. */
    @Test
    void hybridsAndPipelinesOfFour() throws IOException {
        List<?> choices =
                choices("--model", "8M", "--gpus", "4", "--context", "256", "--tokens-per-step", "1024", "--json");
        double state = 0;
        double before = Double.MAX_VALUE;
        for (int accumulate : new int[] {1, 2, 4}) {
            Map<?, ?> pipeline = choice(choices, "pp", accumulate);
            double exposed = ((Number) pipeline.get("exposedCommunicationSeconds")).doubleValue();
            assertTrue(exposed < before, accumulate + ": " + exposed);
            before = exposed;
            state = optimizerBytes(pipeline);
        }
        assertTrue(state < 0.6 * optimizerBytes(choice(choices, "ddp", 1)), "a stage's state: " + state);
        double hybrid = optimizerBytes(choice(choices, "hsdp", 1));
        assertEquals(2, hybrid / optimizerBytes(choice(choices, "zero3", 1)), 0.3);
        assertTrue(hybrid < optimizerBytes(choice(choices, "cp", 1)), "context-parallel ranks have the whole state");
    }

    private static Map<?, ?> choice(List<?> choices, String strategy, int accumulate) {
        return choices.stream()
                .map(one -> (Map<?, ?>) one)
                .filter(one -> one.get("strategy").equals(strategy)
                        && one.get("recompute").equals("none")
                        && one.get("accumulate").equals(accumulate))
                .findFirst()
                .orElseThrow(() -> new AssertionError(strategy + " " + accumulate + " of " + choices));
    }

    /** State in bytes a parameter; Muon's products, of 650M's layers, are 33 times 5 (4 R^2 C + 2 R^3) of four matrices. */
    @Test
    void optimizersDifferInStateAndTime() throws IOException {
        Map<String, Map<?, ?>> all = new HashMap<>();
        String names = "adamw,adamw-offloaded,adamw8bit,lion,lion8bit,sgd,adafactor,muon,schedule-free";
        for (Object one : choices("--model", "650M", "--optimizer", names, "--json")) {
            Map<?, ?> choice = (Map<?, ?>) one;
            if (choice.get("recompute").equals("none")) {
                all.put(String.valueOf(choice.get("optimizer")), choice);
            }
        }
        assertEquals(Set.of(names.split(",")), all.keySet());
        double parameters = 652e6;
        double[] bytes = {10, -1, 4.03, 6, 3.02, 6, 2, 10.2, 12};
        for (int i = 0; i < bytes.length; i++) {
            String name = names.split(",")[i];
            double found = optimizerBytes(Objects.requireNonNull(all.get(name))) / parameters;
            if (bytes[i] > 0) {
                assertEquals(bytes[i], found, 0.15, name);
            }
        }
        double adam = seconds(all, "adamw");
        double side = 1280;
        double operations = 5 * (4 * (3 + 1 + 4 + 4) + 2 * 4) * side * side * side * 33;
        double rate = 330e12 * side / (side + 400);
        double muon = operations / rate + 92 * parameters / (0.9 * 4.3e12);
        assertEquals(muon, seconds(all, "muon") - adam, 0.05 * muon);
        assertEquals(adam, seconds(all, "schedule-free"), 5e-4);
        assertTrue(seconds(all, "lion8bit") < seconds(all, "adafactor") && seconds(all, "adafactor") < adam);
    }

    private static double seconds(Map<String, Map<?, ?>> all, String name) {
        Map<?, ?> one = Objects.requireNonNull(all.get(name));
        return ((Number) one.get("stepSeconds")).doubleValue();
    }

    private static double optimizerBytes(Map<?, ?> choice) {
        return ((Number) ((Map<?, ?>) choice.get("holders")).get("optimizer")).doubleValue();
    }

    @Test
    void saysThatNothingFits() {
        assertEquals(1, run("--model", "8M", "--memory", "0.7", "--context", "16384"));
        assertTrue(
                err().startsWith(
                                "plan: nothing fits: no way to divide 16384 tokens of sequences of 16384 trains 8M on 1 GPUs of 0.7 GiB"),
                err());
    }

    @Test
    void makesSteps() throws IOException {
        assertEquals(
                0,
                run(
                        "--model",
                        "tiny",
                        "--context",
                        "64",
                        "--tokens-per-step",
                        "64",
                        "--measure-one",
                        "ddp:1:none:adamw"));
        Map<String, Object> measured = JSON.std.mapFrom(out());
        Map<?, ?> planned =
                (Map<?, ?>) choices("--model", "tiny", "--context", "64", "--tokens-per-step", "64", "--json")
                        .getFirst();
        double outside = 0.6 * (1L << 30);
        assertEquals(
                ((Number) measured.get("heldBytes")).doubleValue(),
                ((Number) planned.get("memoryBytes")).doubleValue() - outside,
                1);
        assertTrue(((Number) measured.get("stepMillis")).doubleValue() > 0, measured.toString());
    }

    @Test
    void refusesWrongOptions() {
        assertWrong("--model: expected one of tiny, 8M", "--model", "7B");
        assertWrong("--gpus: expected at least 1, got 0", "--model", "8M", "--gpus", "0");
        assertWrong("--memory: expected GiB above 0, got 0.0", "--model", "8M", "--memory", "0");
        assertWrong(
                "--interconnect: expected nvlink, pcie or GB/s above 0, got rope",
                "--model",
                "8M",
                "--interconnect",
                "rope");
        assertWrong("--tokens-per-step: expected a multiple of 16", "--model", "8M", "--tokens-per-step", "2001");
        for (String gpus : List.of("134217728", "1073741824", "2147483647")) {
            assertWrong(
                    "--tokens-per-step: expected a multiple of " + 16 * Long.parseLong(gpus),
                    "--model",
                    "8M",
                    "--gpus",
                    gpus);
        }
        assertWrong("--optimizer: expected a name or more, got none", "--model", "8M", "--optimizer", ",");
        assertWrong(
                "--mean-length: expected 1 to the context, 1024, got 2000", "--model", "8M", "--mean-length", "2000");
    }

    private void assertWrong(String text, String... arguments) {
        assertEquals(2, run(arguments));
        assertTrue(err().startsWith("plan: " + text), err());
    }
}
