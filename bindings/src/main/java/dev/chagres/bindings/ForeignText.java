package dev.chagres.bindings;

/**
 * Text that comes from outside (files, options, environment variables, native libraries) as messages show it: a control character
 * would act on the terminal, and a text of 100,000 characters would hide the message.
 *
 * <p>Characters that are not visible become an escape such as {@code \}{@code u001b}: control and format characters, line and paragraph
 * separators, halves of surrogate pairs. A text that is too long ends in {@code … (100000 characters)}. Text that went through these
 * methods goes through them again unchanged, unless it has become too long.
 *
 * <p>Threading: thread-safe.
 */
public final class ForeignText {
    private static final int MOST_QUOTED = 200;
    private static final int MOST_PLAIN = 1000;
    private static final int MOST_OF_LINES = 20_000;

    private ForeignText() {}

    /** Returns one line, in quotation marks, of at most 200 of the text's characters: for names and values. */
    public static String quoted(String text) {
        String rest = rest(text, MOST_QUOTED);
        return "\"" + visible(text, MOST_QUOTED, "") + (rest.isEmpty() ? "\"" : "…\"" + rest);
    }

    /** Returns one line, of at most 1,000 of the text's characters: for paths, and for texts that need no quotation marks. */
    public static String plain(Object text) {
        return shortened(String.valueOf(text), MOST_PLAIN, "");
    }

    /** Returns at most 20,000 of the text's characters, with its line feeds and tabs: for whole messages, and for texts of libraries. */
    public static String lines(String text) {
        return shortened(text, MOST_OF_LINES, "\n\t");
    }

    private static String shortened(String text, int most, String kept) {
        String rest = rest(text, most);
        return visible(text, most, kept) + (rest.isEmpty() ? "" : "…" + rest);
    }

    private static String rest(String text, int most) {
        return text.length() > most ? " (" + text.length() + " characters)" : "";
    }

    /** {@code kept}: characters that are no letters and stay all the same. */
    private static String visible(String text, int most, String kept) {
        StringBuilder shown = new StringBuilder();
        for (int i = 0, next; i < Math.min(text.length(), most); i = next) {
            int character = text.codePointAt(i);
            next = i + Character.charCount(character);
            if (isVisible(character) || kept.indexOf(character) >= 0) {
                shown.appendCodePoint(character);
            } else {
                text.substring(i, next).chars().forEach(half -> shown.append("\\u%04x".formatted(half)));
            }
        }
        return shown.toString();
    }

    private static boolean isVisible(int character) {
        return switch (Character.getType(character)) {
            case Character.CONTROL,
                    Character.FORMAT,
                    Character.LINE_SEPARATOR,
                    Character.PARAGRAPH_SEPARATOR,
                    Character.SURROGATE -> false;
            default -> true;
        };
    }
}
