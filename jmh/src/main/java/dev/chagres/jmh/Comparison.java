package dev.chagres.jmh;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.jspecify.annotations.Nullable;

/**
 * Puts the times of {@link TransformerLayerBenchmark} beside those of another program: for each shape and recipe ours, the
 * rival's, and how often ours goes into it.
 *
 * <p>Ours is JMH's JSON ({@code -rf json}). The rival's is an object with a member for each case, such as {@code "tiny/bf16":
 * {"ms": 5.4, "host_ms": 5.4}}: milliseconds of forward and backward until the GPU is idle and until the last kernel is
 * enqueued. Members whose names have no {@code /} are no cases.
 *
 * <p>Threading: immutable.
 */
final class Comparison {
    private static final String BENCHMARK = TransformerLayerBenchmark.class.getSimpleName();
    private static final Map<String, Double> MILLIS = Map.of("ns/op", 1e-6, "us/op", 1e-3, "ms/op", 1.0, "s/op", 1e3);

    /** What is wrong with a file. */
    static final class BadFileException extends RuntimeException {
        private static final long serialVersionUID = 1;

        BadFileException(Path file, String text) {
            super(file + ": " + text);
        }
    }

    /** Milliseconds of one case; NaN where nobody measured them. */
    record Times(double done, double host) {}

    private Comparison() {}

    /** Compares the file of the rival with ours, {@code jmh-result.json} unless a second one is named. */
    public static void main(String[] arguments) {
        System.exit(run(arguments, System.out, System.err));
    }

    /** Returns the exit status: 0 compared, 1 a file is no good, 2 wrong arguments. */
    static int run(String[] arguments, PrintStream out, PrintStream err) {
        if (arguments.length < 1 || arguments.length > 2) {
            err.println("bench --compare: expected RIVAL.json [OURS.json], got " + List.of(arguments));
            return 2;
        }
        try {
            Map<String, Times> rival = rival(Path.of(arguments[0]));
            Path file = Path.of(arguments.length == 2 ? arguments[1] : "jmh-result.json");
            Map<String, Times> ours = ours(file);
            if (ours.keySet().stream().noneMatch(rival::containsKey)) {
                throw new BadFileException(
                        file,
                        "expected a case that " + arguments[0] + " has, " + rival.keySet() + ", got " + ours.keySet());
            }
            print(ours, rival, out);
            return 0;
        } catch (BadFileException e) {
            err.println("bench --compare: " + e.getMessage());
            return 1;
        }
    }

    private static void print(Map<String, Times> ours, Map<String, Times> rival, PrintStream out) {
        out.printf("%-24s %10s %10s %8s %10s %10s %8s%n", "ms", "done", "rival", "times", "host", "rival", "times");
        Set<String> alone = new TreeSet<>();
        ours.forEach((name, own) -> {
            Times other = rival.get(name);
            if (other == null) {
                alone.add(name);
                return;
            }
            out.printf("%-24s %s %s%n", name, triple(own.done, other.done), triple(own.host, other.host));
        });
        if (!alone.isEmpty()) {
            out.println("only ours: " + String.join(", ", alone));
        }
        Set<String> others = new TreeSet<>(rival.keySet());
        others.removeAll(ours.keySet());
        if (!others.isEmpty()) {
            out.println("only the rival's: " + String.join(", ", others));
        }
    }

    private static String triple(double own, double other) {
        double ratio = other / own;
        return Double.isNaN(ratio)
                ? String.format(Locale.ROOT, "%10s %10s %8s", cell(own), cell(other), "-")
                : String.format(Locale.ROOT, "%10s %10s %8.2f", cell(own), cell(other), ratio);
    }

    private static String cell(double millis) {
        return Double.isNaN(millis) ? "-" : String.format(Locale.ROOT, "%.3f", millis);
    }

