package dev.chagres.models.text;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.batch.Batch;
import dev.chagres.models.text.ChatTemplate.Message;
import dev.chagres.models.text.ChatTemplate.Next;
import dev.chagres.models.text.ChatTemplate.Tool;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
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

    /** Objects of a field, in the order of their file. */
    @SuppressWarnings("unchecked")
    private static <T> List<T> made(Map<String, Object> vector, String field, Function<Map<String, Object>, T> maker) {
        return ((List<?>) vector.getOrDefault(field, List.of()))
                .stream().map(each -> maker.apply((Map<String, Object>) each)).toList();
    }

    private static int[] ints(Object list) {
        return ((List<?>) list)
                .stream().mapToInt(each -> ((Number) each).intValue()).toArray();
    }

    @ParameterizedTest
    @ValueSource(strings = {"thoughts", "headers", "brackets", "marked", "calls", "schemas", "functions", "types"})
    void textsTokensAndMasksAreThoseOfTransformers(String name) throws IOException {
        use(name);
        ChatTemplate template = ChatTemplate.open(folder);
        Path vectors = Path.of("src/test/resources/chats", name, "vectors.json");
        try (Tokenizer tokenizer = Tokenizer.open(folder)) {
            for (Object each : JSON.std.listFrom(Files.readString(vectors))) {
                @SuppressWarnings("unchecked")
                var vector = (Map<String, Object>) each;
                List<Message> messages = made(vector, "messages", Message::new);
                List<Tool> tools = made(vector, "tools", Tool::new);
                if (vector.containsKey("refused")) {
                    assertThrows(TextException.class, () -> tokenizer.encode(messages, tools), messages::toString);
                    if (!vector.containsKey("text")) {
                        continue;
                    }
                }
                assertEquals(vector.get("text"), template.render(messages, tools, Next.NOTHING));
                assertEquals(vector.get("answer"), template.render(messages, tools, Next.ANSWER));
                if (vector.containsKey("refused")) {
                    continue;
                }
                Tokenizer.Chat chat = tokenizer.encode(messages, tools);
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
                                .learned(
                                        List.of(
                                                new Message("user", "q"),
                                                new Message("assistant", "a"),
                                                new Message("user", "r"),
                                                new Message("assistant", "b")),
                                        List.of()),
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
                "\n{{ 1 | tojson(indent=1001) }}",
                "\n{{ 1 | tojson(colour=1) }}",
                "\n{{ 1 | tojson(separators=1) }}",
                "\n{% for x in messages %}")) {
            String told = refusal(template);
            assertTrue(told.startsWith(file + ":"), told);
        }
        assertTrue(refusal("{{ messages[-1].content }}").contains("{% generation %} around answers"));
    }

    /** Templates come from others: what would not end, or take all memory, or reach files or Java, is refused. */
    @Test
    void whatIsHostileIsRefused() throws IOException {
        String loops = "{% for a in range(999) %}".repeat(4) + "{% endfor %}".repeat(4);
        StringBuilder macros = new StringBuilder("{% macro f0() %}x{% endmacro %}");
        for (int i = 1; i < 40; i++) {
            String one = "{{ f" + (i - 1) + "() }}";
            macros.append("{% macro f" + i + "() %}" + one + one + "{% endmacro %}");
        }
        String doubled = "{% set n = namespace(x=VALUE) %}{% for a in range(60) %}{% set n.x = GROWN %}{% endfor %}";
        String steps = "a template that ends after 100000 steps";
        Map<String, String> told = new LinkedHashMap<>();
        told.put(loops, steps);
        told.put(macros.append("{{ f39() }}").toString(), steps);
        told.put(doubled.replace("VALUE", "'ab'").replace("GROWN", "n.x ~ n.x"), "TooBig");
        told.put(doubled.replace("VALUE", "[1, 2]").replace("GROWN", "n.x + n.x"), "TooBig");
        told.put(doubled.replace("VALUE", "'a'").replace("GROWN", "n.x.replace('', 'bbbbbbbb')"), "up to 33554432");
        told.put("{{ range(1000000000) }}", "range: expected at most 100000 numbers, got [1000000000]");
        told.put("{{ range(1, 2, 0) }}", "a step that is not 0, got [1, 2, 0]");
        told.put("{{ 'a'|center(2000000000) }}", "center: expected numbers up to 1000, got 2000000000");
        told.put("{{ [1]|batch(1e9) }}", "batch: expected numbers up to 1000");
        told.put("{{ '%2000000000s'|format('a') }}", "the filter format is not supported");
        told.put("{{ strftime_now('" + "%Y".repeat(600) + "') }}", "strftime_now: expected at most 1000 characters");
        told.put("\n{{ " + "(".repeat(101), ":2: expected up to 100 brackets inside each other, got more");
        told.put("{% if true %}".repeat(101), ":1: expected up to 100 tags inside each other, got more");
        told.put("{{ 1 }}".repeat(200_000), "expected a template of up to 1048576 characters, got 1400000");
        told.put("{% if not a" + "[1]".repeat(100_000) + " y %}", "cannot be rendered");
        told.put("{{ a\uE0C3 }}", ":1: expected the character U+E0C3 in quotes alone, got it in code");
        told.put("a\uE0C1", "without the characters U+E0C1 and U+E0C2");
        told.put("{% include 'META-INF/MANIFEST.MF' %}", "one that includes META-INF/MANIFEST.MF");
        told.put("{% extends 'META-INF/MANIFEST.MF' %}", "one that includes META-INF/MANIFEST.MF");
        told.put("{{ messages.getClass() }}", "the method getClass of a list with 0 arguments is not supported");
        told.put("{{ ''.class.classLoader + '' }}", "expected two texts, or none, to add, got nothing and a text");
        told.put("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "Max recursion limit of 50");
        told.put("{{ 'a' + messages }}", "expected two texts, or none, to add, got a text and another value");
        told.put("{{ messages[0].update({'a': 1}) }}", "UnsupportedOperationException");
        told.put(
                "{% set n = namespace(x=[1]) %}{% for a in range(150) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
                steps);
        told.put("{% for a in range(99999) if a < range(99999)|length %}{% endfor %}".repeat(2), steps);
        told.put("{{ ____int3rpr3t3r____.getConfig() }}", "a name of the library is not supported");
        told.put("{{ filter:md5.filter('a', none) }}", "a name of the library is not supported");
        told.put("{{ ['a']|map('md5') }}", "map: the filter md5 is not supported");
        told.put("{{ ['a']|map('chagres_where', '0', 'x') }}", "map: the filter chagres_where is not supported");
        told.put("{{ ['a']|select('nosuch') }}", "select: the test nosuch is not supported");
        told.put("{{ 'a' |\u2003md5 }}", "expected the character U+2003 in quotes alone");
        told.put("{{ 'a' is\u001cnosuch }}", "expected the character U+001C in quotes alone");
        told.put("{{ (1).getLong('java.specification.version') }}", "the method getLong of this value");
        told.put("{{ range(1).ensureCapacity(2147483639) }}", "the method ensureCapacity of a list");
        told.put("{{ ('a'|safe).getValue() }}", "the method getValue of a text");
        told.put("{{ today() }}", "disabled");
        told.put("{% unless true %}{% endunless %}", "disabled");
        told.put("{{ '1e200000000'|round }}", "round: expected a number, got another value");
        told.put("{{ ['1e1000000', '1']|sum }}", "expected numbers of up to 4096 bits");
        told.put("{{ " + "not ".repeat(101) + "x }}", ":1: expected up to 100 not in a tag, got more");
        told.put(
                doubled.replace("VALUE", "'a'").replace("60", "24").replace("GROWN", "n.x ~ n.x")
                        + "{% for a in range(99) %}{% set b = n.x.upper() %}{% endfor %}",
                steps);
        told.put(
                doubled.replace("VALUE", "'&'").replace("60", "24").replace("GROWN", "n.x ~ n.x")
                        + "{% for a in range(99) %}{% set b = n.x|urlencode %}{% endfor %}",
                steps);
        told.put(
                doubled.replace("VALUE", "'a'").replace("60", "20").replace("GROWN", "n.x ~ n.x")
                        + "{{ n.x|replace('a', n.x) }}",
                "replace: expected a text of up to 33554432 characters");
        told.put(
                "{% set l = messages[0].items() %}{% for a in range(40) %}{% do l.extend(l) %}{% endfor %}",
                "expected lists of up to 1048576 members");
        for (var each : told.entrySet()) {
            String refusal = refusal(each.getKey());
            assertTrue(refusal.contains(each.getValue()), refusal);
        }
    }

    @Test
    void rangesAreThoseOfPython() throws IOException {
        Files.writeString(
                folder.resolve(ChatTemplate.FILE),
                "{{ range(3) }}{{ range(5, 1, -2) }}{{ range(2, 1) }}{{ range(2000)|length }}"
                        + "{{ range(9223372036854775806, 9223372036854775807) }}");
        assertEquals(
                "[0, 1, 2][5, 3][]2000[9223372036854775806]",
                ChatTemplate.open(folder).render(List.of(), Next.NOTHING));
    }

    /** Where the library reads otherwise than Jinja: what transformers 5.17 renders, for a question q. */
    @Test
    void expressionsAreThoseOfJinja() throws IOException {
        Map<String, String> rendered = new LinkedHashMap<>();
        rendered.put("a {% if true %}b {% endif %}c", "a b c");
        rendered.put("x\n  {% if true %}a {% endif %}\nz", "x\na z");
        rendered.put(
                "{{ not 2 == 1 }}{{ not 'role' in messages[0] and true }}{{ 1 if not x == 2 else 3 }}", "TrueFalse1");
        rendered.put("{{ 1 ~ true }} {{ 'x' ~ messages[0] }}", "1True x{'role': 'user', 'content': 'q'}");
        rendered.put("{% for m in [1, 2, 3, 4] if m > 2 %}{{ m }}{{ loop.last }}{% endfor %}", "3False4True");
        rendered.put(
                "{% for a, b in {'x': ' if ', 'y': 2}.items() if b is string %}{{ a }}{{ b }}{% endfor %}", "x if ");
        rendered.put("{% for m in [1, 2, 3] %}{{ loop.previtem }}-{{ loop.nextitem }},{% endfor %}", "-2,1-3,2-,");
        rendered.put("{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210");
        rendered.put(
                "{{ [messages[0].foo is defined, ''.foo is defined, messages is sequence, true is number] }}",
                "[False, False, True, True]");
        for (var each : rendered.entrySet()) {
            Files.writeString(folder.resolve(ChatTemplate.FILE), each.getKey());
            assertEquals(
                    each.getValue(),
                    ChatTemplate.open(folder).render(List.of(new Message("user", "q")), Next.NOTHING),
                    each.getKey());
        }
    }

    @Test
    void toolsOfAFileMayBeText() throws IOException {
        use("calls");
        Path file = folder.resolve("chats.jsonl");
        String rest =
                "\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"tool_calls\":"
                        + " [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": null, \"b\": 1, \"a\": 1.50}}}]}], ";
        Files.writeString(
                file,
                "{" + rest + "\"tools\": [{\"name\": \"f\"}]}\n{" + rest
                        + "\"tools\": \"[{\\\"name\\\": \\\"f\\\"}]\"}\n{" + rest + "\"tools\": null}\n");
        try (Tokenizer tokenizer = Tokenizer.open(folder);
                TextReader reader = TextReader.open(file)) {
            List<String> texts = new ArrayList<>();
            for (TextReader.Text text = reader.next(); text != null; text = reader.next()) {
                Tokenizer.Chat chat = tokenizer.encode(text.messages(), text.tools());
                int[] learned =
                        chat.learned().stream().map(i -> chat.tokens()[i]).toArray();
                assertEquals(
                        "<call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": 1.5}}\n</call><|end|>\n",
                        tokenizer.decode(learned));
                texts.add(tokenizer.decode(chat.tokens()));
            }
            assertEquals(3, texts.size());
            assertEquals(texts.get(0), texts.get(1));
            assertTrue(texts.get(0).contains("<tools>\n{\"name\": \"f\"}\n</tools>"), texts.get(0));
            assertEquals(-1, texts.get(2).indexOf("tools"));
        }
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
        assertEquals("[null]", PythonValue.json(Collections.singletonList(null), PythonValue.Form.PLAIN));
    }
}
