package dev.chagres.samples.data;

/**
 * A FASTA file that cannot be used: its text is one line, {@code FILE:LINE: what is wrong}, or {@code FILE: what is wrong}
 * where no line is to blame.
 *
 * <p>Threading: immutable.
 */
public final class FastaException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    FastaException(String file, long line, String problem) {
        super(file + ":" + line + ": " + problem);
    }

    FastaException(String file, String problem) {
        super(file + ": " + problem);
    }

    FastaException(String file, String problem, Throwable cause) {
        super(file + ": " + problem, cause);
    }
}