    /** Returns the rival's times by case. */
    static Map<String, Times> rival(Path file) {
        Map<String, Times> times = new LinkedHashMap<>();
        object(file, read(file), "an object of cases such as \"tiny/bf16\": {\"ms\": 5.4}")
                .forEach((name, value) -> {
                    if (name.contains("/")) {
                        Map<?, ?> row = object(file, value, "an object in " + name);
                        Object host = row.get("host_ms");
                        times.put(
                                name,
                                new Times(
                                        number(file, name + ": ms", row.get("ms")),
                                        host == null ? Double.NaN : number(file, name + ": host_ms", host)));
                    }
                });
        if (times.isEmpty()) {
            throw new BadFileException(file, "expected cases such as \"tiny/bf16\": {\"ms\": 5.4}, got none");
        }
        return times;
    }

    /** Returns our times by case: {@code untilIdle} and {@code enqueue} of each shape and recipe. */
    static Map<String, Times> ours(Path file) {
        if (!(read(file) instanceof List<?> results)) {
            throw new BadFileException(file, "expected JMH's array of results (bench " + BENCHMARK + " -rf json)");
        }
        Map<String, Times> times = new LinkedHashMap<>();
        for (Object entry : results) {
            Map<String, Object> result = object(file, entry, "JMH's results to be objects");
            String benchmark = String.valueOf(result.get("benchmark"));
            if (!benchmark.contains("." + BENCHMARK + ".")) {
                continue;
            }
            Map<String, Object> params = object(file, result.get("params"), "params in a result of " + benchmark);
            String name = word(file, params, "shape") + "/" + word(file, params, "recipe");
            double millis = millis(file, name, result.get("primaryMetric"));
            Times known = times.getOrDefault(name, new Times(Double.NaN, Double.NaN));
            times.put(
                    name,
                    benchmark.endsWith(".enqueue") ? new Times(known.done, millis) : new Times(millis, known.host));
        }
        if (times.isEmpty()) {
            throw new BadFileException(file, "expected results of " + BENCHMARK + ", got none");
        }
        return times;
    }

    private static String word(Path file, Map<String, Object> params, String name) {
        if (!(params.get(name) instanceof String text)) {
            throw new BadFileException(file, "expected a text in params, " + name + ", got " + params.get(name));
        }
        return text.toLowerCase(Locale.ROOT).replace('_', '-');
    }

    private static double millis(Path file, String name, @Nullable Object metric) {
        Map<String, Object> row = object(file, metric, "an object in primaryMetric of " + name);
        Double unit = MILLIS.get(String.valueOf(row.get("scoreUnit")));
        if (unit == null) {
            throw new BadFileException(
                    file, name + ": expected ns/op, us/op, ms/op or s/op as scoreUnit, got " + row.get("scoreUnit"));
        }
        return unit * number(file, name + ": score", row.get("score"));
    }

    private static double number(Path file, String name, @Nullable Object value) {
        if (value instanceof Number number && number.doubleValue() > 0 && Double.isFinite(number.doubleValue())) {
            return number.doubleValue();
        }
        throw new BadFileException(file, name + ": expected a number above 0, got " + value);
    }

    @SuppressWarnings("unchecked") // keys of a JSON object are texts
    private static Map<String, Object> object(Path file, @Nullable Object value, String expected) {
        if (value instanceof Map<?, ?> map) {
            return (Map<String, Object>) map;
        }
        throw new BadFileException(file, "expected " + expected + ", got " + value);
    }

    private static @Nullable Object read(Path file) {
        String text;
        try {
            text = Files.readString(file);
        } catch (NoSuchFileException e) {
            throw new BadFileException(file, "there is no such file");
        } catch (IOException e) {
            throw new BadFileException(file, "cannot be read: " + e);
        }
        try {
            return JSON.std.anyFrom(text);
        } catch (IOException e) {
            throw new BadFileException(
                    file,
                    "expected JSON: "
                            + String.valueOf(e.getMessage()).lines().findFirst().orElse(""));
        }
    }
}
