package dev.chagres.models.text;

import java.nio.CharBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
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

    private static final Pattern FILTER = Pattern.compile("\\|\\s*+(\\w++)");
    private static final Pattern TEST = Pattern.compile("\\bis\\s++(?:not\\s++)?(\\w++)");

    /** A named argument that is a filter's result and a number more or less: the library ends it before the sign. */
    private static final Pattern SUM =
            Pattern.compile("=\\s*+([\\w.]++\\s*+\\|\\s*+\\w++\\s*+[-+]\\s*+\\d++)\\s*+(?=[,)])");

    /** A list from its end, which the library has as a filter alone. */
    private static final Pattern REVERSED = Pattern.compile("(?<![\\w.])([\\w.]++)\\[::-1]");

    /** {@code not} of a test, which the library takes for the test of {@code not}. */
    private static final Pattern NOT =
            Pattern.compile("\\bnot\\s++([\\w.]++(?:\\[[^\\[\\]]*+][\\w.]*+)*+)\\s++is\\s++(?!not\\b)");

    /** Stands for a text in quotes. */
    private static final char TEXT = '\uE0C3';

    private static final int MOST = 1 << 20;

    /** Most brackets, and most tags, inside each other: what reads and renders them calls itself. */
    private static final int DEPTH = 100;

    private static final Pattern TAG = Pattern.compile("\\{%[-+]?+\\s*+(end)?+(\\w++)");
    private static final Set<String> PAIRED =
            Set.of("if", "for", "macro", "call", "filter", "generation", "block", "autoescape", "raw", "set", "unless");

    /**
     * Returns the same template for the library.
     *
     * @throws TextException when it is too long, or has too much inside each other
     */
    static JinjaSource of(Path file, String source) {
        if (source.length() > MOST) {
            throw new TextException(
                    file, "expected a template of up to " + MOST + " characters, got " + source.length(), null);
        }
        // Jinja reads all ends of lines as LF, and leaves out one at the end.
        String lines = source.replace("\r\n", "\n").replace('\r', '\n');
        String whole = lines.endsWith("\n") ? lines.substring(0, lines.length() - 1) : lines;
        StringBuilder all = new StringBuilder();
        List<Name> names = new ArrayList<>();
        int from = 0;
        int line = 1;
        int depth = 0;
        while (from < whole.length()) {
            int begin = whole.indexOf('{', from);
            if (begin < 0 || begin + 1 == whole.length()) {
                break;
            }
            all.append(whole, from, begin);
            line += lines(whole, from, begin);
            char kind = whole.charAt(begin + 1);
            int end;
            if (kind == '#') {
                end = whole.indexOf("#}", begin + 2);
                end = end < 0 ? whole.length() : end + 2;
                all.append(whole, begin, end);
            } else if (kind == '{' || kind == '%') {
                end = code(file, whole, begin, line, all, names);
                depth += kind == '%' ? deeper(whole, begin, end) : 0;
                ensureDepth(file, line, "tags", depth);
            } else {
                end = begin + 1;
                all.append('{');
            }
            line += lines(whole, begin, end);
            from = end;
        }
        return new JinjaSource(all.append(whole, from, whole.length()).toString(), List.copyOf(names));
    }

    private static int lines(String whole, int begin, int end) {
        return Math.toIntExact(CharBuffer.wrap(whole, begin, end)
                .chars()
                .filter(letter -> letter == '\n')
                .count());
    }

    /** Returns 1 of a tag that another one ends, -1 of that, 0 of others. */
    private static int deeper(String whole, int begin, int end) {
        Matcher tag = TAG.matcher(whole).region(begin, end);
        if (!tag.lookingAt() || !PAIRED.contains(tag.group(2))) {
            return 0;
        }
        boolean isValue =
                tag.group(2).equals("set") && whole.substring(begin, end).indexOf('=') >= 0;
        return tag.group(1) != null ? -1 : isValue ? 0 : 1;
    }

    private static void ensureDepth(Path file, int line, String what, int depth) {
        if (depth > DEPTH) {
            throw new TextException(
                    file, line, "expected up to " + DEPTH + " " + what + " inside each other, got more", null);
        }
    }

    /** Adds the tag or expression that begins at {@code begin}, in other words, and returns where its end stands. */
    private static int code(Path file, String whole, int begin, int line, StringBuilder all, List<Name> names) {
        String end = whole.charAt(begin + 1) == '{' ? "}}" : "%}";
        int depth = 0;
        List<String> texts = new ArrayList<>();
        StringBuilder code = new StringBuilder();
        int at = begin;
        while (at < whole.length() && (at < begin + 2 || !whole.startsWith(end, at))) {
            char letter = whole.charAt(at);
            int next = letter == '\'' || letter == '"' ? behindText(whole, at) : at + 1;
            if (next > at + 1) {
                texts.add(whole.substring(at, next));
                code.append(TEXT);
            } else if (letter == TEXT) {
                throw new TextException(
                        file, line, "expected the character U+E0C3 in quotes alone, got it in code", null);
            } else {
                code.append(letter);
                depth += "([{".indexOf(letter) >= 0 ? 1 : ")]}".indexOf(letter) >= 0 ? -1 : 0;
                ensureDepth(file, line, "brackets", depth);
            }
            at = next;
        }
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
