package dev.chagres.models.text;

import com.hubspot.jinjava.lib.exptest.ExpTest;
import com.hubspot.jinjava.lib.filter.Filter;
import com.hubspot.jinjava.objects.SafeString;
import com.hubspot.jinjava.objects.collections.PyList;
import com.hubspot.jinjava.objects.collections.PyMap;
import com.hubspot.jinjava.util.ForLoop;
import java.beans.FeatureDescriptor;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Pattern;
import jinjava.javax.el.ELContext;
import jinjava.javax.el.ELException;
import jinjava.javax.el.ELResolver;
import org.jspecify.annotations.Nullable;

/**
 * Python's methods of texts, of lists, and of mappings those that read. Any other one of any value is refused, so that none of Java's is called.
 *
 * <p>Threading: thread-safe.
 */
final class PythonText extends ELResolver {
    /** Python's methods of lists, with how many arguments they are given; the library has them. */
    private static final Set<String> OF_LISTS = Set.of(
            "append/1",
            "copy/0",
            "count/1",
            "extend/1",
            "index/1",
            "index/3",
            "insert/2",
            "pop/0",
            "pop/1",
            "reverse/0");

    private static final Pattern INDEX = Pattern.compile("-?\\d{1,10}");

    private final JinjaLimits limits;

    PythonText(JinjaLimits limits) {
        this.limits = limits;
    }

    static final String WHITE = " \t\n\r\u000b\f\u001c\u001d\u001e\u001f\u0085\u00a0";

    @Override
    public @Nullable Object invoke(
            ELContext context, @Nullable Object base, @Nullable Object method, Class<?>[] types, Object[] arguments) {
        if (base == null || method == null || base instanceof ExpTest) {
            return null;
        }
        String call = method + "/" + arguments.length;
        if (base instanceof Filter filter) { // how the library calls it
            limits.use(filter, arguments);
            return null;
        }
        if (base instanceof Map<?, ?> fields) {
            Object found = ofMapping(fields, call, arguments);
            if (found == null && base instanceof PyMap && call.equals("update/1")) {
                return null; // the library has it
            }
            if (found == null) {
                throw refused(method, "a mapping", arguments);
            }
            context.setPropertyResolved(true);
            return found instanceof Optional<?> given ? given.orElse(null) : found;
        }
        if (base instanceof PyList list && OF_LISTS.contains(call)) {
            long more = arguments.length > 0 && arguments[0] instanceof Collection<?> others ? others.size() : 1;
            limits.spendOn(list);
            if (list.size() + more > JinjaLimits.MEMBERS) {
                throw new ELException("expected lists of up to " + JinjaLimits.MEMBERS + " members, got a longer one");
            }
            return null;
        }
        if (base instanceof ForLoop && method.equals("cycle")) {
            return null;
        }
        if (!(base instanceof CharSequence) && !(base instanceof SafeString)) {
            throw refused(method, base instanceof Collection<?> ? "a list" : "this value", arguments);
        }
        context.setPropertyResolved(true);
        String text = base.toString();
        limits.written(text);
        String[] texts = new String[arguments.length];
        for (int i = 0; i < texts.length; i++) {
            texts[i] = arguments[i] == null ? "" : arguments[i].toString();
        }
        return switch (method + "/" + texts.length) {
            case "strip/0" -> stripped(text, WHITE, 3);
            case "strip/1" -> stripped(text, texts[0], 3);
            case "lstrip/0" -> stripped(text, WHITE, 1);
            case "lstrip/1" -> stripped(text, texts[0], 1);
            case "rstrip/0" -> stripped(text, WHITE, 2);
            case "rstrip/1" -> stripped(text, texts[0], 2);
            case "split/1" -> split(text, texts[0]);
            case "startswith/1" -> text.startsWith(texts[0]);
            case "endswith/1" -> text.endsWith(texts[0]);
            case "replace/2" -> replaced(text, texts[0], texts[1]);
            case "upper/0" -> text.toUpperCase(Locale.ROOT);
            case "lower/0" -> text.toLowerCase(Locale.ROOT);
            case "capitalize/0" ->
                text.isEmpty()
                        ? text
                        : text.substring(0, 1).toUpperCase(Locale.ROOT)
                                + text.substring(1).toLowerCase(Locale.ROOT);
            case "find/1" -> (long) text.indexOf(texts[0]);
            default -> throw refused(method, "a text", arguments);
        };
    }

