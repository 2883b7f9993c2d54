package dev.chagres.io;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.conformance.ChildJvm;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Headers for which the heap has no room are refused, and the JVM goes on. */
@Tag("L0")
class SafetensorsHeapTest {
    private static final int TENSORS = 60_000;
    private static final int TEXTS = 120_000;

    @TempDir
    private Path folder;

    /** Opens each file and prints what comes of it. */
    static final class Open {
        public static void main(String[] files) {
            for (String file : files) {
                try (SafetensorsFile opened = SafetensorsFile.open(Path.of(file))) {
                    System.out.println("opened " + opened.entries().size());
                } catch (SafetensorsException refused) {
                    System.out.println(refused.getMessage());
                }
            }
        }
    }

    private Path tensors() throws IOException {
        StringBuilder json = new StringBuilder("{");
        for (int i = 0; i < TENSORS; i++) {
            json.append(i == 0 ? "" : ",").append(RawFile.tensor("t" + i, "U8", "[0]", 0, 0));
        }
        return RawFile.write(folder, RawFile.bytes(json.append('}').toString()));
    }

    private static String texts(int count, String text) {
        StringBuilder json = new StringBuilder("{\"__metadata__\":{");
        for (int i = 0; i < count; i++) {
            json.append(i == 0 ? "" : ",")
                    .append('"')
                    .append(i)
                    .append("\":\"")
                    .append(text)
                    .append('"');
        }
        return json.append("}}").toString();
    }

    private static List<String> open(Path file, String heap) throws IOException, InterruptedException {
        Process process = ChildJvm.of(List.of(heap), Open.class, file.toString())
                .redirectErrorStream(true)
                .start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor(), output);
        return output.lines().toList();
    }

    private static void assertRefused(String line, Path file, String expected) {
        assertTrue(line.startsWith(file + ": header: expected " + expected), line);
        assertTrue(line.endsWith("; enlarge the heap, such as by java -Xmx4g, if this is the right file"), line);
    }

    @Test
    void soManyTensorsThatTheHeapIsTooSmallAreRefused() throws IOException, InterruptedException {
        Path file = tensors();
        assertRefused(open(file, "-Xmx48m").getLast(), file, "tensors and texts that fit into ");
        assertEquals("opened " + TENSORS, open(file, "-Xmx256m").getLast());
    }

    @Test
    void soMuchMetadataThatTheHeapIsTooSmallIsRefused() throws IOException, InterruptedException {
        Path file = RawFile.write(folder, RawFile.bytes(texts(TEXTS, "")));
        assertRefused(open(file, "-Xmx48m").getLast(), file, "tensors and texts that fit into ");
        RawFile.write(folder, RawFile.bytes(texts(1, "x".repeat(9_000_000))));
        assertRefused(open(file, "-Xmx48m").getLast(), file, "texts of at most ");
        assertEquals("opened 0", open(file, "-Xmx256m").getLast());
    }

    @Test
    void hostileNamesAndTextsAreShownWithoutActing() throws IOException {
        String hostile = "\\u001b[2J\\u0000" + "n".repeat(60_000);
        for (String json : List.of(
                "{" + RawFile.tensor(hostile, "F4", "[1]", 0, 1) + "}",
                "{" + RawFile.tensor("a", hostile, "[1]", 0, 1) + "}",
                "{\"a\":{\"" + hostile + "\":1}}",
                "{\"__metadata__\":{\"" + hostile + "\":1}}",
                "{\"" + hostile + "\":{},\"" + hostile + "\":{}}",
                "{\"a\":" + hostile + "}",
                "{\u001b[2J}")) {
            Path file = RawFile.write(folder, RawFile.bytes(json));
            try (SafetensorsFile opened = SafetensorsFile.open(file)) {
                throw new AssertionError("opened " + opened);
            } catch (SafetensorsException refused) {
                String text = String.valueOf(refused.getMessage());
                assertTrue(text.length() < 1500, text);
                assertTrue(text.chars().noneMatch(Character::isISOControl), text);
            }
        }
    }
}
