package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Executable;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * No public method or constructor takes more than eight parameters: more go into a record or an object that is set by name. A record's
 * own constructor may list all components, for it is written once, behind methods that set one by name.
 */
@Tag("L0")
class ParameterCountTest {
    private static final int MOST = 8;

    @Test
    void isAtMostEight() throws Exception {
        List<String> longer = new ArrayList<>();
        int counted = 0;
        for (Class<?> type : MisuseOfNullsTest.publicTypes(Exports.packages())) {
            List<Executable> all = Stream.<Executable>concat(
                            Stream.of(type.getDeclaredMethods()), Stream.of(type.getDeclaredConstructors()))
                    .filter(one -> Modifier.isPublic(one.getModifiers()) && !one.isSynthetic())
                    .filter(one -> !type.isRecord() || one instanceof Method)
                    .toList();
            counted += all.size();
            all.stream()
                    .filter(one -> one.getParameterCount() > MOST)
                    .map(one -> type.getName() + "." + one.getName() + ": " + one.getParameterCount())
                    .sorted()
                    .forEach(longer::add);
        }
        assertEquals(List.of(), longer, "more than " + MOST + " parameters");
        assertTrue(counted > 1500, counted + " methods and constructors found");
    }
}
