package dev.chagres.models.text;

import java.nio.file.Path;
import java.util.AbstractList;
import java.util.AbstractMap;
import java.util.ArrayList;
import java.util.Collection;
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

    /** What knows how many members it has, those inside of members and itself among them: limits ask each time a template touches it. */
    interface Counted {
        long members();
    }

    private static long counted(Collection<? extends @Nullable Object> all) {
        long members = 1;
        for (Object each : all) {
            members += each instanceof Counted inside ? inside.members() : 1;
        }
        return members;
    }

    /** Returns the first of a list's values. */
    static List<@Nullable Object> first(List<? extends @Nullable Object> all, int count) {
        return new Listed(new ArrayList<>(all.subList(0, count)));
    }

    /** Returns a value of a chat as a template has it: it cannot be changed, and has no marks of answers. */
    static Object of(Path file, Object value) {
        return switch (value) {
            case Counted viewed -> viewed;
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
    private static final class Listed extends AbstractList<@Nullable Object> implements Counted {
        private final List<@Nullable Object> all;
        private final long members;

        Listed(List<@Nullable Object> all) {
            this.all = all;
            members = counted(all);
        }

        @Override
        public long members() {
            return members;
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
    private static final class Mapped extends AbstractMap<String, Object> implements Counted {
        private final Map<String, Object> fields;
        private final long members;

        Mapped(Map<String, Object> fields) {
            this.fields = Collections.unmodifiableMap(fields);
            members = counted(fields.values());
        }

        @Override
        public long members() {
            return members;
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
