package dev.chagres.models.text;

import java.nio.CharBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The source of a template in words that the library reads as Jinja does: other words of the same meaning, in code alone.
 *
 * <p>Threading: immutable.
 *
 * @param text the template in these words
 * @param conditions of loops, to which {@link #WHERE} has the number
 * @param names filters and tests that it has, of which the library passes over those that it does not know
 */
record JinjaSource(String text, List<Name> names, List<String> conditions) {
    /** The filter that stands for the condition of a loop. */
    static final String WHERE = "chagres_where";

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

    /** {@code not} before something. */
    private static final Pattern NEGATION = Pattern.compile("(?<!\\bis\\s)\\bnot\\s++(?!in\\b)");

    /** What the library itself puts into expressions. */
    private static final Pattern INTERNAL = Pattern.compile("____int3rpr3t3r____|\\b(?:filter|exptest):");

    /** Most negations in a tag: each is read again with those behind it. */
    private static final int NEGATIONS = 100;

    private static final Pattern COMPARISON = Pattern.compile("[=!<>]=|[<>]|\\s(?:is|in|not\\s++in)\\s");
    /** What ends an expression behind {@code not}. */
    private static final Pattern BEHIND_NOT = Pattern.compile("\\s++(?:and|or|if|else)\\b|[,:]|\\s*+-?+$");

    private static final Pattern LOOP = Pattern.compile("\\{%[-+]?+\\s*+for\\s++([\\w\\s,]+?)\\s++in\\s++");
    private static final Pattern OPERATOR = Pattern.compile("[-+*/~%<>=!]|\\s(?:and|or|not|is|in)\\s");
    private static final Pattern CONDITION = Pattern.compile("\\s++if\\b");

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
        List<String> conditions = new ArrayList<>();
        int from = 0;
        int line = 1;
        int depth = 0;
        while (from < whole.length()) {
            int begin = whole.indexOf('{', from);
            if (begin < 0 || begin + 1 == whole.length()) {
                break;
            }
            char kind = whole.charAt(begin + 1);
            all.append(whole, from, kind == '%' || kind == '#' ? begin - blanks(whole, from, begin) : begin);
            line += lines(whole, from, begin);
            int end;
            if (kind == '#') {
                end = whole.indexOf("#}", begin + 2);
                end = end < 0 ? whole.length() : end + 2;
                all.append(whole, begin, end);
            } else if (kind == '{' || kind == '%') {
                end = code(file, whole, begin, line, all, names, conditions);
                depth += kind == '%' ? deeper(whole, begin, end) : 0;
                ensureDepth(file, line, "tags", depth);
            } else {
                end = begin + 1;
                all.append('{');
            }
            line += lines(whole, begin, end);
            from = end;
        }
        return new JinjaSource(
                all.append(whole, from, whole.length()).toString(), List.copyOf(names), List.copyOf(conditions));
    }

    /** Returns how many blanks stand between the beginning of a line and a tag or comment, which Jinja leaves out; 0 where other text does. */
    private static int blanks(String whole, int from, int tag) {
        int begin = tag;
        while (begin > from && (whole.charAt(begin - 1) == ' ' || whole.charAt(begin - 1) == '\t')) {
            begin--;
        }
        boolean keeps = tag + 2 < whole.length() && whole.charAt(tag + 2) == '+';
        return !keeps && (begin == 0 || whole.charAt(begin - 1) == '\n') ? tag - begin : 0;
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
    private static int code(
            Path file,
            String whole,
            int begin,
            int line,
            StringBuilder all,
            List<Name> names,
            List<String> conditions) {
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
            } else if (letter == TEXT || (Character.isWhitespace(letter) && " \t\n\f\u000b".indexOf(letter) < 0)) {
                throw new TextException(
                        file,
                        line,
                        "expected the character U+%04X in quotes alone, got it in code".formatted((int) letter),
                        null);
            } else {
                code.append(letter);
                depth += "([{".indexOf(letter) >= 0 ? 1 : ")]}".indexOf(letter) >= 0 ? -1 : 0;
                ensureDepth(file, line, "brackets", depth);
            }
            at = next;
        }
        if (INTERNAL.matcher(code).find()) {
            throw new TextException(file, line, "cannot be rendered: a name of the library is not supported", null);
        }
        if (NEGATION.matcher(code).results().limit(NEGATIONS + 1L).count() > NEGATIONS) {
            throw new TextException(file, line, "expected up to " + NEGATIONS + " not in a tag, got more", null);
        }
        FILTER.matcher(code).results().forEach(found -> names.add(new Name(Kind.FILTER, found.group(1), line)));
        TEST.matcher(code).results().forEach(found -> names.add(new Name(Kind.TEST, found.group(1), line)));
        String other = SUM.matcher(code).replaceAll("=($1)");
        other = REVERSED.matcher(other).replaceAll("($1|reverse)");
        other = NOT.matcher(other).replaceAll("$1 is not ");
        other = negated(other);
        Iterator<String> quoted = texts.iterator();
        Matcher loop = LOOP.matcher(other);
        int condition = loop.lookingAt() ? conditionOf(other, loop.end()) : -1;
        if (condition < 0) {
            all.append(restored(other, quoted));
            return at;
        }
        String tail = other.endsWith("-") ? "-" : "";
        String members = other.substring(loop.end(), condition);
        all.append(restored(
                        other.substring(0, loop.end()) + (hasOperator(members) ? "(" + members + ")" : members),
                        quoted))
                .append("|" + WHERE + "('" + conditions.size() + "', '"
                        + loop.group(1).strip() + "') ")
                .append(tail);
        conditions.add(restored(other.substring(condition, other.length() - tail.length()), quoted)
                .strip()
                .substring(2)
                .strip());
        return at;
    }

    private static String restored(String code, Iterator<String> texts) {
        StringBuilder all = new StringBuilder();
        for (char letter : code.toCharArray()) {
            if (letter == TEXT) {
                all.append(texts.next());
            } else {
                all.append(letter);
            }
        }
        return all.toString();
    }

    /** Returns whether an expression needs brackets before a filter. */
    private static boolean hasOperator(String expression) {
        int depth = 0;
        for (int i = 0; i < expression.length(); i++) {
            char letter = expression.charAt(i);
            depth += "([{".indexOf(letter) >= 0 ? 1 : ")]}".indexOf(letter) >= 0 ? -1 : 0;
            if (depth == 0
                    && OPERATOR.matcher(expression)
                            .region(i, expression.length())
                            .lookingAt()) {
                return true;
            }
        }
        return false;
    }

    /** Returns where the condition of a loop begins, with {@code if}; -1 where it has none. */
    private static int conditionOf(String loop, int from) {
        int depth = 0;
        for (int i = from; i < loop.length(); i++) {
            char letter = loop.charAt(i);
            depth += "([{".indexOf(letter) >= 0 ? 1 : ")]}".indexOf(letter) >= 0 ? -1 : 0;
            if (depth == 0 && CONDITION.matcher(loop).region(i, loop.length()).lookingAt()) {
                return i;
            }
        }
        return -1;
    }

    /** Puts brackets around comparisons behind {@code not}, which the library would take for comparisons with what is not. */
    private static String negated(String code) {
        StringBuilder other = new StringBuilder(code);
        List<MatchResult> nots = NEGATION.matcher(code).results().toList();
        for (MatchResult each : nots.reversed()) {
            int end = each.end();
            int depth = 0;
            boolean compares = false;
            for (; end < other.length(); end++) {
                char letter = other.charAt(end);
                depth += "([{".indexOf(letter) >= 0 ? 1 : ")]}".indexOf(letter) >= 0 ? -1 : 0;
                if (depth < 0
                        || (depth == 0
                                && BEHIND_NOT
                                        .matcher(other)
                                        .region(end, other.length())
                                        .lookingAt())) {
                    break;
                }
                compares |= depth == 0
                        && COMPARISON.matcher(other).region(end, other.length()).lookingAt();
            }
            if (compares) {
                other.insert(end, ')').insert(each.end(), '(');
            }
        }
        return other.toString();
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
