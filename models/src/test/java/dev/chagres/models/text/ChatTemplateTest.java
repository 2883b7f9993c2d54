package dev.chagres.models.text;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.batch.Batch;
import dev.chagres.models.text.ChatTemplate.Message;
import dev.chagres.models.text.ChatTemplate.Next;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDate;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Chats against texts, tokens and masks of transformers (src/test/vectors/make_chats.py). */
@Tag("L0")
class ChatTemplateTest {
    @TempDir
    private Path folder;

    private void use(String name) throws IOException {
        Path stored = Path.of("src/test/resources/chats", name);
        Files.copy(TokenizerTest.stored("qwen").resolve(Tokenizer.FILE), folder.resolve(Tokenizer.FILE));
        for (String file : List.of(ChatTemplate.FILE, "tokenizer_config.json")) {
            Files.copy(stored.resolve(file), folder.resolve(file));
        }
    }

    private static List<Message> messages(Map<String, Object> vector) {
        return ((List<?>) vector.get("messages"))
                .stream()
                        .map(each -> (Map<?, ?>) each)
                        .map(each -> new Message(String.valueOf(each.get("role")), String.valueOf(each.get("content"))))
                        .toList();
    }

    private static int[] ints(Object list) {
        return ((List<?>) list)
                .stream().mapToInt(each -> ((Number) each).intValue()).toArray();
    }

    @ParameterizedTest
    @ValueSource(strings = {"thoughts", "headers", "brackets", "marked"})
    void textsTokensAndMasksAreThoseOfTransformers(String name) throws IOException {
        use(name);
        ChatTemplate template = ChatTemplate.open(folder);
        Path vectors = Path.of("src/test/resources/chats", name, "vectors.json");
        try (Tokenizer tokenizer = Tokenizer.open(folder)) {
            for (Object each : JSON.std.listFrom(Files.readString(vectors))) {
                @SuppressWarnings("unchecked")
                var vector = (Map<String, Object>) each;
                List<Message> messages = messages(vector);
                if (vector.containsKey("refused")) {
                    assertThrows(TextException.class, () -> tokenizer.encode(messages), messages::toString);
                    continue;
                }
                assertEquals(vector.get("text"), template.render(messages, Next.NOTHING));
                assertEquals(vector.get("answer"), template.render(messages, Next.ANSWER));
                Tokenizer.Chat chat = tokenizer.encode(messages);
                assertArrayEquals(ints(vector.get("ids")), chat.tokens(), messages::toString);
                assertArrayEquals(
                        ints(vector.get("mask")),
                        IntStream.range(0, chat.tokens().length)
                                .map(i -> chat.learned().get(i) ? 1 : 0)
                                .toArray(),
                        messages::toString);
            }
        }
    }

    @Test
    void answersOfAFileAreLearned() throws IOException {
        use("marked");
        Path file = folder.resolve("chats.jsonl");
        Files.writeString(file, """
                {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A B"}]}
                {"text": "plain"}
                """);
        try (Tokenizer tokenizer = Tokenizer.open(folder)) {
            TextSequences sequences = TextSequences.read(List.of(file), tokenizer, TextConfig.of(64));
            var all = sequences.once();
            assertTrue(all.advance());
            int[] ids = new int[all.length()];
            int[] labels = new int[all.length()];
            int labelled = all.write(ids, labels, 0, ids.length);
            int[] learned =
                    IntStream.of(labels).filter(label -> label != Batch.IGNORED).toArray();
            assertEquals("A B<|end|>", tokenizer.decode(learned));
            assertEquals(learned.length, labelled);
            assertEquals(
                    "<|begin|>user\nQ<|end|><|begin|>assistant\nA B<|end|>",
                    tokenizer.decode(ids).strip());
            assertTrue(all.advance());
            assertEquals(2, sequences.count());
        }
    }

    @Test
    void thePageShowsATemplate() throws IOException {
        use("marked");
        // @start region="chat"
        ChatTemplate template = ChatTemplate.open(folder);
        String text =
                template.render(List.of(new ChatTemplate.Message("user", "What is 2+2?")), ChatTemplate.Next.ANSWER);
        // @end
        assertEquals("<|begin|>user\nWhat is 2+2?<|end|><|begin|>assistant\n", text);
    }

    private String refusal(String template) throws IOException {
        Files.writeString(folder.resolve(ChatTemplate.FILE), template);
        return assertThrows(
                        TextException.class,
                        () -> ChatTemplate.open(folder)
                                .learned(List.of(
                                        new Message("user", "q"),
                                        new Message("assistant", "a"),
                                        new Message("user", "r"),
                                        new Message("assistant", "b"))),
                        template)
                .getMessage();
    }

    @Test
    void refusalsNameFileAndLine() throws IOException {
        Path file = folder.resolve(ChatTemplate.FILE);
        assertEquals(
                file + ": expected a template for messages, got none, and no chat_template in tokenizer_config.json",
                assertThrows(TextException.class, () -> ChatTemplate.open(folder))
                        .getMessage());
        assertEquals(file + ":2: refuses the chat: no", refusal("a\n{{ raise_exception('no') }}"));
        for (String template : List.of(
                "\n{% unknown %}",
                "\n{% if %}",
                "\n{{ messages[0].content.isalpha() }}",
                "\n{{ messages | groupby('role') | frobnicate }}",
                "\n{{ 'a | b' }}{% if messages is\nnot frobnicated %}{% endif %}",
                "\n{{ 1 | tojson }}",
                "\n{% for x in messages %}")) {
            String told = refusal(template);
            assertTrue(told.startsWith(file + ":"), told);
        }
        assertTrue(refusal("{{ messages[-1].content }}").contains("{% generation %} around answers"));
    }

    @Test
    void aTemplateMayStandInTheTokenizersFile() throws IOException {
        Files.writeString(
                folder.resolve("tokenizer_config.json"),
                "{\"chat_template\": [{\"name\": \"tools\", \"template\": \"x\"}, {\"name\": \"default\", \"template\":"
                        + " \"{{ eos_token }}not a is b: {{ messages[0].content }}\\n\"}], \"eos_token\": \"<e>\"}");
        assertEquals(
                "<e>not a is b: hi",
                ChatTemplate.open(folder).render(List.of(new Message("user", "hi")), Next.NOTHING));
    }

    @Test
    void datesAreWrittenAsPythonDoes() {
        LocalDate today = LocalDate.now();
        assertEquals(today + " it's", JinjaTemplate.now("%Y-%m-%d it's"));
    }
}
