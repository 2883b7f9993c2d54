package dev.chagres.jmh;

import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.Param;

/** The benchmarks of single operations. */
final class OperationBenchmarks {
    private OperationBenchmarks() {}

    /** Returns the classes that extend {@link OperationBenchmark}, by name. */
    static List<Class<? extends OperationBenchmark>> all() throws IOException, ClassNotFoundException {
        List<Class<? extends OperationBenchmark>> found = new ArrayList<>();
        try (java.util.stream.Stream<Path> files = Files.list(Path.of("src/main/java/dev/chagres/jmh"))) {
            for (Path file : files.filter(path -> path.toString().endsWith("Benchmark.java"))
                    .sorted()
                    .toList()) {
                String name = file.getFileName().toString().replace(".java", "");
                Class<?> type = Class.forName("dev.chagres.jmh." + name);
                if (type != OperationBenchmark.class && OperationBenchmark.class.isAssignableFrom(type)) {
                    found.add(type.asSubclass(OperationBenchmark.class));
                }
            }
        }
        return found;
    }

    /** Returns the methods of one of them that JMH measures. */
    static List<Method> methods(Class<?> type) {
        return Arrays.stream(type.getMethods())
                .filter(method -> method.isAnnotationPresent(Benchmark.class))
                .toList();
    }

    /** Returns each combination of the parameters' values. */
    static List<Map<String, String>> parameters(Class<?> type) {
        List<Map<String, String>> all = List.of(Map.of());
        for (Field field : type.getFields()) {
            Param param = field.getAnnotation(Param.class);
            if (param == null) {
                continue;
            }
            List<Map<String, String>> more = new ArrayList<>();
            for (Map<String, String> one : all) {
                for (String value : param.value()) {
                    Map<String, String> with = new LinkedHashMap<>(one);
                    with.put(field.getName(), value);
                    more.add(with);
                }
            }
            all = more;
        }
        return all;
    }
}
