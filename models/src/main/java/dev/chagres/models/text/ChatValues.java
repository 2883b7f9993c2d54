package dev.chagres.models.text;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import dev.chagres.bindings.ForeignText;
import java.io.IOException;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Values of JSON: texts, {@code Long} and {@code BigInteger}, {@code Double}, booleans, nulls, lists, and mappings in the order of their file.
 * Those of chats are checked, and cannot be changed.
 *
 * <p>Threading: thread-safe.
 */
final class ChatValues {
    /** Most lists and mappings inside each other. */
    static final int DEPTH = 200;

    /** Most values of a message or a tool, and of all of a line. */
    static final int MEMBERS = 1 << 20;

    private static final Set<String> TEXTS =
            Set.of("role", "name", "tool_call_id", "reasoning_content", "reasoning", "thinking");

    private static final String CONTENT = "content";
    private static final String CALLS = "tool_calls";
    private static final String FUNCTION = "function";
    private static final String NAME = "name";

    private ChatValues() {}

    /**
     * Reads the value at which the parser stands.
     *
     * @throws IllegalArgumentException when it and those inside it are more than {@code most}
     */
    static @Nullable Object read(JsonParser parser, int most) throws IOException {
        return read(parser, most, new int[1]);
    }

    private static @Nullable Object read(JsonParser parser, int most, int[] members) throws IOException {
        if (++members[0] > most) {
            throw new IllegalArgumentException("expected up to " + most + " values, got more");
        }
        return switch (parser.currentToken()) {
            case START_OBJECT -> {
                Map<String, @Nullable Object> fields = new LinkedHashMap<>();
                while (parser.nextToken() != JsonToken.END_OBJECT) {
                    String name = parser.currentName();
                    parser.nextToken();
                    fields.put(name, read(parser, most, members));
                }
                yield fields;
            }
            case START_ARRAY -> {
                List<@Nullable Object> all = new ArrayList<>();
                while (parser.nextToken() != JsonToken.END_ARRAY) {
                    all.add(read(parser, most, members));
                }
                yield all;
            }
            case VALUE_STRING -> parser.getText();
            case VALUE_NUMBER_INT -> {
                Number number = parser.getNumberValue();
                yield number instanceof Integer small ? (Object) small.longValue() : number;
            }
            case VALUE_NUMBER_FLOAT -> parser.getDoubleValue();
            case VALUE_TRUE -> true;
            case VALUE_FALSE -> false;
            case null, default -> null;
        };
    }

    /**
     * Returns a checked copy of a message's fields, without those that are null. The content of a message of calls alone is the empty text.
     *
     * @throws IllegalArgumentException when a template could not mean it; the text names the field
     */
    static Map<String, Object> message(Map<String, ?> given) {
        Map<String, Object> fields = object("", given);
        for (Map.Entry<String, Object> field : fields.entrySet()) {
            String name = field.getKey();
            if (TEXTS.contains(name)) {
                text(name, field.getValue());
            } else if (!name.equals(CONTENT) && !name.equals(CALLS)) {
                throw refused(name, "no such field: a message has role, content, tool_calls and " + others(), "it");
            }
        }
        text("role", fields.get("role"));
        List<?> calls = fields.get(CALLS) == null ? List.of() : list(CALLS, fields.get(CALLS));
        for (int i = 0; i < calls.size(); i++) {
            named(CALLS + "[" + i + "]", calls.get(i), "arguments");
        }
        Object content = fields.get(CONTENT);
        if (content instanceof List<?> parts) {
            for (int i = 0; i < parts.size(); i++) {
                part(CONTENT + "[" + i + "]", parts.get(i));
            }
        } else if (content != null || calls.isEmpty()) {
            text(CONTENT, content);
        } else {
            Map<String, Object> all = new LinkedHashMap<>(fields);
            all.put(CONTENT, "");
            return Collections.unmodifiableMap(all);
        }
        return fields;
    }

    private static List<String> others() {
        return TEXTS.stream().filter(name -> !name.equals("role")).sorted().toList();
    }

    private static void part(String path, @Nullable Object part) {
        Map<?, ?> fields = mapping(path, part);
        if (!"text".equals(fields.get("type"))) {
            throw refused(path + ".type", "text, for images and sounds are not read", fields.get("type"));
        }
        text(path + ".text", fields.get("text"));
    }

