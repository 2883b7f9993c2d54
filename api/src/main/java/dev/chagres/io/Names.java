package dev.chagres.io;

import java.nio.charset.StandardCharsets;

/** Names and other texts in headers: which are allowed. */
final class Names {
    /** The field of a header that holds the metadata, and so the one name that no tensor can have. */
    static final String METADATA = "__metadata__";

    /** Longer names than PyTorch's modules ever have; a header of nothing but one name is junk. */
    static final int MAX_LENGTH = 1 << 16;

    private Names() {}

    /** Returns whether UTF-8 can hold the text: Java strings may have halves of surrogate pairs. */
    static boolean isUnicode(String text) {
        return StandardCharsets.UTF_8.newEncoder().canEncode(text);
    }
}
