package dev.chagres.models.text;

import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * Values as Python writes them: {@code str}, and {@code json.dumps}.
 *
 * <p>Threading: one thread.
 */
final class PythonValue {
    /**
     * How JSON is written.
     *
     * @param indent before the members of an object or a list, once for each that they are in; null for all in one line
     * @param between members
     * @param behind names
     */
    record Form(boolean ascii, @Nullable String indent, String between, String behind, boolean sorted) {
        static final Form PLAIN = new Form(false, null, ", ", ": ", false);
    }

    private final StringBuilder text = new StringBuilder();
    private final @Nullable Form form;

    /** Of JSON; of {@code repr} where there is no form. */
    private PythonValue(@Nullable Form form) {
        this.form = form;
    }

    /** Returns {@code json.dumps(value, …)}. */
    static String json(@Nullable Object value, Form form) {
        return new PythonValue(form).add(value, 0).text.toString();
    }

    /** Returns {@code str(value)} of a number, a boolean, a list or a mapping; null of anything else. */
    static @Nullable String text(Object value) {
        return switch (value) {
            case Boolean _, Double _, Float _, Collection<?> _, Map<?, ?> _ ->
                new PythonValue(null).add(value, 0).text.toString();
            default -> null;
        };
    }

    private PythonValue add(@Nullable Object value, int depth) {
        if (depth > ChatValues.DEPTH) {
            throw new JinjaTemplate.Refusal(
                    "expected up to " + ChatValues.DEPTH + " lists and mappings inside each other, got more");
        }
        switch (value) {
            case null -> text.append(form == null ? "None" : "null");
            case Boolean flag -> text.append(form == null ? flag ? "True" : "False" : flag.toString());
            case Double number -> addReal(number);
            case Float number -> addReal(number);
            case Number number -> text.append(number);
            case Map<?, ?> fields -> addObject(fields, depth);
            case Collection<?> all -> addList(all, depth);
            default -> addText(value.toString());
        }
        if (text.length() > JinjaLimits.TEXT) {
            throw new JinjaTemplate.Refusal(
                    "expected a text of up to " + JinjaLimits.TEXT + " characters, got a longer one");
        }
        return this;
    }

