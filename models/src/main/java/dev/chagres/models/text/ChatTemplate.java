package dev.chagres.models.text;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * What makes a chat into text: {@code chat_template.jinja} of a folder of Hugging Face, or {@code chat_template} of its {@code
 * tokenizer_config.json}.
 *
 * <p>The template is rendered by {@code com.hubspot.jinjava:jinjava} (Apache License 2.0), which a program that uses this class names as a
 * dependency. What it lacks of Jinja is here: texts and mappings have Python's methods, and {@code raise_exception}, {@code strftime_now}, {@code tojson} and
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
    /** Most bytes of a file with a template; configurations list special tokens, too. */
    private static final long MOST_BYTES = 1L << 26;

    /** The module of {@code java.beans}. */
    private static final String BEANS = "java.desktop";

    private static final List<String> SPECIAL = List.of("bos_token", "eos_token", "pad_token", "unk_token");
    private static final String ASSISTANT = "assistant";

    /**
     * What somebody says, calls, or got from a call.
     *
     * <p>Threading: immutable.
     *
     * @param fields {@code role} and {@code content}, a text or a list of texts {@code {"type": "text", "text": …}}; also {@code tool_calls},
     *     {@code tool_call_id}, {@code name}, {@code reasoning_content}, {@code reasoning}, {@code thinking}, with values of JSON. Those that are
     *     null are left out, at every depth; where there are calls alone, the content is the empty text
     */
    public record Message(Map<String, Object> fields) {
        /**
         * Checks and copies the fields.
         *
         * @throws IllegalArgumentException when there is another field, or one has another type; the text names it
         */
        public Message {
            fields = ChatValues.message(Objects.requireNonNull(fields, "fields"));
        }

        /** Makes one that is a text. */
        public Message(String role, String content) {
            this(inOrder(Objects.requireNonNull(role, "role"), Objects.requireNonNull(content, "content")));
        }

        private static Map<String, Object> inOrder(String role, String content) {
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("role", role);
            fields.put("content", content);
            return fields;
        }

        /** Returns who it is from, such as {@code system}, {@code user}, {@code assistant}, {@code tool}. */
        public String role() {
            return String.valueOf(fields.get("role"));
        }

        /** Returns the text; nothing where there is none, or a list of texts. */
        public Optional<String> content() {
            return fields.get("content") instanceof String text ? Optional.of(text) : Optional.empty();
        }
    }

    /**
     * A function that the assistant may call.
     *
     * <p>Threading: immutable.
     *
     * @param schema {@code {"type": "function", "function": {"name": …, "description": …, "parameters": …}}}, or what is inside alone, with values
     *     of JSON. Fields that are null are left out
     */
    public record Tool(Map<String, Object> schema) {
        /**
         * Checks and copies the schema.
         *
         * @throws IllegalArgumentException when it has no name, or a field has another type; the text names it
         */
        public Tool {
            schema = ChatValues.tool(Objects.requireNonNull(schema, "schema"));
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
     * @throws TextException when the folder has none, a file cannot be read, or the Java runtime lacks the module {@code java.desktop}
     * @throws IllegalStateException when the library is not on the class path
     */
    public static ChatTemplate open(Path folder) {
        Path file = Objects.requireNonNull(folder, "folder").resolve(FILE);
        Path config = folder.resolve(CONFIG);
        Map<?, ?> fields = Files.exists(config) ? fields(config) : Map.of();
        String source = null;
        try {
            source = Files.exists(file)
                    ? StandardCharsets.UTF_8
                            .newDecoder()
                            .decode(ByteBuffer.wrap(bytes(file)))
                            .toString()
                    : null;
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
        if (ModuleLayer.boot().findModule(BEANS).isEmpty()) {
            throw new TextException(
                    from,
                    "expected a Java runtime with the module " + BEANS + ", whose java.beans templates need, got one"
                            + " without it; take a whole JDK, or make yours with jlink --add-modules " + BEANS,
                    null);
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

    private static byte[] bytes(Path file) throws IOException {
        long size = Files.size(file);
        if (size > MOST_BYTES) {
            throw new TextException(file, "expected up to " + MOST_BYTES + " bytes, got " + size, null);
        }
        return Files.readAllBytes(file);
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
        try (JsonParser parser = new JsonFactory().createParser(bytes(file))) {
            parser.nextToken();
            if (ChatValues.read(parser, Integer.MAX_VALUE) instanceof Map<?, ?> fields) {
                return fields;
            }
        } catch (IOException failure) {
            throw new TextException(file, "expected a JSON object: " + failure.getMessage(), failure);
        }
        throw new TextException(file, "expected a JSON object, got another text", null);
    }

    /**
     * Returns a chat as text, as {@code apply_chat_template(messages, tokenize=False)} does.
     *
     * @throws TextException when the template refuses the chat, or has something that is not supported
     */
    public String render(List<Message> messages, Next next) {
        return render(messages, List.of(), next);
    }

    /**
     * Returns a chat with tools as text, as {@code apply_chat_template(messages, tools=tools, tokenize=False)} does.
     *
     * @param tools none for a chat without
     * @throws TextException when the template refuses the chat, or has something that is not supported
     */
    public String render(List<Message> messages, List<Tool> tools, Next next) {
        return new Viewed(messages, tools).render(messages.size(), next).text();
    }

    /** A chat as the template sees it, of which it is handed the first messages. */
    private final class Viewed {
        private final Map<String, Object> variables = new HashMap<>(special);
        private final List<?> messages;

        Viewed(List<Message> messages, List<Tool> tools) {
            this.messages = template.view(
                    given("messages", messages).stream().map(Message::fields).toList());
            if (!given("tools", tools).isEmpty()) {
                variables.put(
                        "tools", template.view(tools.stream().map(Tool::schema).toList()));
            }
        }

        Rendered render(int count, Next next) {
            variables.put("messages", count == messages.size() ? messages : ChatView.first(messages, count));
            variables.put("add_generation_prompt", Objects.requireNonNull(next, "next") == Next.ANSWER);
            return template.render(variables);
        }
    }

    private static <T> List<T> given(String argument, List<T> all) {
        for (int i = 0; i < Objects.requireNonNull(all, argument).size(); i++) {
            Objects.requireNonNull(all.get(i), argument + "[" + i + "]");
        }
        return all;
    }

    /**
     * Returns a chat as text, and where the assistant speaks: what is inside {@code {% generation %}}, or, where the template has none, what
     * is behind the text of all messages before one and of what begins an answer.
     *
     * @throws TextException also when a text begins otherwise than that of its first messages, so that nobody can say where they end
     */
    Rendered learned(List<Message> messages, List<Tool> tools) {
        Viewed chat = new Viewed(messages, tools);
        Rendered whole = chat.render(messages.size(), Next.NOTHING);
        if (template.marksAnswers()) {
            return whole;
        }
        List<int[]> spans = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            if (messages.get(i).role().equals(ASSISTANT)) {
                String before = chat.render(i, Next.ANSWER).text();
                String behind = i + 1 == messages.size()
                        ? whole.text()
                        : chat.render(i + 1, Next.NOTHING).text();
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
