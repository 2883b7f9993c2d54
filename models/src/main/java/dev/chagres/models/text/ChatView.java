package dev.chagres.models.text;

import java.nio.file.Path;
import java.util.AbstractList;
import java.util.AbstractMap;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Lists and mappings of a chat, as a template has them.
 *
 * <p>Threading: immutable.
 */
final class ChatView {
    private ChatView() {}

    /** Returns a value of a chat as a template has it: it cannot be changed, and has no marks of answers. */
    static Object of(Path file, Object value) {
        return switch (value) {
            case List<?> all -> {
                List<@Nullable Object> copy = new ArrayList<>();
                for (Object each : all) {
                    copy.add(each == null ? null : of(file, each));
                }
                yield new Listed(copy);
            }
            case Map<?, ?> fields -> {
                Map<String, Object> copy = new LinkedHashMap<>();
                fields.forEach((name, each) -> copy.put((String) of(file, name), of(file, each)));
                yield new Mapped(copy);
            }
            case String text
            when text.indexOf(JinjaTemplate.BEGIN) >= 0 || text.indexOf(JinjaTemplate.END) >= 0 ->
                throw new TextException(
                        file, "expected a chat without the characters U+E0C1 and U+E0C2, got one with them", null);
            default -> value;
        };
    }

    /** A list of a chat. It becomes text by a filter or {@code {{ … }}}: Jinja adds none to a text, where the library would. */
    private static final class Listed extends AbstractList<@Nullable Object> {
        private final List<@Nullable Object> all;

        Listed(List<@Nullable Object> all) {
            this.all = all;
        }

        @Override
        public @Nullable Object get(int index) {
            return all.get(index);
        }

        @Override
        public int size() {
            return all.size();
        }

        @Override
        public String toString() {
            throw new JinjaTemplate.Refusal("expected a text, got a list");
        }
    }

    /** The same of a mapping. */
    private static final class Mapped extends AbstractMap<String, Object> {
        private final Map<String, Object> fields;

        Mapped(Map<String, Object> fields) {
            this.fields = Collections.unmodifiableMap(fields);
        }

        @Override
        public Set<Map.Entry<String, Object>> entrySet() {
            return fields.entrySet();
        }

        @Override
        public boolean containsKey(Object name) {
            return fields.containsKey(name);
        }

        @Override
        public @Nullable Object get(Object name) {
            return fields.get(name);
        }

        @Override
        public String toString() {
            throw new JinjaTemplate.Refusal("expected a text, got a mapping");
        }
    }
}
