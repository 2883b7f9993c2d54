package dev.chagres.models.text;

import dev.chagres.bindings.ForeignText;
import java.nio.file.Path;
import org.jspecify.annotations.Nullable;

/**
 * A file of text or of a tokenizer that cannot be used: its message is one line, {@code FILE:LINE: what is wrong}, or {@code FILE: what is
 * wrong} where no line is to blame.
 *
 * <p>Threading: immutable.
 */
public final class TextException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    TextException(Path file, String problem, @Nullable Throwable cause) {
        super(ForeignText.plain(file.toString()) + ": " + ForeignText.plain(problem), cause);
    }

    TextException(Path file, long line, String problem, @Nullable Throwable cause) {
        super(ForeignText.plain(file.toString()) + ":" + line + ": " + ForeignText.plain(problem), cause);
    }
}
