package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Assumptions;

/**
 * A file of stored results, and the program that computes them again: a line {@code NAME: KEY=VALUE …} each, numbers as
 * {@code toHexString} writes them, so that they have all bits.
 *
 * <p>The program is a process of its own with OpenBLAS's kernels for AVX2, by which the file was made: those that OpenBLAS
 * chooses by itself for another processor may add in another order. Where these kernels cannot run, or the variable
 * {@code OPENBLAS_CORETYPE} names others, numbers are compared with a tolerance and digests not at all.
 *
 * @param file in the source tree; lines that begin with # are comments
 * @param test the class that compares the file, for messages
 * @param tolerance relative, of numbers that other kernels computed
 */
record StoredBits(Path file, Class<?> test, double tolerance) {
    private static final String STORE = "chagres.test.store";
    private static final String CORE = "OPENBLAS_CORETYPE";
    private static final String STORED_CORE = "Haswell";
    private static final String DIGEST = "sha256=";
    private static final int LISTED = 20;

    /**
     * Runs the program, which writes all lines but comments to {@code output}, and compares them; with
     * {@code -Dchagres.test.store=true} stores them instead.
     */
    void check(ProcessBuilder program, Path output) throws IOException, InterruptedException {
        Map<String, String> environment = program.environment();
        if (hasAvx2()) {
            environment.putIfAbsent(CORE, STORED_CORE);
        }
        boolean same = STORED_CORE.equals(environment.get(CORE));
        run(program, output.resolveSibling("told.txt"));
        List<String> computed = Files.readAllLines(output);
        if (Boolean.getBoolean(STORE)) {
            assertTrue(same, () -> "results are stored with OpenBLAS's kernels for " + STORED_CORE + " alone");
            store(computed);
            Assumptions.abort("stored " + computed.size() + " lines in " + file);
        }
        List<String> differences = differences(Files.readAllLines(file), computed, same ? 0 : tolerance);
        assertTrue(differences.isEmpty(), () -> text(differences));
    }

    private static boolean hasAvx2() throws IOException {
        String processor = Files.readString(Path.of("/proc/cpuinfo"));
        return processor.contains(" avx2 ") && processor.contains(" fma ");
    }

    private static void run(ProcessBuilder program, Path told) throws IOException, InterruptedException {
        Process process =
                program.redirectErrorStream(true).redirectOutput(told.toFile()).start();
        try {
            assertTrue(process.waitFor(540, TimeUnit.SECONDS), "the program has not ended after 540 s");
        } finally {
            process.destroyForcibly();
        }
        String text = Files.readString(told);
        assertTrue(process.exitValue() == 0, () -> "the program failed: " + text);
    }

    private void store(List<String> computed) throws IOException {
        Stream<String> comments = Files.readAllLines(file).stream().filter(StoredBits::isComment);
        Files.write(file, Stream.concat(comments, computed.stream()).toList());
    }

    private String text(List<String> differences) {
        return "Results that differ from " + file + ": " + differences.size() + "\n"
                + String.join("\n", differences.subList(0, Math.min(LISTED, differences.size())))
                + "\nWhere other bits are meant, this stores them: ./chagres test " + test.getSimpleName() + " -D"
                + STORE + "=true";
    }

    private static boolean isComment(String line) {
        return line.startsWith("#");
    }

    /** Returns what differs, a line each: by a bit where {@code tolerance} is 0. */
    static List<String> differences(List<String> stored, List<String> computed, double tolerance) {
        Map<String, String> got = byName(computed);
        List<String> differences = new ArrayList<>();
        byName(stored).forEach((name, expected) -> {
            String actual = got.remove(name);
            if (actual == null) {
                differences.add(name + ": stored, and not computed");
            } else {
                compare(name, expected.split(" ", -1), actual.split(" ", -1), tolerance, differences);
            }
        });
        got.keySet().forEach(name -> differences.add(name + ": computed, and not stored"));
        return differences;
    }

    private static Map<String, String> byName(List<String> lines) {
        Map<String, String> values = new LinkedHashMap<>();
        for (String line : lines) {
            if (!isComment(line)) {
                int end = line.indexOf(": ");
                String former = values.put(line.substring(0, end), line.substring(end + 2));
                assertTrue(former == null, () -> "two lines are called " + line.substring(0, end));
            }
        }
        return values;
    }

    private static void compare(
            String name, String[] expected, String[] actual, double tolerance, List<String> differences) {
        if (expected.length != actual.length) {
            differences.add(name + ": expected " + String.join(" ", expected) + ", got " + String.join(" ", actual));
            return;
        }
        for (int i = 0; i < expected.length; i++) {
            if (!isEqual(expected[i], actual[i], tolerance)) {
                differences.add(name + ": expected " + expected[i] + ", got " + actual[i]);
            }
        }
    }

    private static boolean isEqual(String expected, String actual, double tolerance) {
        if (expected.equals(actual)) {
            return true;
        }
        int end = expected.indexOf('=') + 1;
        if (tolerance == 0 || end == 0 || !actual.startsWith(expected.substring(0, end))) {
            return false;
        }
        if (expected.startsWith(DIGEST)) {
            return true;
        }
        double wanted = Double.parseDouble(expected.substring(end));
        return Math.abs(Double.parseDouble(actual.substring(end)) - wanted) <= tolerance * Math.abs(wanted);
    }
}
