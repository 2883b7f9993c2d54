package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.te.TransformerEngine;
import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The list of TE's functions, docs/te-functions.md, against the bindings and the code. */
@Tag("L0")
class TeFunctionsTest {
    private static final Path ROOT = Path.of("").toAbsolutePath().getParent();
    private static final String PAGE = "docs/te-functions.md";
    private static final Set<String> OF_THE_GUARD = Set.of("te_has", "te_last_error", "te_open", "te_set_environment");
    private static final Pattern NAME = Pattern.compile("`([^`]+)`");
    /** A call or a method reference, not a name in a text. */
    private static final Pattern CALL = Pattern.compile("(?<=::|#)te_[A-Za-z0-9_]+\\b|\\bte_[A-Za-z0-9_]+(?=\\()");

    private static final Pattern REASON = Pattern.compile("^\\| ([a-z A-Z]+) \\| [a-z`].*\\|$");

    /** Returns the second cell of each function's row, by {@code te_} name. */
    private static Map<String, String> page() throws IOException {
        Map<String, String> cells = new TreeMap<>();
        for (String line : Files.readAllLines(ROOT.resolve(PAGE))) {
            if (!line.startsWith("| `nvte_")) {
                continue;
            }
            String[] row = line.substring(1).split("\\|", -1);
            assertEquals(3, row.length, line);
            for (MatchResult name : NAME.matcher(row[0]).results().toList()) {
                String guarded = name.group(1).substring("nv".length());
                assertEquals(null, cells.put(guarded, row[1].strip()), name.group(1) + " stands there twice");
            }
        }
        return cells;
    }

    private static Set<String> reasons() throws IOException {
        Set<String> reasons = new TreeSet<>();
        for (String line : Files.readAllLines(ROOT.resolve(PAGE))) {
            if (line.startsWith("## ")) {
                break;
            }
            REASON.matcher(line).results().forEach(found -> reasons.add(found.group(1)));
        }
        reasons.remove("word");
        return reasons;
    }

    /** Returns the names of the classes that call each function. */
    private static Map<String, Set<String>> callers() throws IOException {
        Map<String, Set<String>> callers = new TreeMap<>();
        for (String module : new String[] {"api", "bindings"}) {
            try (Stream<Path> files = Files.walk(ROOT.resolve(module).resolve("src/main/java"))) {
                for (Path file :
                        files.filter(path -> path.toString().endsWith(".java")).toList()) {
                    String name = file.getFileName().toString().replace(".java", "");
                    CALL.matcher(Files.readString(file))
                            .results()
                            .forEach(call -> callers.computeIfAbsent(call.group(), none -> new TreeSet<>())
                                    .add(name));
                }
            }
        }
        return callers;
    }

    @Test
    void thePageHasEachFunctionOfTheBindingsOnce() throws IOException {
        Set<String> bound = new TreeSet<>();
        for (Method method : TransformerEngine.class.getMethods()) {
            String name = method.getName();
            if (name.startsWith("te_") && !name.contains("$") && !OF_THE_GUARD.contains(name)) {
                bound.add(name);
            }
        }
        assertTrue(bound.size() > 300, "functions of the bindings");
        assertEquals(bound, page().keySet());
    }

    @Test
    void eachFunctionIsCalledOrHasAReason() throws IOException {
        Map<String, Set<String>> callers = callers();
        Set<String> reasons = reasons();
        assertEquals(6, reasons.size(), reasons.toString());
        page().forEach((function, cell) -> {
            if (cell.startsWith("`")) {
                String caller = cell.substring(1, cell.length() - 1);
                assertTrue(
                        callers.getOrDefault(function, Set.of()).contains(caller),
                        function + ": " + PAGE + " says that " + caller + " calls it");
            } else {
                assertTrue(reasons.contains(cell), function + ": " + cell + " is none of " + reasons);
                assertEquals(null, callers.get(function), function + ": " + PAGE + " says that no class calls it");
            }
        });
    }
}
