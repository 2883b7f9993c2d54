package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.nccl.Nccl;
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

/** The list of NCCL's functions, docs/nccl-functions.md, against the bindings and the code. */
@Tag("L0")
class NcclFunctionsTest {
    private static final Path ROOT = Path.of("").toAbsolutePath().getParent();
    private static final String PAGE = "docs/nccl-functions.md";
    private static final Pattern NAME = Pattern.compile("`([^`]+)`");
    /** A call of the bindings. */
    private static final Pattern CALL = Pattern.compile("\\bNccl\\.(nccl[A-Z][A-Za-z]+)(?:\\$address)?\\(");
    /** A call by name, in the module that opens the libraries. */
    private static final Pattern CALL_BY_NAME = Pattern.compile("(?:text|handle|call)\\((?:library, )?\"(nccl\\w+)\"");

    private static final Pattern REASON = Pattern.compile("^\\| ([a-z ]+) \\| [a-z].*\\|$");
    /** What jextract gives each function, and no constant. */
    private static final String OF_A_FUNCTION = "$descriptor";

    /** Returns the second cell of each function's row. */
    private static Map<String, String> page() throws IOException {
        Map<String, String> cells = new TreeMap<>();
        for (String line : Files.readAllLines(ROOT.resolve(PAGE))) {
            if (!line.startsWith("| `nccl")) {
                continue;
            }
            String[] row = line.substring(1).split("\\|", -1);
            assertEquals(4, row.length, line);
            for (MatchResult name : NAME.matcher(row[0]).results().toList()) {
                assertEquals(null, cells.put(name.group(1), row[1].strip()), name.group(1) + " stands there twice");
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
        collect("api", CALL, callers);
        collect("bindings", CALL_BY_NAME, callers);
        return callers;
    }

    private static void collect(String module, Pattern call, Map<String, Set<String>> callers) throws IOException {
        try (Stream<Path> files = Files.walk(ROOT.resolve(module).resolve("src/main/java"))) {
            for (Path file :
                    files.filter(path -> path.toString().endsWith(".java")).toList()) {
                String name = file.getFileName().toString().replace(".java", "");
                call.matcher(Files.readString(file))
                        .results()
                        .forEach(found -> callers.computeIfAbsent(found.group(1), none -> new TreeSet<>())
                                .add(name));
            }
        }
    }

    @Test
    void thePageHasEachFunctionOfTheBindingsOnce() throws IOException {
        Set<String> bound = new TreeSet<>();
        for (Method method : Nccl.class.getMethods()) {
            String name = method.getName();
            if (name.endsWith(OF_A_FUNCTION)) {
                bound.add(name.substring(0, name.length() - OF_A_FUNCTION.length()));
            }
        }
        assertTrue(bound.size() > 35, "functions of the bindings");
        assertEquals(bound, page().keySet());
    }

    @Test
    void eachFunctionIsCalledByTheClassesOfThePageOrHasAReason() throws IOException {
        Map<String, Set<String>> callers = callers();
        Set<String> reasons = reasons();
        assertEquals(5, reasons.size(), reasons.toString());
        page().forEach((function, cell) -> {
            Set<String> calling = callers.getOrDefault(function, Set.of());
            if (cell.startsWith("`")) {
                Set<String> named = new TreeSet<>();
                NAME.matcher(cell).results().forEach(found -> named.add(found.group(1)));
                assertFalse(calling.isEmpty(), function + ": " + PAGE + " says that " + named + " call it; none does");
                assertTrue(named.containsAll(calling), function + ": " + PAGE + " does not name all of " + calling);
            } else {
                assertTrue(reasons.contains(cell), function + ": " + cell + " is none of " + reasons);
                assertEquals(Set.of(), calling, function + ": " + PAGE + " says that no class calls it");
            }
        });
    }

    /** A class that a row names calls a function of that row. */
    @Test
    void eachClassOfThePageCallsAFunctionOfItsRow() throws IOException {
        Map<String, Set<String>> callers = callers();
        Map<String, Set<String>> functionsOfCell = new TreeMap<>();
        page().forEach((function, cell) -> functionsOfCell
                .computeIfAbsent(cell, none -> new TreeSet<>())
                .addAll(callers.getOrDefault(function, Set.of())));
        functionsOfCell.forEach((cell, calling) -> NAME.matcher(cell)
                .results()
                .forEach(found -> assertTrue(
                        calling.contains(found.group(1)), cell + ": " + found.group(1) + " calls none of them")));
    }
}
