package dev.chagres.jmh;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

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
}
