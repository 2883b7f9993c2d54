package dev.chagres.trainer.plan;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.bindings.Provider;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
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
        for (String strategy : List.of("ddp", "zero1", "zero2", "zero3", "tp")) {
            assertTrue(out().contains("\n" + strategy + " "), out());
        }
        assertTrue(
                out().contains("./chagres train --model tiny --recipe bf16 --context 64 --ranks 2 --strategy "), out());
        assertTrue(out().contains("memory of the first: "), out());
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
        assertWrong(
                "--mean-length: expected 1 to the context, 1024, got 2000", "--model", "8M", "--mean-length", "2000");
    }

    private void assertWrong(String text, String... arguments) {
        assertEquals(2, run(arguments));
        assertTrue(err().startsWith("plan: " + text), err());
    }
}
