package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.pass.Layer;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Member;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The table of arguments of TE for PyTorch, of which docs/te-surface.md is written, against the code and against the names that TE has. */
@Tag("L0")
class TeSurfaceTest {
    private static final Path PAGE = Path.of("").toAbsolutePath().getParent().resolve("docs/te-surface.md");
    private static final Set<String> WITH_NAMES = Set.of("here", "partly");
    private static final Set<String> WITHOUT_NAMES = Set.of("absent", "not needed");
    private static final Pattern NAME = Pattern.compile("`([^`]+)`");

    /** One argument: of which function, its state, the names that say the same here, and a note. */
    private record Row(String owner, String argument, String state, List<String> names, String note) {
        @Override
        public String toString() {
            return owner + " " + argument;
        }
    }

    private static List<Row> rows() throws IOException {
        List<Row> rows = new ArrayList<>();
        for (String[] cells : cells()) {
            rows.add(new Row(cells[0], cells[1], cells[2], quoted(cells[3]).toList(), cells[4]));
        }
        return rows;
    }

    /** Returns the lines of the table: a function or module in quotes, then the page's four cells. */
    private static List<String[]> cells() throws IOException {
        List<String[]> cells = new ArrayList<>();
        for (String line : lines("/te-surface.tsv").stream().skip(1).toList()) {
            String[] row = line.split("\t", -1);
            assertEquals(5, row.length, line);
            cells.add(row);
        }
        return cells;
    }

    /** Returns the page that the table makes: what stands before the first section stays. */
    private static String written(String page) throws IOException {
        StringBuilder text = new StringBuilder(page.substring(0, page.indexOf("\n## ")));
        String owner = "";
        for (String[] row : cells()) {
            if (!row[0].equals(owner)) {
                owner = row[0];
                text.append("\n## ").append(owner);
                text.append("\n\n| name | state | here | note |\n| --- | --- | --- | --- |\n");
            }
            text.append("| ")
                    .append(String.join(" | ", List.of(row).subList(1, 5)))
                    .append(" |\n");
        }
        return text.toString();
    }

    /** With {@code -Dchagres.test.store=true} the page is written anew instead. */
    @Test
    void thePageIsThatOfTheTable() throws IOException {
        String page = Files.readString(PAGE);
        String expected = written(page);
        if (Boolean.getBoolean("chagres.test.store")) {
            Files.writeString(PAGE, expected);
        } else {
            assertEquals(
                    expected, page, "docs/te-surface.md and te-surface.tsv; -Dchagres.test.store=true writes the page");
        }
    }

    private static Stream<String> quoted(String text) {
        return NAME.matcher(text).results().map((MatchResult found) -> found.group(1));
    }

    @Test
    void eachRowHasAStateAndWhatThatAsksFor() throws IOException {
        Set<String> seen = new TreeSet<>();
        for (Row row : rows()) {
            assertTrue(seen.add(row.toString()), () -> row + " stands twice");
            assertTrue(
                    WITH_NAMES.contains(row.state) || WITHOUT_NAMES.contains(row.state),
                    () -> row + " is \"" + row.state + "\"");
            assertEquals(WITH_NAMES.contains(row.state), !row.names.isEmpty(), () -> row + " names " + row.names);
            if (row.state.equals("partly") || row.state.equals("not needed")) {
                assertFalse(row.note.isEmpty(), () -> row + " is " + row.state + " without a note");
            }
        }
    }

