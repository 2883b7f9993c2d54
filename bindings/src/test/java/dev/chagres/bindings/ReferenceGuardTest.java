package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * No argument that makes no sense ends the process on the reference either, which lacks some functions. Its device memory
 * is host memory, so nothing can tell that a pointer to host memory with a billion bytes behind it is wrong: such pairs are
 * left out.
 */
@Tag("L0")
class ReferenceGuardTest {
    private static final Pattern QUOTED = Pattern.compile("[`\"]([a-zA-Z0-9_]+)[`\"]");

    /** What an error says of a function, by the word that stands behind it in docs/te-functions.md. */
    private static final Map<String, String> REASONS = Map.of(
            "experts", "it belongs to mixtures of experts, which the CPU reference does not compute",
            "several GPUs",
                    "it belongs to training over several GPUs, which the CPU reference does by NCCL's functions alone",
            "generation", "it belongs to generating text, which the CPU reference does not compute",
            "Blackwell",
                    "it belongs to MXFP8 and NVFP4, which need compute capability 10.0, and the CPU reference computes as 9.0 does",
            "handles", "it asks for streams, handles or counts of CUDA's libraries, which the CPU reference lacks");

    @Test
    void everyFunctionAnswersWhateverItIsGiven() throws IOException {
        List<GuardAnswers> all = GuardAnswers.of(
                List.of("-Dchagres.provider=reference"),
                List.of("null,0", "null,-1", "null,1000000000", "0x1,0", "0xffff,1", "memory,0", "memory,1"));
        Map<String, String> page = page();
        for (GuardAnswers answers : all) {
            answers.assertWhole();
            for (GuardAnswers.Answer answer : answers.answers()) {
                if (answer.status() == GuardAnswers.MISSING) {
                    assertSaysWhy(answer, page);
                }
            }
        }
        TreeSet<String> listed = new TreeSet<>();
        QUOTED.matcher(Files.readString(root().resolve("native/guard/absent.cpp")))
                .results()
                .forEach(name -> listed.add("te_" + name.group(1)));
        listed.removeAll(all.getFirst().functionsWith(GuardAnswers.MISSING));
        assertEquals(new TreeSet<>(), listed, "the reference has what native/guard/absent.cpp says that it lacks");
    }

    private static void assertSaysWhy(GuardAnswers.Answer answer, Map<String, String> page) {
        String name = "nvte_" + answer.function().substring(3);
        String reason = REASONS.get(page.get(name));
        String end = reason == null ? "libchagres_reference.so" : "libchagres_reference.so: " + reason;
        assertTrue(
                answer.text().startsWith(name + " is not in ") && answer.text().endsWith(end),
                () -> answer + ", which docs/te-functions.md lists as " + page.get(name));
    }

    private static Path root() {
        Path folder = Path.of("").toAbsolutePath();
        return Files.exists(folder.resolve("docs")) ? folder : folder.getParent();
    }

    /** Returns the second cell of each function's row. */
    private static Map<String, String> page() throws IOException {
        Map<String, String> cells = new TreeMap<>();
        for (String line : Files.readAllLines(root().resolve("docs/te-functions.md"))) {
            if (line.startsWith("| `nvte_")) {
                String[] row = line.substring(1).split("\\|", -1);
                QUOTED.matcher(row[0]).results().forEach(name -> cells.put(name.group(1), row[1].strip()));
            }
        }
        assertTrue(cells.size() > 300, "functions of docs/te-functions.md");
        return cells;
    }
}
