package dev.chagres.trainer.plan;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.bindings.Provider;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What {@code profile} tells and writes. */
class ProfileTest {
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    @TempDir
    private Path folder;

    private int run(String... arguments) {
        return Profile.run(
                new PrintStream(out, true, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments);
    }

    @Test
    void writesATraceOfEveryCall() throws Exception {
        Path to = folder.resolve("new");
        int status = run(
                "--model",
                "tiny",
                "--out",
                to.toString(),
                "--steps",
                "2",
                "--context",
                "64",
                "--tokens-per-step",
                "64",
                "--recipe",
                "fp32",
                "--recompute",
                "layers");
        assertEquals(0, status, () -> err.toString(StandardCharsets.UTF_8));
        String told = out.toString(StandardCharsets.UTF_8);
        assertTrue(told.contains("% of the best product"), told);
        assertTrue(told.contains("layers.*."), told);
        Map<String, Object> trace = JSON.std.mapFrom(Files.readString(to.resolve("trace.json")));
        List<?> events = (List<?>) trace.get("traceEvents");
        List<? extends Map<?, ?>> slices = events.stream()
                .map(event -> (Map<?, ?>) event)
                .filter(event -> event.get("ph").equals("X") && event.get("tid").equals(1))
                .toList();
        boolean isReference = Provider.current() == Provider.REFERENCE;
        if (isReference) {
            // Two steps of a layer's forward, of its backward, and, inside that, of its second forward and its
            // gradients.
            assertEquals(
                    2,
                    slices.stream()
                                    .filter(one -> isOf(one, "layers.1", "forward"))
                                    .count()
                            / 3);
            assertEquals(
                    2,
                    slices.stream()
                                    .filter(one -> isOf(one, "layers.1", "backward"))
                                    .count()
                            / 2);
        }
        for (Map<?, ?> slice : slices) {
            assertTrue(((Number) slice.get("ts")).doubleValue() >= 0, slice.toString());
            assertTrue(((Number) slice.get("dur")).doubleValue() >= 0, slice.toString());
        }
        assertTrue(
                events.stream()
                        .anyMatch(event -> ((Map<?, ?>) event).get("name").equals("memory of the pass")),
                "memory");
        assertTrue(Files.readString(to.resolve("layers.txt")).contains("layers.1"), "layers");
        if (isReference) {
            assertTrue(told.contains("slowest layers, of the host's time"), told);
            assertTrue(told.contains("the reference computes on the host, whose times these are"), told);
        } else {
            assertTrue(told.contains("slowest kernels"), told);
        }
        assertTrue(Files.readString(to.resolve("kernels.txt")).contains("gradients' norm and optimizer"), "ranges");
        assertTrue(Files.size(to.resolve("kernels.png")) > 0 && Files.size(to.resolve("memory.png")) > 0, "pictures");
    }

    private static boolean isOf(Map<?, ?> slice, String layer, String direction) {
        return slice.get("name").equals(layer) && slice.get("cat").equals(direction);
    }

    @Test
    void refusesWrongOptions() {
        assertEquals(2, run("--model", "tiny", "--out", folder.toString(), "--steps", "0"));
        assertEquals(2, run("--model", "tiny", "--out", folder.toString(), "--tokens-per-step", "100"));
        assertTrue(
                err.toString(StandardCharsets.UTF_8)
                        .contains("--tokens-per-step: expected a multiple of 16, at least the context, 1024, got 100"),
                err.toString(StandardCharsets.UTF_8));
    }
}
