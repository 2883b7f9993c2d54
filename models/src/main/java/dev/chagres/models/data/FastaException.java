package dev.chagres.models.data;

import dev.chagres.bindings.ForeignText;

/**
 * A FASTA file that cannot be used: its text is one line, {@code FILE:LINE: what is wrong}, or {@code FILE: what is wrong}
 * where no line is to blame.
 *
 * <p>Threading: immutable.
 */
public final class FastaException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    FastaException(String file, long line, String problem) {
        super(ForeignText.plain(file) + ":" + line + ": " + ForeignText.plain(problem));
    }

    FastaException(String file, String problem) {
        super(ForeignText.plain(file) + ": " + ForeignText.plain(problem));
    }

    FastaException(String file, String problem, Throwable cause) {
        super(ForeignText.plain(file) + ": " + ForeignText.plain(problem), cause);
    }
}