    /** A section with a row for each argument of each of TE's functions, and one with each name of its modules. */
    @Test
    void eachFunctionAndEachNameOfTeStandsThere() throws IOException {
        Set<String> modules = new TreeSet<>();
        Set<String> ofTe = new TreeSet<>();
        for (String line : surface()) {
            String[] words = line.split(" ");
            if (words[0].endsWith(":")) {
                modules.add(words[0]);
                Arrays.stream(words).skip(1).forEach(name -> ofTe.add(words[0] + " " + name));
            } else {
                ofTe.add(line);
            }
        }
        assertTrue(modules.size() > 5 && ofTe.size() > 180, ofTe::toString);
        Set<String> here = new TreeSet<>();
        Map<String, Integer> arguments = new TreeMap<>();
        for (Row row : rows()) {
            String owner = quoted(row.owner).collect(Collectors.joining(" "));
            if (modules.contains(owner + ":")) {
                quoted(row.argument)
                        .map(name -> owner + ": " + name)
                        .forEach(name -> assertTrue(here.add(name), () -> name + " stands twice"));
            } else {
                arguments.merge(owner, 1, Integer::sum);
            }
        }
        arguments.forEach((function, count) -> here.add(function + " " + count));
        assertEquals(Set.of(), without(ofTe, here), "of TE, but not in docs/te-surface.md");
        assertEquals(Set.of(), without(here, ofTe), "in docs/te-surface.md, but not of TE");
    }

    private static Set<String> without(Set<String> all, Set<String> some) {
        Set<String> rest = new TreeSet<>(all);
        rest.removeAll(some);
        return rest;
    }

    private static List<String> surface() throws IOException {
        return lines("/te-surface.txt").stream()
                .filter(line -> !line.startsWith("#"))
                .toList();
    }

    private static List<String> lines(String resource) throws IOException {
        try (InputStream file = Objects.requireNonNull(TeSurfaceTest.class.getResourceAsStream(resource), resource)) {
            return new String(file.readAllBytes(), StandardCharsets.UTF_8)
                    .lines()
                    .toList();
        }
    }

    @Test
    void eachNameExists() throws IOException {
        for (Row row : rows()) {
            for (String name : row.names) {
                assertTrue(exists(name), () -> row + " names " + name + ", which is not public here");
            }
        }
        assertFalse(exists("MlpConfig.withFire"));
        assertFalse(exists("MlpBranch"));
        assertFalse(exists("MlpConfig.Recomputation.SOME"));
    }

    private static boolean exists(String name) {
        String[] parts = name.split("\\.");
        Class<?> type = Stream.concat(Exports.packages().stream(), Stream.of("bindings"))
                .map(place -> load("dev.chagres." + (place.isEmpty() ? "" : place + ".") + parts[0]))
                .filter(found -> found != null && Modifier.isPublic(found.getModifiers()))
                .findFirst()
                .orElse(null);
        for (int i = 1; type != null && i < parts.length; i++) {
            Class<?> nested = load(type.getName() + "$" + parts[i]);
            if (nested == null) {
                return i == parts.length - 1 && hasMember(type, parts[i]);
            }
            type = Modifier.isPublic(nested.getModifiers()) ? nested : null;
        }
        return type != null;
    }

    private static boolean hasMember(Class<?> type, String name) {
        return Stream.<Member>concat(Arrays.stream(type.getMethods()), Arrays.stream(type.getFields()))
                .anyMatch(member -> member.getName().equals(name));
    }

    private static @Nullable Class<?> load(String name) {
        try {
            return Class.forName(name, false, Layer.class.getClassLoader());
        } catch (ClassNotFoundException e) {
            return null;
        }
    }

    /** A {@code with} method that is added to a layer's configuration joins the table. */
    @Test
    void eachOptionOfALayersConfigurationStandsThere() throws IOException, URISyntaxException {
        Set<String> named = rows().stream().flatMap(row -> row.names.stream()).collect(Collectors.toSet());
        Set<String> options = new TreeSet<>();
        Path place = Path.of(
                Layer.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        try (Stream<Path> files = Files.list(place.resolve("dev/chagres/layer"))) {
            files.map(file -> file.getFileName().toString())
                    .filter(file -> file.endsWith("Config.class"))
                    .map(file -> load("dev.chagres.layer." + file.replace(".class", "")))
                    .filter(type -> type != null && Modifier.isPublic(type.getModifiers()))
                    .forEach(type -> Arrays.stream(type.getMethods())
                            .map(Method::getName)
                            .filter(name -> name.startsWith("with"))
                            .forEach(name -> options.add(type.getSimpleName() + "." + name)));
        }
        assertTrue(options.size() > 25, options::toString);
        options.removeAll(named);
        assertEquals(Set.of(), options, "options that docs/te-surface.md does not name");
    }
}
