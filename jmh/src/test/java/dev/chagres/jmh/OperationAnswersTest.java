package dev.chagres.jmh;

import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** Each benchmark of single operations gets the answers that it expects, with each value of its parameters, and all its operations run. */
@Tag("L0")
class OperationAnswersTest {
    @ParameterizedTest(name = "{0} {1}")
    @MethodSource("benchmarks")
    void areRight(Class<? extends OperationBenchmark> type, Map<String, String> parameters)
            throws ReflectiveOperationException {
        OperationBenchmark benchmark = type.getConstructor().newInstance();
        for (Map.Entry<String, String> parameter : parameters.entrySet()) {
            Field field = type.getField(parameter.getKey());
            field.set(benchmark, parsed(field.getType(), parameter.getValue()));
        }
        benchmark.open();
        try {
            for (Method method : OperationBenchmarks.methods(type)) {
                method.invoke(benchmark);
            }
        } finally {
            benchmark.close();
        }
    }

    static List<Arguments> benchmarks() throws IOException, ClassNotFoundException {
        List<Arguments> all = new ArrayList<>();
        for (Class<? extends OperationBenchmark> type : OperationBenchmarks.all()) {
            for (Map<String, String> parameters : OperationBenchmarks.parameters(type)) {
                all.add(Arguments.of(type, parameters));
            }
        }
        return all;
    }

    private static Object parsed(Class<?> type, String value) throws ReflectiveOperationException {
        return type == int.class
                ? Integer.valueOf(value)
                : type.getMethod("valueOf", String.class).invoke(null, value);
    }
}
