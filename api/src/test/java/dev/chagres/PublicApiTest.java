package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.Executable;
import java.lang.reflect.Field;
import java.lang.reflect.Member;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Type;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The public signatures of the api are still those that are listed; others may have come. */
@Tag("L0")
class PublicApiTest {
    private static final Path LISTED = Path.of("src/test/resources/public-api.txt");

    @Test
    void nothingThatIsListedIsGone() throws IOException, URISyntaxException {
        Set<String> present = present();
        if (Boolean.getBoolean("chagres.test.store")) {
            Files.write(LISTED, present);
        }
        Set<String> listed = new TreeSet<>(Files.readAllLines(LISTED));
        assertTrue(listed.size() > 1000, () -> LISTED + ": expected the whole api, got " + listed.size() + " lines");
        assertEquals(
                List.of(),
                breaks(listed, present),
                "what programs call is gone or has changed; if that is meant, say so in CHANGELOG.md and docs/renamed.md, and run"
                        + " ./chagres test PublicApiTest -Dchagres.test.store=true");
    }

    /** Returns what is listed and gone, and methods that whoever implements a listed type must write now. */
    private static List<String> breaks(Set<String> listed, Set<String> present) {
        Stream<String> gone =
                listed.stream().filter(line -> !present.contains(line)).map(line -> "gone: " + line);
        Set<String> types = listed.stream()
                .filter(line -> line.startsWith("type "))
                .map(line -> line.split(" ")[1])
                .collect(Collectors.toSet());
        Stream<String> asked = present.stream()
                .filter(line -> !listed.contains(line) && line.contains(" abstract ") && !line.startsWith("type "))
                .filter(line -> types.contains(line.split(" ")[1]))
                .map(line -> "to be implemented: " + line);
        return Stream.concat(gone, asked).toList();
    }

    @Test
    void aSignatureThatChangesIsFound() {
        Set<String> listed = Set.of("type A public interface", "of A public abstract void A.x()");
        assertEquals(
                List.of(),
                breaks(
                        listed,
                        new TreeSet<>(Set.of(
                                "type A public interface",
                                "of A public abstract void A.x()",
                                "of A public default void A.y()",
                                "type B public interface",
                                "of B public abstract void B.z()"))));
        assertEquals(
                List.of("gone: of A public abstract void A.x()", "to be implemented: of A public abstract int A.x()"),
                breaks(listed, new TreeSet<>(Set.of("type A public interface", "of A public abstract int A.x()"))));
    }

    private static Set<String> present() throws IOException, URISyntaxException {
        Path classes = Path.of(
                Device.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        Set<String> packages = Exports.packages().stream()
                .map(name -> name.isEmpty() ? "dev.chagres" : "dev.chagres." + name)
                .collect(Collectors.toSet());
        Set<String> lines = new TreeSet<>();
        try (Stream<Path> files = Files.walk(classes)) {
            files.map(file -> classes.relativize(file).toString())
                    .filter(name -> name.endsWith(".class") && !name.endsWith("-info.class"))
                    .map(name -> name.substring(0, name.length() - 6).replace('/', '.'))
                    .filter(name -> packages.contains(name.substring(0, name.lastIndexOf('.'))))
                    .map(PublicApiTest::load)
                    .filter(PublicApiTest::isVisible)
                    .forEach(type -> list(type, lines));
        }
        return lines;
    }

    private static Class<?> load(String name) {
        try {
            return Class.forName(name, false, PublicApiTest.class.getClassLoader());
        } catch (ClassNotFoundException e) {
            throw new AssertionError(e);
        }
    }

    /** Returns whether programs see the type: it and those around it are public, or protected. */
    private static boolean isVisible(Class<?> type) {
        boolean visible = true;
        for (Class<?> around = type; around != null; around = around.getEnclosingClass()) {
            visible &= isVisible(around.getModifiers()) && !around.isAnonymousClass() && !around.isLocalClass();
        }
        return visible;
    }

    private static boolean isVisible(int modifiers) {
        return Modifier.isPublic(modifiers) || Modifier.isProtected(modifiers);
    }

    private static void list(Class<?> type, Set<String> lines) {
        Stream<Type> above = Stream.concat(
                Stream.ofNullable(type.getGenericSuperclass()), Arrays.stream(type.getGenericInterfaces()));
        String supertypes = above.map(Type::getTypeName).collect(Collectors.joining(", "));
        lines.add(line("type", type, type.toGenericString() + " : " + supertypes));
        Stream.of(type.getDeclaredFields())
                .filter(PublicApiTest::isListed)
                .map(Field::toGenericString)
                .forEach(text -> lines.add(line("of", type, text)));
        Stream.of(type.getDeclaredConstructors())
                .filter(PublicApiTest::isListed)
                .map(Constructor::toGenericString)
                .forEach(text -> lines.add(line("of", type, text)));
        Stream.of(type.getDeclaredMethods())
                .filter(method -> isListed(method) && !method.isBridge())
                .map(Method::toGenericString)
                .forEach(text -> lines.add(line("of", type, text)));
    }

    private static boolean isListed(Member member) {
        boolean packagePrivate = !isVisible(member.getModifiers());
        return !packagePrivate && !member.isSynthetic() && !(member instanceof Executable e && isPrivateArgument(e));
    }

    /** A constructor for the compiler's own use takes a type that programs do not see. */
    private static boolean isPrivateArgument(Executable executable) {
        return Arrays.stream(executable.getParameterTypes())
                .anyMatch(type -> type.getName().startsWith("dev.chagres.") && !isVisible(type));
    }

    private static String line(String kind, Class<?> type, String text) {
        String plain = text.replaceAll("\\b(synchronized|native|strictfp|transient|volatile) ", "");
        return kind + " " + type.getName().replace("dev.chagres.", "") + " "
                + plain.replaceAll("\\b(dev\\.chagres|java\\.lang)\\.(?=[\\w.]*[A-Z])", "");
    }
}
