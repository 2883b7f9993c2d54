package dev.chagres.jmh;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.Stream;
import dev.chagres.ops.Elementwise;
import dev.chagres.te.Gemm;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.FileSystem;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Each method of te and ops that enqueues work is called by a benchmark. */
@Tag("L0")
class EveryOperationTest {
    /** Methods whose work another benchmark measures, and which. */
    private static final Map<String, String> MEASURED_ELSEWHERE = Map.of(
            "RecipeUpdates.delayedScalingUpdate",
            "delayedScalingUpdateAfterReduction with a list of one, by the same kernel");

    @Test
    void isMeasured() throws IOException, URISyntaxException {
        Set<String> operations = new TreeSet<>(operations(Gemm.class));
        operations.addAll(operations(Elementwise.class));
        assertTrue(operations.contains("Adam#step") && operations.contains("Gemm.gemm"), operations::toString);
        String benchmarks = benchmarks();
        List<String> missing = operations.stream()
                .filter(operation -> !MEASURED_ELSEWHERE.containsKey(operation))
                .filter(operation -> !call(operation).matcher(benchmarks).find())
                .toList();
        assertEquals(List.of(), missing, "without a benchmark in jmh/");
        Set<String> gone = new TreeSet<>(MEASURED_ELSEWHERE.keySet());
        gone.removeAll(operations);
        assertEquals(Set.of(), gone, "no longer there");
    }

    /** Returns what a call looks like: of {@code Class#method}, some object's method of the name. */
    private static Pattern call(String operation) {
        String method = operation.replaceFirst("^\\w+#", ".");
        return Pattern.compile((method.equals(operation) ? "\\b" : "") + Pattern.quote(method) + "\\(");
    }

    private static String benchmarks() throws IOException {
        Path sources = Path.of("src/main/java/dev/chagres/jmh").toAbsolutePath();
        try (java.util.stream.Stream<Path> files = Files.list(sources)) {
            return files.sorted().map(EveryOperationTest::text).collect(Collectors.joining("\n"));
        }
    }

    private static String text(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /**
     * Returns the public methods that take a stream of the public classes beside {@code one}: static ones as {@code Class.method}, others
     * as {@code Class#method}.
     */
    private static Set<String> operations(Class<?> one) throws IOException, URISyntaxException {
        Set<String> names = new TreeSet<>();
        for (Class<?> type : publicClassesBeside(one).values()) {
            for (Method method : type.getDeclaredMethods()) {
                int modifiers = method.getModifiers();
                if (Modifier.isPublic(modifiers)
                        && method.getReturnType() == void.class
                        && Arrays.asList(method.getParameterTypes()).contains(Stream.class)) {
                    String separator = Modifier.isStatic(modifiers) ? "." : "#";
                    names.add(type.getSimpleName() + separator + method.getName());
                }
            }
        }
        return names;
    }

    private static Map<String, Class<?>> publicClassesBeside(Class<?> one) throws IOException, URISyntaxException {
        URI place = one.getProtectionDomain().getCodeSource().getLocation().toURI();
        String folder = one.getPackageName().replace('.', '/');
        if (place.getPath().endsWith(".jar")) {
            try (FileSystem jar = FileSystems.newFileSystem(Path.of(place))) {
                return classes(jar.getPath(folder), one.getPackageName());
            }
        }
        return classes(Path.of(place).resolve(folder), one.getPackageName());
    }

    private static Map<String, Class<?>> classes(Path folder, String packageName) throws IOException {
        List<String> names = new ArrayList<>();
        try (java.util.stream.Stream<Path> files = Files.list(folder)) {
            files.map(file -> file.getFileName().toString())
                    .filter(name -> name.matches("[A-Z]\\w*\\.class"))
                    .forEach(name -> names.add(name.replace(".class", "")));
        }
        Map<String, Class<?>> found = new TreeMap<>();
        for (String name : names) {
            try {
                Class<?> type = Class.forName(packageName + "." + name);
                if (Modifier.isPublic(type.getModifiers())) {
                    found.put(name, type);
                }
            } catch (ClassNotFoundException failure) {
                throw new IllegalStateException(failure);
            }
        }
        return found;
    }
}
