package dev.chagres.jmh;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.jmh.states.LayerShape;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.jspecify.annotations.Nullable;

/**
 * Compares the times of {@link TransformerLayerBenchmark} with those of another program: for each case our time, the rival's, and the
 * rival's divided by ours.
 *
 * <p>Ours is JMH's JSON ({@code -rf json}). The rival's is an object with a member for each shape and recipe, such as {@code "tiny/bf16":
 * {"ms": 5.4, "host_ms": 5.4}}: milliseconds of forward and backward until the GPU is idle and until the last kernel is
 * enqueued. Members without {@code /} in their names are ignored. If our results differ in parameters other than shape and recipe, each is
 * a case of its own, compared with the same one of the rival's: {@code "tiny/bf16 packed"}. Ours of the layout {@code UNEVEN} are beside
 * the rival's {@code "packed1280/bf16"}, by the columns of the shape.
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

    /** What a benchmark's method times. */
    private enum Column {
        /** One step, until the device is idle. */
        DONE("untilIdle"),
        /** One of several steps in a row. */
        ROW("backToBack"),
        HOST("enqueue");

        private final String method;

        Column(String method) {
            this.method = method;
        }

        static @Nullable Column of(String benchmark) {
            return Arrays.stream(values())
                    .filter(column -> benchmark.endsWith("." + BENCHMARK + "." + column.method))
                    .findFirst()
                    .orElse(null);
        }
    }

    /**
     * A case of ours.
     *
     * @param rival the rival's name for it
     * @param others parameters besides shape and recipe, by name
     */
    private record Case(String rival, Map<String, String> others) {
        /** Returns the rival's name and the values of {@code told}. */
        String name(Set<String> told) {
            return told.stream()
                    .map(parameter -> others.getOrDefault(parameter, ""))
                    .filter(value -> !value.isEmpty())
                    .reduce(rival, (text, value) -> text + " " + value);
        }
    }

    /** One of our cases: the rival's name for it, and milliseconds by what was timed. */
    private record Ours(String rival, Map<Column, Double> millis) {
        double get(Column column) {
            return millis.getOrDefault(column, Double.NaN);
        }
    }

    /** The rival's milliseconds of one case; NaN if not measured. */
    private record Times(double done, double host) {}

    private Comparison() {}

    /** Compares the file of the rival with ours, {@code jmh-result.json} unless a second one is named. */
    public static void main(String[] arguments) {
        System.exit(run(arguments, System.out, System.err));
    }

    /** Returns the exit status: 0 compared, 1 bad file, 2 wrong arguments. */
    static int run(String[] arguments, PrintStream out, PrintStream err) {
        if (arguments.length < 1 || arguments.length > 2) {
            err.println("bench --compare: expected RIVAL.json [OURS.json], got " + List.of(arguments));
            return 2;
        }
        try {
            Map<String, Times> rival = rival(Path.of(arguments[0]));
            Path file = Path.of(arguments.length == 2 ? arguments[1] : "jmh-result.json");
            Map<String, Ours> ours = ours(file);
            if (ours.values().stream().noneMatch(own -> rival.containsKey(own.rival))) {
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

    private static void print(Map<String, Ours> ours, Map<String, Times> rival, PrintStream out) {
        out.printf(
                "%-32s %10s %10s %8s %10s %8s %10s %10s %8s%n",
                "ms", "done", "rival", "times", "in a row", "times", "host", "rival", "times");
        Set<String> alone = new TreeSet<>();
        Set<String> others = new TreeSet<>(rival.keySet());
        ours.forEach((name, own) -> {
            Times other = rival.get(own.rival);
            if (other == null) {
                alone.add(name);
                return;
            }
            others.remove(own.rival);
            out.printf(
                    "%-32s %s %s %s%n",
                    name,
                    triple(own.get(Column.DONE), other.done),
                    pair(own.get(Column.ROW), other.done),
                    triple(own.get(Column.HOST), other.host));
        });
        if (!alone.isEmpty()) {
            out.println("only ours: " + String.join(", ", alone));
        }
        if (!others.isEmpty()) {
            out.println("only the rival's: " + String.join(", ", others));
        }
    }

    private static String pair(double own, double other) {
        double ratio = other / own;
        return String.format(
                Locale.ROOT,
                "%10s %8s",
                cell(own),
                Double.isNaN(ratio) ? "-" : String.format(Locale.ROOT, "%.2f", ratio));
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
    private static Map<String, Times> rival(Path file) {
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

    /** Returns our times by case. */
    private static Map<String, Ours> ours(Path file) {
        if (!(read(file) instanceof List<?> results)) {
            throw new BadFileException(file, "expected JMH's array of results (bench " + BENCHMARK + " -rf json)");
        }
        Map<Case, Map<Column, Double>> times = new LinkedHashMap<>();
        for (Object entry : results) {
            Map<String, Object> result = object(file, entry, "JMH's results to be objects");
            String benchmark = String.valueOf(result.get("benchmark"));
            Column column = Column.of(benchmark);
            if (column == null) {
                continue;
            }
            Case own = caseOf(file, object(file, result.get("params"), "params in a result of " + benchmark));
            double millis = millis(file, own.rival, result.get("primaryMetric"));
            if (times.computeIfAbsent(own, none -> new EnumMap<>(Column.class)).put(column, millis) != null) {
                throw new BadFileException(
                        file,
                        "expected one result of " + column.method + " for a case, got two for " + own.rival + " "
                                + own.others);
            }
        }
        if (times.isEmpty()) {
            throw new BadFileException(file, "expected results of " + BENCHMARK + ", got none");
        }
        Set<String> told = differing(times.keySet());
        Map<String, Ours> named = new LinkedHashMap<>();
        times.forEach((own, millis) -> named.put(own.name(told), new Ours(own.rival, millis)));
        return named;
    }

    private static Case caseOf(Path file, Map<String, Object> params) {
        Map<String, String> others = new TreeMap<>();
        params.keySet().forEach(name -> others.put(name, word(file, params, name)));
        String shape = word(file, params, "shape");
        String recipe = word(file, params, "recipe");
        boolean uneven = String.valueOf(params.get("layout")).equals(LayerLayout.UNEVEN.name());
        String rival = uneven ? "packed" + columns(file, shape) : shape;
        others.keySet().removeAll(Set.of("shape", "recipe"));
        return new Case(rival + "/" + recipe, others);
    }

    private static long columns(Path file, String shape) {
        return Arrays.stream(LayerShape.values())
                .filter(known -> known.name().toLowerCase(Locale.ROOT).equals(shape))
                .findFirst()
                .orElseThrow(() -> new BadFileException(
                        file, "expected one of " + Arrays.toString(LayerShape.values()) + " as shape, got " + shape))
                .hidden();
    }

    /** Returns the parameters in which cases of the same name differ. */
    private static Set<String> differing(Set<Case> cases) {
        Set<String> names = new TreeSet<>();
        for (Case own : cases) {
            for (Case other : cases) {
                if (own.rival.equals(other.rival)) {
                    own.others.forEach((name, value) -> {
                        if (!value.equals(other.others.get(name))) {
                            names.add(name);
                        }
                    });
                }
            }
        }
        return names;
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
