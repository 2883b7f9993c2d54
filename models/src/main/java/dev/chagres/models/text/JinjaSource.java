package dev.chagres.models.text;

import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/**
 * The source of a template in words that the library reads as Jinja does: other words of the same meaning, in code alone.
 *
 * <p>Threading: immutable.
 *
 * @param text the template in these words
 * @param names filters and tests that it has, of which the library passes over those that it does not know
 */
record JinjaSource(String text, List<Name> names) {
    /** A name behind a bar, or behind {@code is}, and its line from 1. */
    record Name(Kind kind, String name, int line) {}

    /** What a name is of. */
    enum Kind {
        FILTER,
        TEST
    }

    private static final Pattern FILTER = Pattern.compile("\\|\\s*(\\w+)");
    private static final Pattern TEST = Pattern.compile("\\bis\\s+(?:not\\s+)?(\\w+)");

    /** A named argument that is a filter's result and a number more or less: the library ends it before the sign. */
    private static final Pattern SUM = Pattern.compile("=\\s*([\\w.]+\\s*\\|\\s*\\w+\\s*[-+]\\s*\\d+)\\s*(?=[,)])");

    /** A list from its end, which the library has as a filter alone. */
    private static final Pattern REVERSED = Pattern.compile("([\\w.]+)\\[::-1]");

    /** {@code not} of a test, which the library takes for the test of {@code not}. */
    private static final Pattern NOT =
            Pattern.compile("\\bnot\\s+([\\w.]+(?:\\[[^\\[\\]]*])*(?:\\.[\\w.]+)*)\\s+is\\s+(?!not\\b)");

    /** Stands for a text in quotes. */
    private static final char TEXT = '\uE0C3';

    /** Returns the same template for the library. */
    static JinjaSource of(String source) {
        // Jinja reads all ends of lines as LF, and leaves out one at the end.
        String lines = source.replace("\r\n", "\n").replace('\r', '\n');
        String whole = lines.endsWith("\n") ? lines.substring(0, lines.length() - 1) : lines;
        StringBuilder all = new StringBuilder();
        List<Name> names = new ArrayList<>();
        int from = 0;
        while (from < whole.length()) {
            int begin = whole.indexOf('{', from);
            if (begin < 0 || begin + 1 == whole.length()) {
                break;
            }
            all.append(whole, from, begin);
            char kind = whole.charAt(begin + 1);
            int end;
            if (kind == '#') {
                end = whole.indexOf("#}", begin + 2);
                end = end < 0 ? whole.length() : end + 2;
                all.append(whole, begin, end);
            } else if (kind == '{' || kind == '%') {
                end = code(whole, begin, kind == '{' ? "}}" : "%}", all, names);
            } else {
                end = begin + 1;
                all.append('{');
            }
            from = end;
        }
        return new JinjaSource(all.append(whole, from, whole.length()).toString(), List.copyOf(names));
    }

    /** Adds what is from {@code begin} to {@code end}, in other words, and returns where that is. */
    private static int code(String whole, int begin, String end, StringBuilder all, List<Name> names) {
        List<String> texts = new ArrayList<>();
        StringBuilder code = new StringBuilder();
        int at = begin;
        while (at < whole.length() && (at < begin + 2 || !whole.startsWith(end, at))) {
            char letter = whole.charAt(at);
            int next = letter == '\'' || letter == '"' ? behindText(whole, at) : at + 1;
            if (next > at + 1) {
                texts.add(whole.substring(at, next));
                code.append(TEXT);
            } else {
                code.append(letter);
            }
            at = next;
        }
        int line = 1
                + (int) whole.substring(0, begin).chars().filter(c -> c == '\n').count();
        FILTER.matcher(code).results().forEach(found -> names.add(new Name(Kind.FILTER, found.group(1), line)));
        TEST.matcher(code).results().forEach(found -> names.add(new Name(Kind.TEST, found.group(1), line)));
        String other = SUM.matcher(code).replaceAll("=($1)");
        other = REVERSED.matcher(other).replaceAll("($1|reverse)");
        other = NOT.matcher(other).replaceAll("$1 is not ");
        int text = 0;
        for (char letter : other.toCharArray()) {
            if (letter == TEXT) {
                all.append(texts.get(text++));
            } else {
                all.append(letter);
            }
        }
        return at;
    }

    /** Returns what is behind a text in quotes. */
    private static int behindText(String whole, int begin) {
        for (int i = begin + 1; i < whole.length(); i++) {
            if (whole.charAt(i) == '\\') {
                i++;
            } else if (whole.charAt(i) == whole.charAt(begin)) {
                return i + 1;
            }
        }
        return whole.length();
    }
}
