package dev.chagres.models.text;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.batch.TokenSequences;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.TreeSet;
import java.util.zip.GZIPOutputStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Text that is read window by window: JSON Lines, gz and Parquet, whole and damaged. */
@Tag("L0")
class TextStreamsTest {
    private static final Path STORED = Path.of("src/test/resources/text");
    private static final int LINES = 200;

    @TempDir
    private Path folder;

    private final Tokenizer tokenizer = Tokenizer.open(TokenizerTest.stored("llama3"));

    @AfterEach
    void closeTokenizer() {
        tokenizer.close();
    }

    private Path lines() throws IOException {
        String[] lines = new String[LINES];
        Arrays.setAll(lines, i -> "{\"text\": \"number " + i + " of some\"}");
        return Files.write(folder.resolve("many.jsonl"), List.of(lines));
    }

    private static byte[] gz(byte[] plain) throws IOException {
        var out = new ByteArrayOutputStream();
        try (var gz = new GZIPOutputStream(out)) {
            gz.write(plain);
        }
        return out.toByteArray();
    }

    /** Returns the next sequences as texts, at most {@code most}. */
    private List<String> texts(TokenSequences sequences, int most) {
        List<String> texts = new ArrayList<>();
        while (texts.size() < most && sequences.advance()) {
            int count = sequences.length();
            int[] ids = new int[count];
            sequences.write(ids, new int[count], 0, count);
            texts.add(tokenizer.decode(Arrays.copyOfRange(ids, 1, count)));
        }
        return texts;
    }

    private List<String> once(Path... files) {
        try (TextSequences sequences = TextSequences.once(List.of(files), tokenizer, TextConfig.of(64))) {
            return texts(sequences, Integer.MAX_VALUE);
        }
    }

    private String refusal(Path file) {
        return assertThrows(TextException.class, () -> once(file)).getMessage();
    }

    /** An epoch has each text once, whatever the window is; the order within a window is drawn anew. */
    @Test
    void windowsHoldAllTextsOnceAnEpoch() throws IOException {
        Path file = lines();
        List<String> inOrder = once(file);
        assertEquals(LINES, inOrder.size());
        assertEquals("number 7 of some", inOrder.get(7));
        for (int window : new int[] {1, 100, 1 << 20}) {
            try (var stream = TextSequences.stream(List.of(file), tokenizer, TextConfig.of(64), window);
                    var same = TextSequences.stream(List.of(file), tokenizer, TextConfig.of(64), window)) {
                List<String> first = texts(stream, LINES);
                assertEquals(0, stream.epoch());
                List<String> second = texts(stream, LINES);
                assertEquals(1, stream.epoch());
                assertEquals(new TreeSet<>(inOrder), new TreeSet<>(first), "window " + window);
                assertEquals(new TreeSet<>(inOrder), new TreeSet<>(second), "window " + window);
                assertEquals(first, texts(same, LINES));
                assertTrue(window == 1 || !first.equals(second));
                assertTrue(window != 100 || stream.count() < LINES / 2, "a window is a part");
            }
        }
        try (var whole = TextSequences.stream(List.of(file), tokenizer, TextConfig.of(64), 1 << 20)) {
            assertEquals(
                    texts(TextSequences.read(List.of(file), tokenizer, TextConfig.of(64)), 2 * LINES),
                    texts(whole, 2 * LINES));
        }
    }

    @Test
    void gzIsReadAndItsDamageTold() throws IOException {
        byte[] plain = Files.readAllBytes(lines());
        Path file = folder.resolve("many.jsonl.gz");
        byte[] whole = gz(plain);
        Files.write(file, whole);
        assertEquals(LINES, once(file).size());
        Files.write(file, Arrays.copyOf(whole, whole.length / 2));
        assertTrue(refusal(file).contains("gz data ends in the middle"), () -> refusal(file));
        Files.write(file, plain);
        assertTrue(refusal(file).startsWith(file + ": could not be read: "), () -> refusal(file));
        Path text = Files.write(folder.resolve("a.txt.gz"), gz("one text".getBytes(StandardCharsets.UTF_8)));
        assertEquals(List.of("one text"), once(text));
    }

    @Test
    void parquetIsRead() {
        List<String> texts = once(STORED.resolve("texts.parquet"));
        assertEquals(30, texts.size());
        assertEquals("number 29 – Größe", texts.get(29));
        assertEquals(List.of("The dog jumps", "A fox sleeps"), once(STORED.resolve("pairs.parquet")));
        try (var sequences =
                TextSequences.once(List.of(STORED.resolve("pairs.parquet")), tokenizer, TextConfig.of(64))) {
            sequences.advance();
            int count = sequences.length();
            int learned = sequences.write(new int[count], new int[count], 0, count);
            assertEquals(tokenizer.encodeInside(" jumps").length, learned, "completions alone are learned");
        }
    }