    /**
     * Returns a checked copy of a tool's schema, without fields that are null.
     *
     * @throws IllegalArgumentException when it has no name, or something else than a schema has; the text names the field
     */
    static Map<String, Object> tool(Map<String, ?> given) {
        Map<String, Object> fields = object("", given);
        named("", fields, "parameters");
        return fields;
    }

    /** What is called has its name and what is given to it in {@code function}, or without that. */
    private static void named(String path, @Nullable Object value, String given) {
        Map<?, ?> fields = mapping(path, value);
        boolean isInside = fields.containsKey(FUNCTION);
        String inside = isInside ? join(path, FUNCTION) : path;
        Map<?, ?> function = isInside ? mapping(inside, fields.get(FUNCTION)) : fields;
        text(join(inside, NAME), function.get(NAME));
        Object arguments = function.get(given);
        if (arguments != null && !(arguments instanceof Map<?, ?>) && !(arguments instanceof String)) {
            throw refused(join(inside, given), "an object", arguments);
        }
    }

    private static String join(String path, String field) {
        return path.isEmpty() ? field : path + "." + field;
    }

    private static void text(String path, @Nullable Object value) {
        if (!(value instanceof String)) {
            throw refused(path, "a text", value);
        }
    }

    static List<?> list(String path, @Nullable Object value) {
        if (value instanceof List<?> all) {
            return all;
        }
        throw refused(path, "a list", value);
    }

    @SuppressWarnings("unchecked") // JSON has no other names
    static Map<String, Object> mapping(String path, @Nullable Object value) {
        if (value instanceof Map<?, ?> fields) {
            return (Map<String, Object>) fields;
        }
        throw refused(path, "an object", value);
    }

    static IllegalArgumentException refused(String path, String expected, @Nullable Object got) {
        String told = switch (got) {
            case null -> "none";
            case Map<?, ?> _ -> "an object";
            case List<?> _ -> "a list";
            case String text when text.length() > 60 -> ForeignText.plain(text.substring(0, 60)) + "…";
            default -> ForeignText.plain(got);
        };
        return new IllegalArgumentException(
                (path.isEmpty() ? "" : ForeignText.plain(path) + ": ") + "expected " + expected + ", got " + told);
    }

    private static Map<String, Object> object(String path, Map<String, ?> given) {
        Map<String, Object> fields = new LinkedHashMap<>();
        long[] members = {0};
        given.forEach((Object key, Object value) -> {
            if (!(key instanceof String name)) {
                throw refused(path, "names that are texts", key);
            }
            Object copy = copied(join(path, name), value, 1, members);
            if (copy != null) {
                fields.put(name, copy);
            }
        });
        return Collections.unmodifiableMap(fields);
    }

    /** {@code members} counts those that were copied: Java may have a list many times in others. */
    private static @Nullable Object copied(String path, @Nullable Object value, int depth, long[] members) {
        if (depth > DEPTH || ++members[0] > MEMBERS) {
            throw new IllegalArgumentException(ForeignText.plain(path) + ": expected up to " + DEPTH
                    + " lists and objects inside each other, and " + MEMBERS + " values, got more");
        }
        return switch (value) {
            case null -> null;
            case String text -> text;
            case Boolean flag -> flag;
            case Integer number -> number.longValue();
            case Long number -> number;
            case BigInteger number -> number;
            case Double number -> number;
            case Float number -> number.doubleValue();
            case List<?> all -> {
                List<@Nullable Object> copy = new ArrayList<>(all.size());
                for (Object each : all) {
                    copy.add(copied(path, each, depth + 1, members));
                }
                yield Collections.unmodifiableList(copy);
            }
            case Map<?, ?> all -> {
                Map<String, Object> copy = new LinkedHashMap<>();
                all.forEach((name, each) -> {
                    if (!(name instanceof String key)) {
                        throw refused(path, "names that are texts", name);
                    }
                    Object own = copied(path, each, depth + 1, members);
                    if (own != null) {
                        copy.put(key, own);
                    }
                });
                yield Collections.unmodifiableMap(copy);
            }
            default ->
                throw refused(
                        path,
                        "texts, numbers, booleans, lists and mappings",
                        value.getClass().getName());
        };
    }
}
