package dev.chagres.models.text;

import java.beans.FeatureDescriptor;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import jinjava.javax.el.ELContext;
import jinjava.javax.el.ELException;
import jinjava.javax.el.ELResolver;
import org.jspecify.annotations.Nullable;

/**
 * Python's methods of texts. Any other one is refused, so that none of Java's is called by the same name.
 *
 * <p>Threading: thread-safe.
 */
final class PythonText extends ELResolver {
    private static final String WHITE = " \t\n\r\u000b\f\u001c\u001d\u001e\u001f\u0085\u00a0";

    @Override
    public @Nullable Object invoke(
            ELContext context, @Nullable Object base, @Nullable Object method, Class<?>[] types, Object[] arguments) {
        if (!(base instanceof CharSequence) || method == null) {
            return null;
        }
        context.setPropertyResolved(true);
        String text = base.toString();
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
            default ->
                throw new ELException(
                        "the method " + method + " of a text with " + texts.length + " arguments is not supported");
        };
    }

    /** Leaves out characters at the beginning, 1, the end, 2, or both. */
    private static String stripped(String text, String characters, int ends) {
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
        long places = old.isEmpty() ? text.length() + 1L : 0;
        for (int at = text.indexOf(old); !old.isEmpty() && at >= 0; at = text.indexOf(old, at + old.length())) {
            places++;
        }
        if (text.length() + places * (by.length() - old.length()) > JinjaLimits.TEXT) {
            throw new ELException(
                    "replace: expected a text of up to " + JinjaLimits.TEXT + " characters, got a longer one");
        }
        return text.replace(old, by);
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
        }
        parts.add(text.substring(from));
        return parts;
    }

    /** Returns a text in quotes, as {@code json.dumps(text, ensure_ascii=False)}. */
    static String json(CharSequence text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (int i = 0; i < text.length(); i++) {
            char letter = text.charAt(i);
            switch (letter) {
                case '"' -> quoted.append("\\\"");
                case '\\' -> quoted.append("\\\\");
                case '\n' -> quoted.append("\\n");
                case '\r' -> quoted.append("\\r");
                case '\t' -> quoted.append("\\t");
                case '\b' -> quoted.append("\\b");
                case '\f' -> quoted.append("\\f");
                default -> quoted.append(letter < ' ' ? String.format(Locale.ROOT, "\\u%04x", (int) letter) : letter);
            }
        }
        return quoted.append('"').toString();
    }

    @Override
    public @Nullable Object getValue(ELContext context, @Nullable Object base, @Nullable Object property) {
        return null;
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