    @Test
    void parquetWithOtherColumnsIsRefused() throws IOException {
        Path hole = STORED.resolve("hole.parquet");
        assertEquals(
                hole
                        + ":2: expected an object with text, with prompt and completion, or with messages, got none of them",
                refusal(hole));
        Path numbers = STORED.resolve("numbers.parquet");
        assertEquals(
                numbers + ": expected a column of strings text, or prompt and completion, got [text, prompt]",
                refusal(numbers));
        Path none = folder.resolve("none.parquet");
        assertEquals(none + ": there is no such file", refusal(none));
        Path other = Files.writeString(folder.resolve("other.parquet"), "no such format at all, but long enough");
        assertTrue(refusal(other).startsWith(other + ": expected a Parquet file: "), () -> refusal(other));
    }

    @Test
    void badLinesAreToldByTheirNumber() throws IOException {
        byte[] good = "{\"text\": \"good\"}\n".getBytes(StandardCharsets.UTF_8);
        Path file = folder.resolve("bad.jsonl");
        for (byte[] bad : List.of(
                "{\"text\": \"Gr\u00f6\u00dfe\"}".getBytes(StandardCharsets.ISO_8859_1),
                "{\"text\": \"\u0000\"}".getBytes(StandardCharsets.UTF_8),
                "\u0000\u0000".getBytes(StandardCharsets.UTF_8),
                "{\"text\": \"x".getBytes(StandardCharsets.UTF_8))) {
            var bytes = new ByteArrayOutputStream();
            for (int i = 0; i < 5; i++) {
                bytes.writeBytes(good);
            }
            bytes.writeBytes(bad);
            Files.write(file, bytes.toByteArray());
            assertTrue(refusal(file).startsWith(file + ":6: "), () -> refusal(file));
        }
        Files.writeString(file, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}");
        assertTrue(refusal(file).contains(": expected a template for messages, got none"), () -> refusal(file));
        Files.writeString(file, "{\"tools\": [" + "0,".repeat(1 << 20) + "0]}");
        assertEquals(file + ":1: tools: expected up to 1048576 values, got more", refusal(file));
        Files.writeString(file, "{\"messages\": [{\"role\": \"" + "x".repeat(1 << 25) + "\"}]}");
        assertEquals(
                file + ":1: messages: expected a line of up to 33554432 characters, got 33554460; divide the chat",
                refusal(file));
        Files.writeString(file, "\ufeff{\"text\": \"marked\"}\r\n\r\n");
        assertEquals(List.of("marked"), once(file));
        assertTrue(refusal(folder).startsWith(folder + ": could not be read: it is a directory"));
    }

    @Test
    void contentTellsFilesAndTokenizersApart() throws IOException {
        Path file = lines();
        TextSource one = new TextSource(List.of(file), TokenizerTest.stored("llama3"), TextConfig.of(8));
        TextSource other = new TextSource(List.of(file), TokenizerTest.stored("qwen"), TextConfig.of(8));
        TextSource ended =
                new TextSource(List.of(file), TokenizerTest.stored("llama3"), new TextConfig(8, Optional.of(421), 0));
        assertNotEquals(one.content(), other.content());
        assertNotEquals(one.content(), ended.content());
        String before = one.content();
        Files.writeString(file, "{\"text\": \"other\"}");
        assertNotEquals(before, one.content());
        try (TextSequences sequences = one.once()) {
            assertTrue(sequences.advance());
            assertFalse(sequences.advance());
        }
        assertThrows(
                IllegalArgumentException.class,
                () -> new TextSource(List.of(), TokenizerTest.stored("llama3"), TextConfig.of(8)));
    }

    /** Bytes changed, doubled, zeroed or cut, at drawn places: texts come, or one typed error that begins with the file's name. */
    @Test
    void mutatedFilesAreReadOrRefused() throws IOException {
        Random random = new Random(17);
        byte[] plain = Files.readAllBytes(lines());
        byte[][] wholes = {plain, gz(plain), Files.readAllBytes(STORED.resolve("texts.parquet"))};
        String[] endings = {".jsonl", ".jsonl.gz", ".parquet"};
        int refused = 0;
        for (int i = 0; i < 900; i++) {
            byte[] whole = wholes[i % 3];
            int at = random.nextInt(whole.length);
            int length = 1 + random.nextInt(12);
            int end = Math.min(whole.length, at + length);
            var mutated = new ByteArrayOutputStream();
            mutated.write(whole, 0, at);
            switch (random.nextInt(4)) {
                case 0 -> mutated.write(random.nextInt(256));
                case 1 -> mutated.write(whole, at, end - at);
                case 2 -> mutated.write(new byte[length], 0, length);
                default -> end = whole.length;
            }
            mutated.write(whole, end, whole.length - end);
            Path file = Files.write(folder.resolve("mutated" + endings[i % 3]), mutated.toByteArray());
            try {
                once(file);
            } catch (TextException told) {
                refused++;
                assertTrue(told.getMessage().startsWith(file.toString()), told::getMessage);
                assertEquals(1, told.getMessage().lines().count(), told::getMessage);
            } catch (IllegalArgumentException nothing) {
                assertTrue(
                        nothing.getMessage().startsWith("files: expected a text of two tokens"), nothing::getMessage);
            }
        }
        assertTrue(refused > 300, refused + " refused, seed 17");
    }
}