    private void addReal(double number) {
        if (!Double.isFinite(number)) {
            String name = Double.isNaN(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
            text.append(form == null ? name.toLowerCase(Locale.ROOT).replace("inity", "") : name);
            return;
        }
        BigDecimal shortest = shortest(Math.abs(number));
        int exponent = shortest.signum() == 0 ? 0 : shortest.precision() - shortest.scale() - 1;
        text.append(1 / number < 0 || number < 0 ? "-" : "");
        if (exponent >= -4 && exponent < 16) {
            String plain = shortest.toPlainString();
            text.append(plain).append(plain.indexOf('.') < 0 ? ".0" : "");
            return;
        }
        String digits = shortest.unscaledValue().toString();
        text.append(digits.charAt(0));
        if (digits.length() > 1) {
            text.append('.').append(digits, 1, digits.length());
        }
        text.append('e').append(exponent < 0 ? '-' : '+');
        text.append(Math.abs(exponent) < 10 ? "0" : "").append(Math.abs(exponent));
    }

    /** Returns the shortest decimal that is read as the number; Java's has two digits at least, also where one says the same. */
    private static BigDecimal shortest(double number) {
        BigDecimal own = new BigDecimal(Double.toString(number)).stripTrailingZeros();
        if (own.precision() == 2) {
            for (RoundingMode direction : List.of(RoundingMode.HALF_EVEN, RoundingMode.DOWN, RoundingMode.UP)) {
                BigDecimal digit = own.round(new MathContext(1, direction)).stripTrailingZeros();
                if (digit.doubleValue() == number) {
                    return digit;
                }
            }
        }
        return own;
    }

    private void addList(Collection<?> all, int depth) {
        text.append('[');
        boolean isFirst = true;
        for (Object each : all) {
            begin(isFirst, depth + 1);
            isFirst = false;
            add(each, depth + 1);
        }
        end(isFirst, depth, ']');
    }

    private void addObject(Map<?, ?> fields, int depth) {
        Map<?, ?> all = fields;
        if (form != null && form.sorted) {
            Map<String, @Nullable Object> sorted = new TreeMap<>(PythonValue::byCodePoints);
            fields.forEach((name, value) -> sorted.put(String.valueOf(name), value));
            all = sorted;
        }
        text.append('{');
        boolean isFirst = true;
        for (Map.Entry<?, ?> field : all.entrySet()) {
            begin(isFirst, depth + 1);
            isFirst = false;
            addText(String.valueOf(field.getKey()));
            text.append(form == null ? ": " : form.behind);
            add(field.getValue(), depth + 1);
        }
        end(isFirst, depth, '}');
    }

    private static int byCodePoints(String a, String b) {
        return Arrays.compare(a.codePoints().toArray(), b.codePoints().toArray());
    }

    private void begin(boolean isFirst, int depth) {
        if (!isFirst) {
            text.append(form == null ? ", " : form.between);
        }
        line(depth);
    }

    private void end(boolean isEmpty, int depth, char bracket) {
        if (!isEmpty) {
            line(depth);
        }
        text.append(bracket);
    }

    private void line(int depth) {
        if (form != null && form.indent != null) {
            text.append('\n').repeat(form.indent, depth);
        }
    }

    private void addText(String value) {
        if (form == null) {
            addQuoted(value);
            return;
        }
        text.append('"');
        for (int i = 0; i < value.length(); i++) {
            char letter = value.charAt(i);
            String escape = switch (letter) {
                case '"' -> "\\\"";
                case '\\' -> "\\\\";
                case '\n' -> "\\n";
                case '\r' -> "\\r";
                case '\t' -> "\\t";
                case '\b' -> "\\b";
                case '\f' -> "\\f";
                default -> letter < ' ' || (form.ascii && letter > '~') ? hex("\\u%04x", letter) : null;
            };
            if (escape == null) {
                text.append(letter);
            } else {
                text.append(escape);
            }
        }
        text.append('"');
    }

    /** {@code repr} of a text. */
    private void addQuoted(String value) {
        char quote = value.indexOf('\'') >= 0 && value.indexOf('"') < 0 ? '"' : '\'';
        text.append(quote);
        value.codePoints().forEach(letter -> {
            switch (letter) {
                case '\\' -> text.append("\\\\");
                case '\n' -> text.append("\\n");
                case '\r' -> text.append("\\r");
                case '\t' -> text.append("\\t");
                default -> {
                    if (letter == quote) {
                        text.append('\\').append(quote);
                    } else if (isPrintable(letter)) {
                        text.appendCodePoint(letter);
                    } else {
                        text.append(hex(letter < 256 ? "\\x%02x" : letter < 1 << 16 ? "\\u%04x" : "\\U%08x", letter));
                    }
                }
            }
        });
        text.append(quote);
    }

    private static String hex(String format, int letter) {
        return String.format(Locale.ROOT, format, letter);
    }

    private static boolean isPrintable(int letter) {
        return letter == ' '
                || switch (Character.getType(letter)) {
                    case Character.CONTROL,
                            Character.FORMAT,
                            Character.SURROGATE,
                            Character.PRIVATE_USE,
                            Character.UNASSIGNED,
                            Character.LINE_SEPARATOR,
                            Character.PARAGRAPH_SEPARATOR,
                            Character.SPACE_SEPARATOR -> false;
                    default -> true;
                };
    }

    /**
     * Returns how {@code tojson} writes what it is given.
     *
     * @param given {@code ensure_ascii}, {@code indent}, {@code separators}, {@code sort_keys}, in this order or by name
     */
    static Form form(Object[] given, Map<String, Object> named) {
        List<String> order = List.of("ensure_ascii", "indent", "separators", "sort_keys");
        @Nullable Object[] values = new Object[order.size()];
        if (given.length > values.length || !order.containsAll(named.keySet())) {
            throw new JinjaTemplate.Refusal(
                    "tojson: expected " + order + ", got " + given.length + " arguments and " + named.keySet());
        }
        System.arraycopy(given, 0, values, 0, given.length);
        named.forEach((name, value) -> values[order.indexOf(name)] = value);
        Object indent = values[1];
        String before = switch (indent) {
            case null -> null;
            case Number number
            when Math.abs(number.longValue()) <= JinjaLimits.WIDTH -> " ".repeat(Math.max(0, number.intValue()));
            case CharSequence letters when letters.length() <= JinjaLimits.WIDTH -> letters.toString();
            default ->
                throw new JinjaTemplate.Refusal(
                        "tojson: expected an indent of up to " + JinjaLimits.WIDTH + ", got " + indent);
        };
        String between = before == null ? ", " : ",";
        String behind = ": ";
        if (values[2] instanceof List<?> two
                && two.size() == 2
                && two.get(0) instanceof String first
                && two.get(1) instanceof String second) {
            between = first;
            behind = second;
        } else if (values[2] != null) {
            throw new JinjaTemplate.Refusal("tojson: expected two texts as separators, got others");
        }
        return new Form(Boolean.TRUE.equals(values[0]), before, between, behind, Boolean.TRUE.equals(values[3]));
    }
}