    private static ELException refused(Object method, String of, Object[] arguments) {
        return new ELException(
                "the method " + method + " of " + of + " with " + arguments.length + " arguments is not supported");
    }

    /** Returns what Python's method of a mapping returns, that of {@code get} in an optional; null where it is none of these. */
    private static @Nullable Object ofMapping(Map<?, ?> fields, String method, Object[] arguments) {
        return switch (method) {
            case "items/0" -> items(fields);
            case "keys/0" -> new PyList(new ArrayList<>(fields.keySet()));
            case "values/0" -> new PyList(new ArrayList<>(fields.values()));
            case "get/1" -> Optional.ofNullable(fields.get(String.valueOf(arguments[0])));
            case "get/2" -> {
                String name = String.valueOf(arguments[0]);
                yield Optional.ofNullable(fields.containsKey(name) ? fields.get(name) : arguments[1]);
            }
            default -> null;
        };
    }

    /** Returns pairs of names and values. */
    static PyList items(Map<?, ?> fields) {
        List<Object> pairs = new ArrayList<>();
        fields.forEach((name, value) -> pairs.add(new PyList(new ArrayList<>(Arrays.asList(name, value)))));
        return new PyList(pairs);
    }

    /** Leaves out characters at the beginning, 1, the end, 2, or both. */
    static String stripped(String text, String characters, int ends) {
        int begin = 0;
        int end = text.length();
        while ((ends & 1) != 0 && begin < end && characters.indexOf(text.charAt(begin)) >= 0) {
            begin++;
        }
        while ((ends & 2) != 0 && end > begin && characters.indexOf(text.charAt(end - 1)) >= 0) {
            end--;
        }
        return text.substring(begin, end);
    }

    private static String replaced(String text, String old, String by) {
        ensureReplaceable(text, old, by);
        return text.replace(old, by);
    }

    /** Refuses what would make a text that is too long. */
    static void ensureReplaceable(String text, String old, String by) {
        long places = old.isEmpty() ? text.length() + 1L : 0;
        for (int at = text.indexOf(old); !old.isEmpty() && at >= 0; at = text.indexOf(old, at + old.length())) {
            places++;
        }
        if (text.length() + places * (by.length() - old.length()) > JinjaLimits.TEXT) {
            throw new ELException(
                    "replace: expected a text of up to " + JinjaLimits.TEXT + " characters, got a longer one");
        }
    }

    private static List<String> split(String text, String separator) {
        if (separator.isEmpty()) {
            throw new ELException("split: expected a separator, got an empty text");
        }
        List<String> parts = new ArrayList<>();
        int from = 0;
        for (int at = text.indexOf(separator); at >= 0; at = text.indexOf(separator, from)) {
            parts.add(text.substring(from, at));
            from = at + separator.length();
            if (parts.size() > JinjaLimits.MEMBERS) {
                throw new ELException("split: expected up to " + JinjaLimits.MEMBERS + " parts, got more");
            }
        }
        parts.add(text.substring(from));
        return parts;
    }

    @Override
    public @Nullable Object getValue(ELContext context, @Nullable Object base, @Nullable Object property) {
        if (base instanceof ForLoop loop && ("previtem".equals(property) || "nextitem".equals(property))) {
            context.setPropertyResolved(true);
            return limits.neighbour(loop, "previtem".equals(property) ? -1 : 1);
        }
        if (!(base instanceof CharSequence text)) {
            return null;
        }
        // Any name is not defined: a template may ask whether a text is a mapping that has it.
        context.setPropertyResolved(property instanceof String || property instanceof Number);
        String name = String.valueOf(property);
        long at = INDEX.matcher(name).matches() ? Long.parseLong(name) : Long.MAX_VALUE;
        long from = at < 0 ? at + text.length() : at;
        return from >= 0 && from < text.length() ? String.valueOf(text.charAt((int) from)) : null;
    }

    @Override
    public @Nullable Class<?> getType(ELContext context, @Nullable Object base, @Nullable Object property) {
        return null;
    }

    @Override
    public void setValue(ELContext context, @Nullable Object base, @Nullable Object property, @Nullable Object value) {}

    @Override
    public boolean isReadOnly(ELContext context, @Nullable Object base, @Nullable Object property) {
        return true;
    }

    @Override
    public @Nullable Iterator<FeatureDescriptor> getFeatureDescriptors(ELContext context, @Nullable Object base) {
        return null;
    }

    @Override
    public @Nullable Class<?> getCommonPropertyType(ELContext context, @Nullable Object base) {
        return null;
    }
}
