package dev.chagres.models.text;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * What makes a chat into text: {@code chat_template.jinja} of a folder of Hugging Face, or {@code chat_template} of its {@code
 * tokenizer_config.json}.
 *
 * <p>The template is rendered by {@code com.hubspot.jinjava:jinjava} (Apache License 2.0), which a program that uses this class names as a
 * dependency. What it lacks of Jinja is here: texts have Python's methods, and {@code raise_exception}, {@code strftime_now}, {@code tojson} and
 * {@code {% generation %}} are those of transformers. Anything else that a template asks for is refused, with file and line.
 *
 * <p>Threading: one thread at a time.
 *
 * <p>Source: {@code apply_chat_template} of transformers 5.17.
 */
public final class ChatTemplate {
    static final String FILE = "chat_template.jinja";
    private static final String CONFIG = "tokenizer_config.json";
    private static final String FIELD = "chat_template";
    private static final List<String> SPECIAL = List.of("bos_token", "eos_token", "pad_token", "unk_token");
    private static final String ASSISTANT = "assistant";

    /**
     * What somebody says.
     *
     * <p>Threading: immutable.
     *
     * @param role such as {@code system}, {@code user}, {@code assistant}
     */
    public record Message(String role, String content) {
        /** Checks that both are there. */
        public Message {
            Objects.requireNonNull(role, "role");
            Objects.requireNonNull(content, "content");
        }
    }

    /** What comes behind a chat. */
    public enum Next {
        /** Nothing. */
        NOTHING,
        /** What begins an answer of the assistant: {@code add_generation_prompt}. */
        ANSWER
    }

    /**
     * A chat as text, of which parts are learned.
     *
     * @param spans begin and end of each part, in characters of Java
     */
    record Rendered(String text, List<int[]> spans) {}

    private final Path file;
    private final JinjaTemplate template;
    private final Map<String, Object> special;

    private ChatTemplate(Path file, JinjaTemplate template, Map<String, Object> special) {
        this.file = file;
        this.template = template;
        this.special = special;
    }

    /**
     * Opens the template of a folder.
     *
     * @throws TextException when the folder has none, or a file cannot be read
     * @throws IllegalStateException when the library is not on the class path
     */
    public static ChatTemplate open(Path folder) {
        Path file = Objects.requireNonNull(folder, "folder").resolve(FILE);
        Path config = folder.resolve(CONFIG);
        Map<?, ?> fields = Files.exists(config) ? fields(config) : Map.of();
        String source = null;
        try {
            source = Files.exists(file) ? Files.readString(file) : null;
        } catch (IOException failure) {
            throw TextReader.unreadable(file, failure);
        }
        Path from = source == null ? config : file;
        source = source == null ? ofConfig(fields.get(FIELD)) : source;
        if (source == null) {
            throw new TextException(
                    file, "expected a template for messages, got none, and no " + FIELD + " in " + CONFIG, null);
        }
        Map<String, Object> special = new HashMap<>();
        for (String name : SPECIAL) {
            Object value = fields.get(name) instanceof Map<?, ?> token ? token.get("content") : fields.get(name);
            if (value instanceof String text) {
                special.put(name, text);
            }
        }
        try {
            return new ChatTemplate(from, new JinjaTemplate(from, source), special);
        } catch (NoClassDefFoundError missing) {
            throw new IllegalStateException(
                    "ChatTemplate: expected the library com.hubspot.jinjava:jinjava and what it stands on, got no "
                            + missing.getMessage() + "; add it to the program's dependencies",
                    missing);
        }
    }

    /** Returns a text, or of several templates that which is called default. */
    private static @Nullable String ofConfig(@Nullable Object field) {
        if (field instanceof String text) {
            return text;
        }
        for (Object each : field instanceof List<?> all ? all : List.of()) {
            if (each instanceof Map<?, ?> named
                    && "default".equals(named.get("name"))
                    && named.get("template") instanceof String text) {
                return text;
            }
        }
        return null;
    }

    private static Map<?, ?> fields(Path file) {
        try (JsonParser parser = new JsonFactory().createParser(Files.readAllBytes(file))) {
            parser.nextToken();
            if (json(parser) instanceof Map<?, ?> fields) {
                return fields;
            }
        } catch (IOException failure) {
            throw new TextException(file, "expected a JSON object: " + failure.getMessage(), failure);
        }
        throw new TextException(file, "expected a JSON object, got another text", null);
    }

    /** Returns an object, a list or a text; null of anything else. */
    static @Nullable Object json(JsonParser parser) throws IOException {
        if (parser.currentToken() == JsonToken.START_OBJECT) {
            Map<String, @Nullable Object> fields = new HashMap<>();
            while (parser.nextToken() != JsonToken.END_OBJECT) {
                String name = parser.currentName();
                parser.nextToken();
                fields.put(name, json(parser));
            }
            return fields;
        }
        if (parser.currentToken() == JsonToken.START_ARRAY) {
            List<@Nullable Object> all = new ArrayList<>();
            while (parser.nextToken() != JsonToken.END_ARRAY) {
                all.add(json(parser));
            }
            return all;
        }
        return parser.currentToken() == JsonToken.VALUE_STRING ? parser.getText() : null;
    }

    /**
     * Returns a chat as text, as {@code apply_chat_template(messages, tokenize=False)} does.
     *
     * @throws TextException when the template refuses the chat, or has something that is not supported
     */
    public String render(List<Message> messages, Next next) {
        return template.render(variables(messages, next)).text();
    }

    private Map<String, Object> variables(List<Message> messages, Next next) {
        Map<String, Object> variables = new HashMap<>(special);
        variables.put(
                "messages",
                messages.stream()
                        .map(each -> Map.of("role", each.role(), "content", each.content()))
                        .toList());
        variables.put("add_generation_prompt", next == Next.ANSWER);
        return variables;
    }

    /**
     * Returns a chat as text, and where the assistant speaks: what is inside {@code {% generation %}}, or, where the template has none, what
     * is behind the text of all messages before one and of what begins an answer.
     *
     * @throws TextException also when a text begins otherwise than that of its first messages, so that nobody can say where they end
     */
    Rendered learned(List<Message> messages) {
        Rendered whole = template.render(variables(messages, Next.NOTHING));
        if (template.marksAnswers()) {
            return whole;
        }
        List<int[]> spans = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            if (messages.get(i).role().equals(ASSISTANT)) {
                String before = render(messages.subList(0, i), Next.ANSWER);
                String behind =
                        i + 1 == messages.size() ? whole.text() : render(messages.subList(0, i + 1), Next.NOTHING);
                if (!behind.startsWith(before) || !whole.text().startsWith(behind)) {
                    throw new TextException(
                            file,
                            "expected a template that lays out the first messages of a chat as it does without the others,"
                                    + " or that has {% generation %} around answers, got another one; put such a one into "
                                    + FILE,
                            null);
                }
                spans.add(new int[] {before.length(), behind.length()});
            }
        }
        return new Rendered(whole.text(), spans);
    }

    @Override
    public String toString() {
        return "template of " + file;
    }
}
