package dev.chagres.models.text;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.batch.Batch;
import dev.chagres.models.data.HeldOut;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.TreeSet;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Text files as sequences of tokens: what is written, what is learned, and in which order. */
@Tag("L0")
class TextSequencesTest {
    private static final int BEGIN = 420;
    private static final int END = 421;

    @TempDir
    private Path folder;

    private final Tokenizer tokenizer = Tokenizer.open(TokenizerTest.stored("llama3"));

    @AfterEach
    void closeTokenizer() {
        tokenizer.close();
    }

    private Path file(String name, String... lines) throws IOException {
        return Files.writeString(folder.resolve(name), String.join("\n", lines));
    }

    /** Tokens and labels of a sequence. */
    private record Written(List<Integer> ids, List<Integer> labels) {}

    private static List<Written> epoch(TextSequences sequences, int context) {
        List<Written> all = new ArrayList<>();
        for (int i = 0; i < sequences.count(); i++) {
            sequences.advance();
            int count = Math.min(context, sequences.length());
            int[] ids = new int[count + 2];
            int[] labels = new int[count + 2];
            int labelled = sequences.write(ids, labels, 1, count);
            List<Integer> own = Arrays.stream(labels, 1, count + 1).boxed().toList();
            assertEquals(
                    labelled,
                    own.stream().filter(label -> label != Batch.IGNORED).count());
            all.add(new Written(Arrays.stream(ids, 1, count + 1).boxed().toList(), own));
        }
        return all;
    }

    private static List<Integer> list(int... tokens) {
        return Arrays.stream(tokens).boxed().toList();
    }

    private static List<Integer> joined(List<Integer> one, List<Integer> other) {
        List<Integer> all = new ArrayList<>(one);
        all.addAll(other);
        return all;
    }

