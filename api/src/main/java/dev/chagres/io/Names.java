package dev.chagres.io;

import java.nio.charset.StandardCharsets;

/** Names and other texts in headers: which are allowed, and how messages show them. */
final class Names {
    /** The field of a header that holds the metadata, and so the one name that no tensor can have. */
    static final String METADATA = "__metadata__";

    /** Longer names than PyTorch's modules ever have; a header of nothing but one name is junk. */
    static final int MAX_LENGTH = 1 << 16;

    private static final int SHOWN_CHARACTERS = 200;

    private Names() {}

    /** Returns whether UTF-8 can hold the text: Java strings may have halves of surrogate pairs. */
    static boolean isUnicode(String text) {
        return StandardCharsets.UTF_8.newEncoder().canEncode(text);
    }

    /** Returns the text in quotation marks, without control characters, shortened where it is very long. */
    static String quoted(String text) {
        boolean isLong = text.length() > SHOWN_CHARACTERS;
        StringBuilder shown = new StringBuilder("\"");
        text.chars().limit(SHOWN_CHARACTERS).forEach(character -> {
            if (Character.isISOControl(character) || Character.isSurrogate((char) character)) {
                shown.append("\\u%04x".formatted(character));
            } else {
                shown.append((char) character);
            }
        });
        return shown.append(isLong ? "\" and " + (text.length() - SHOWN_CHARACTERS) + " characters more" : "\"")
                .toString();
    }
}
