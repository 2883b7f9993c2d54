package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Layer;
import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.Executable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Every public constructor and static factory refuses null by the name of its argument, and declares nothing. */
@Tag("L0")
@Tag("L1")
class MisuseOfNullsTest {
    private static final List<String> PACKAGES = List.of("attention", "layer", "parallel", "parameter", "optim");

    private NullSamples samples;

    @BeforeEach
    void open() {
        samples = new NullSamples();
    }

    @AfterEach
    void close() {
        samples.close();
    }

    @Test
    void isRefusedByName() throws Exception {
        List<String> checked = new ArrayList<>();
        for (Class<?> type : publicTypes(PACKAGES)) {
            List<Executable> all = new ArrayList<>(List.of(type.getConstructors()));
            Stream.of(type.getDeclaredMethods())
                    .filter(method ->
                            Modifier.isStatic(method.getModifiers()) && Modifier.isPublic(method.getModifiers()))
                    .filter(method -> !method.getName().equals("valueOf"))
                    .forEach(all::add);
            for (Executable executable : all) {
                if (!Modifier.isAbstract(type.getModifiers()) || executable instanceof Method) {
                    check(executable, checked);
                }
            }
        }
        assertTrue(checked.size() > 70, () -> "arguments found: " + checked);
        assertTrue(checked.contains("AdamW(config)"), checked::toString);
        assertTrue(checked.contains("Sequences.padded(format)"), checked::toString);
    }

    private void check(Executable executable, List<String> checked) throws ReflectiveOperationException {
        Class<?>[] types = executable.getParameterTypes();
        for (int i = 0; i < types.length; i++) {
            var parameter = executable.getParameters()[i];
            if (types[i].isPrimitive() || parameter.getAnnotatedType().isAnnotationPresent(Nullable.class)) {
                continue;
            }
            Object[] arguments = new Object[types.length];
            for (int j = 0; j < types.length; j++) {
                Class<?> type = types[j];
                arguments[j] = Objects.requireNonNull(samples.of(type), () -> "no sample of " + type);
            }
            arguments[i] = null;
            String what = executable.getDeclaringClass().getSimpleName()
                    + (executable instanceof Method ? "." + executable.getName() : "") + "(" + parameter.getName()
                    + ")";
            Throwable thrown = assertThrows(InvocationTargetException.class, () -> call(executable, arguments), what)
                    .getCause();
            assertInstanceOf(NullPointerException.class, thrown, what);
            assertEquals(parameter.getName() + ": expected a value, got null", thrown.getMessage(), what);
            Arrays.stream(arguments)
                    .filter(ModelPlan.class::isInstance)
                    .forEach(plan -> assertEquals(List.of(), ((ModelPlan) plan).parameters(), what));
            checked.add(what);
        }
    }

    private static Object call(Executable executable, Object... arguments) throws ReflectiveOperationException {
        return executable instanceof Constructor<?> constructor
                ? constructor.newInstance(arguments)
                : ((Method) executable).invoke(null, arguments);
    }

    /** Returns the public types of the packages, nested ones too; the empty name is that of the root. */
    static List<Class<?>> publicTypes(List<String> packages)
            throws IOException, URISyntaxException, ClassNotFoundException {
        URI place =
                Layer.class.getProtectionDomain().getCodeSource().getLocation().toURI();
        List<Class<?>> types = new ArrayList<>();
        for (String name : packages) {
            try (Stream<Path> files = Files.list(Path.of(place).resolve("dev/chagres/" + name))) {
                for (Path file :
                        files.filter(f -> f.toString().endsWith(".class")).toList()) {
                    String simple = file.getFileName().toString().replace(".class", "");
                    if (simple.equals("package-info")) {
                        continue;
                    }
                    Class<?> type = Class.forName(
                            "dev.chagres." + (name.isEmpty() ? "" : name + ".") + simple,
                            false,
                            Layer.class.getClassLoader());
                    boolean open = Modifier.isPublic(type.getModifiers());
                    for (Class<?> outer = type.getEnclosingClass(); outer != null; outer = outer.getEnclosingClass()) {
                        open &= Modifier.isPublic(outer.getModifiers());
                    }
                    if (open) {
                        types.add(type);
                    }
                }
            }
        }
        return types;
    }
}