    @Test
    void eachTextIsHeldOutOrNot() throws IOException {
        Path file = folder.resolve("many.jsonl");
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            lines.add("{\"text\": \"number " + i + "\"}");
        }
        Files.write(file, lines);
        HeldOut part = new HeldOut(0.3);
        TextConfig all = TextConfig.of(16);
        try (Tokenizer tokenizer = Tokenizer.open(TokenizerTest.stored("qwen"))) {
            int held =
                    TextSequences.read(List.of(file), tokenizer, all.only(part)).count();
            assertEquals(30, held, 15);
            assertEquals(
                    100 - held,
                    TextSequences.read(List.of(file), tokenizer, all.without(part))
                            .count());
        }
        assertThrows(
                IllegalArgumentException.class,
                () -> new TextConfig(8, Optional.empty(), 0, TextConfig.Texts.OTHERS, Optional.empty()));
    }

    @Test
    void aTextIsCutIntoSequencesThatFollowEachOther() throws IOException {
        String text = "The quick brown fox jumps over the lazy dog. ".repeat(4);
        Path file = file("a.txt", text);
        TextSequences sequences =
                TextSequences.read(List.of(file), tokenizer, TextConfig.of(16).withEnd(END));
        List<Integer> tokens = joined(list(tokenizer.encode(text)), List.of(END));
        assertEquals(BEGIN, tokens.getFirst());
        assertEquals(Math.ceilDiv(tokens.size(), 16), sequences.count());
        List<Written> written = new ArrayList<>(epoch(sequences, 16));
        for (int i = 0; i < tokens.size(); i += 16) {
            int end = Math.min(tokens.size(), i + 16);
            List<Integer> labels = new ArrayList<>(tokens.subList(i + 1, Math.min(tokens.size(), i + 17)));
            if (end == tokens.size()) {
                labels.add(Batch.IGNORED);
            }
            written.remove(new Written(tokens.subList(i, end), labels));
        }
        assertEquals(List.of(), written);
    }

    @Test
    void onlyTheCompletionIsLearned() throws IOException {
        Path file = file(
                "pairs.jsonl",
                "{\"prompt\": \"The dog\", \"completion\": \" jumps\", \"id\": {\"a\": [1]}}",
                "",
                "{\"text\": \"It's\"}");
        TextSequences sequences =
                TextSequences.read(List.of(file), tokenizer, TextConfig.of(64).withEnd(END));
        List<Integer> prompt = list(tokenizer.encode("The dog"));
        List<Integer> completion = joined(list(tokenizer.encodeInside(" jumps")), List.of(END));
        List<Integer> labels = new ArrayList<>();
        for (int i = 1; i < prompt.size(); i++) {
            labels.add(Batch.IGNORED);
        }
        labels.addAll(completion);
        labels.add(Batch.IGNORED);
        List<Integer> text = joined(list(tokenizer.encode("It's")), List.of(END));
        List<Written> all = epoch(sequences, 64);
        assertEquals(2, all.size());
        assertEquals(
                new TreeSet<>(List.of(
                        new Written(joined(prompt, completion), labels).toString(),
                        new Written(text, joined(text.subList(1, text.size()), List.of(Batch.IGNORED))).toString())),
                new TreeSet<>(all.stream().map(Written::toString).toList()));
    }

    /** What is written does not depend on what was written before. */
    @Test
    void theOrderFollowsFromTheSeed() throws IOException {
        String[] lines = new String[40];
        Arrays.setAll(lines, i -> "{\"text\": \"number " + i + "\"}");
        Path file = file("many.JSONL", lines);
        TextConfig config = TextConfig.of(64);
        TextSequences one = TextSequences.read(List.of(file), tokenizer, config);
        TextSequences same = TextSequences.read(List.of(file), tokenizer, config);
        TextSequences other = TextSequences.read(List.of(file), tokenizer, config.withSeed(5));
        List<Written> first = epoch(one, 64);
        assertEquals(0, one.epoch());
        assertEquals(first, epoch(same, 64));
        assertNotEquals(first, epoch(other, 64));
        List<Written> second = epoch(one, 64);
        assertEquals(1, one.epoch());
        assertNotEquals(first, second);
        assertEquals(40, new TreeSet<>(second.stream().map(Written::toString).toList()).size());
    }

    @Test
    void whatHasNoLabelIsLeftOut() throws IOException {
        Path file = file(
                "a.jsonl",
                "{\"text\": \"\"}",
                "{\"prompt\": \"" + "a long prompt ".repeat(20) + "\", \"completion\": \"x\"}",
                "{\"text\": \"two\"}");
        TextSequences sequences = TextSequences.read(List.of(file), tokenizer, TextConfig.of(8));
        assertEquals(1, sequences.count());
        assertEquals(2, sequences.leftOut());
    }

    @Test
    void fieldsThatAreNullAreNotThere() throws IOException {
        Path file = file(
                "null.jsonl",
                "{\"text\": \"a b\", \"prompt\": null, \"completion\": null, \"messages\": null, \"tools\": null}",
                "{\"text\": null, \"prompt\": \"a \", \"completion\": \"b\", \"messages\": null, \"other\": null}",
                "{\"text\": null, \"messages\": [{\"role\": \"user\", \"content\": \"a\", \"name\": null}], \"tools\": null}");
        try (TextReader reader = TextReader.open(file)) {
            assertEquals("a b", Objects.requireNonNull(reader.next()).text());
            assertEquals("a ", Objects.requireNonNull(reader.next()).prompt());
            assertEquals(
                    List.of(new ChatTemplate.Message("user", "a")),
                    Objects.requireNonNull(reader.next()).messages());
        }
    }

    @Test
    void refusesOtherFiles() throws IOException {
        String[] lines = {
            "{\"text\": 5}",
            "{\"prompt\": \"x\"}",
            "{\"text\": \"x\", \"prompt\": \"y\", \"completion\": \"z\"}",
            "{\"texts\": []}",
            "[]",
            "{\"text\": \"x\"} 5",
            "{\"text\": \"x\"",
            "{\"text\": \"\\ud800\"}",
            "{\"text\": \"x\", \"text\": \"y\"}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"weight\": 0}]}",
            "{\"messages\": [{\"role\": \"user\", \"content\": [\"x\"]}]}",
            "{\"messages\": [5]}",
            "{\"messages\": []}",
            "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\"}]}",
            "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": 5}}]}]}",
            "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": []}]}]}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{\"type\": \"function\"}]}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": \"[5]\"}",
            "{\"text\": \"x\", \"tools\": [{\"name\": \"f\"}]}",
            "{\"text\": null, \"prompt\": null, \"completion\": null, \"messages\": null, \"tools\": null}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"messages\": []}]}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": \"[{\"}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": \"[] 5\"}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": 5}"
        };
        String[] texts = {
            "expected a text for text, got a number",
            "expected an object with text, with prompt and completion, or with messages, got [prompt]",
            "expected an object with text, with prompt and completion, or with messages, got [text, prompt, completion]",
            "expected an object with text, with prompt and completion, or with messages, got none of them",
            "expected an object with text, with prompt and completion, or with messages, got another text",
            "expected one object a line, got more behind it",
            "expected JSON: ",
            "text: expected Unicode characters, got half of a surrogate pair, d800, at 0",
            "expected JSON: ",
            "messages[0].weight: expected no such field: a message has role, content, tool_calls and [name, reasoning,"
                    + " reasoning_content, thinking, tool_call_id], got it",
            "messages[0].content[0]: expected an object, got x",
            "messages[0]: expected an object, got 5",
            "messages: expected a list of one or more, got none",
            "messages[0].content[0].type: expected text, for images and sounds are not read, got image",
            "messages[1].content: expected a text, got none",
            "messages[0].tool_calls[0].function.name: expected a text, got 5",
            "messages[0].tool_calls[0].arguments: expected an object, got a list",
            "tools[0].name: expected a text, got none",
            "tools[0]: expected an object, got 5",
            "tools: expected them beside messages, got none",
            "expected an object with text, with prompt and completion, or with messages, got none of them",
            "messages[0].messages: expected no such field: a message has",
            "tools: expected JSON: ",
            "tools: expected one list, got more behind it",
            "tools: expected a list, got 5"
        };
        for (int i = 0; i < lines.length; i++) {
            Path file = file("bad.jsonl", "{\"text\": \"good\"}", lines[i]);
            String text = refusal(file);
            String expected = file + ":2: " + texts[i];
            assertEquals(expected, text.substring(0, Math.min(text.length(), expected.length())), lines[i]);
        }
        String broken = refusal(file("broken.jsonl", "{\"text\": "));
        assertTrue(broken.endsWith(" at column 10"), broken);
        String number = "7".repeat(2_000);
        Path other = file("other.jsonl", "{\"" + "n".repeat(60_000) + "\": " + number + ", \"text\": \"good\"}");
        try (TextReader reader = TextReader.open(other)) { // a line is as long as it likes
            assertNotNull(reader.next());
        }
        Path latin = Files.write(folder.resolve("latin.txt"), "Größe".getBytes(StandardCharsets.ISO_8859_1));
        assertEquals(
                latin + ": could not be read as UTF-8: ",
                refusal(latin).substring(0, (latin + ": could not be read as UTF-8: ").length()));
        Path none = folder.resolve("none.txt");
        assertEquals(none + ": could not be read: there is no such file", refusal(none));
        Path empty = file("empty.txt");
        for (List<Path> files : List.of(List.of(empty), List.of(empty, empty))) {
            String text = assertThrows(
                            TextException.class, () -> TextSequences.read(files, tokenizer, TextConfig.of(8)))
                    .getMessage();
            assertEquals(
                    empty + ": expected a text of two tokens or more, got none "
                            + (files.size() > 1 ? "there and in 1 more, and 2" : "and 1")
                            + " with nothing to learn: with fewer, or without a completion or an answer of the assistant",
                    text);
        }
        assertEquals(
                "context: expected at least 2 tokens, got 1",
                assertThrows(IllegalArgumentException.class, () -> TextConfig.of(1))
                        .getMessage());
        assertEquals(
                "end: expected a token from 0 on, got -1",
                assertThrows(
                                IllegalArgumentException.class,
                                () -> TextConfig.of(2).withEnd(-1))
                        .getMessage());
        assertArrayEquals(new int[] {BEGIN}, tokenizer.encode(""));
    }

    private String refusal(Path file) {
        return assertThrows(TextException.class, () -> TextSequences.read(List.of(file), tokenizer, TextConfig.of(8)))
                .getMessage();
    }
}
