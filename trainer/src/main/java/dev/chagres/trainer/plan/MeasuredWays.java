package dev.chagres.trainer.plan;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.bindings.Provider;
import dev.chagres.trainer.StepEstimate;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * Measures ways to train a model, each in a process whose provider computes, beside what was counted.
 *
 * <p>Threading: one thread at a time.
 *
 * @param model the value of {@code --model}
 */
record MeasuredWays(String model, Choice.Steps steps, PrintStream out) {
    private static final double GIB = 1L << 30;
    private static final int TIMED = 10;

    /** Returns what was measured of the first of {@code rows}, the fastest first. */
    List<Map<String, Object>> measure(List<CountedWays.Row> rows, int most) {
        List<Map<String, Object>> measured = new ArrayList<>();
        for (CountedWays.Row row : rows.subList(0, Math.min(most, rows.size()))) {
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("choice", row.choice().toString());
            Map<String, Object> found = apart(row.choice());
            one.putAll(found);
            one.put("estimatedBytes", row.estimate().memoryBytes());
            one.put("estimatedTokensPerSecond", Math.round(row.tokensPerSecond()));
            if (found.get("heldBytes") instanceof Number held) {
                one.put("estimatedToHeld", row.estimate().memoryBytes() / held.doubleValue());
            }
            measured.add(one);
        }
        measured.sort(Comparator.comparingDouble(MeasuredWays::rate).reversed());
        return measured;
    }

    /** Tells them as a table, and the command of the first. */
    void tell(List<Map<String, Object>> measured) {
        if (measured.isEmpty()) {
            return;
        }
        out.printf(
                Locale.ROOT,
                "%-32s %14s %14s %8s %12s %12s%n",
                "measured, the fastest first",
                "tokens/s",
                "predicted",
                "ratio",
                "GiB held",
                "estimated");
        for (Map<String, Object> one : measured) {
            if (!(one.get("tokensPerSecond") instanceof Number rate)
                    || !(one.get("heldBytes") instanceof Number held)
                    || !(one.get("estimatedTokensPerSecond") instanceof Number predicted)
                    || !(one.get("estimatedBytes") instanceof Number estimated)) {
                out.printf(Locale.ROOT, "%-32s failed: %s%n", one.get("choice"), one.get("failed"));
                continue;
            }
            out.printf(
                    Locale.ROOT,
                    "%-32s %,14d %,14d %8.3f %12.2f %12.2f%n",
                    one.get("choice"),
                    rate.longValue(),
                    predicted.longValue(),
                    predicted.doubleValue() / rate.doubleValue(),
                    held.doubleValue() / GIB,
                    estimated.doubleValue() / GIB);
        }
        Map<String, Object> best = measured.getFirst();
        if (best.containsKey("tokensPerSecond") && steps.model().esm() != null) {
            out.println(
                    "measured best: " + Plan.command(model, Choice.parse(String.valueOf(best.get("choice"))), steps));
        }
    }

    private static double rate(Map<String, Object> measured) {
        return measured.get("tokensPerSecond") instanceof Number rate ? rate.doubleValue() : 0;
    }

    private Map<String, Object> apart(Choice choice) {
        List<String> command = new ArrayList<>(List.of(
                ProcessHandle.current().info().command().orElse("java"),
                "-Xmx768m",
                "--enable-native-access=ALL-UNNAMED",
                "-D" + Provider.PROPERTY + "=auto",
                "-cp",
                System.getProperty("java.class.path"),
                Plan.class.getName(),
                "--model",
                model,
                "--gpus",
                String.valueOf(steps.gpus()),
                "--recipe",
                steps.recipe().toString(),
                "--tokens-per-step",
                String.valueOf(steps.tokens()),
                "--context",
                String.valueOf(steps.context()),
                Plan.MEASURE_ONE,
                choice.toString()));
        try {
            Process process = new ProcessBuilder(command)
                    .redirectError(ProcessBuilder.Redirect.INHERIT)
                    .start();
            String text = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            int status = process.waitFor();
            return status == 0 ? JSON.std.mapFrom(text) : Map.of("failed", "exit status " + status);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while steps were measured", e);
        }
    }

    /** Makes steps here and prints what {@link #measure} reads in another process; returns the exit status. */
    int here(Choice choice, PrintStream err) {
        if ("auto".equals(System.getProperty(Provider.PROPERTY)) && Provider.current() == Provider.REFERENCE) {
            err.println("plan: --measure: expected a GPU, got none; ./chagres doctor says why");
            return 1;
        }
        StepEstimate.Measured measured = choice.trainer(steps).measure(TIMED);
        Map<String, Object> one = new LinkedHashMap<>();
        one.put("heldBytes", measured.memoryBytes());
        one.put("stepMillis", measured.stepMillis());
        one.put("tokensPerSecond", Math.round(measured.tokens() / measured.stepMillis() * 1e3));
        try {
            out.println(JSON.std.asString(one));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return 0;
    }
}
