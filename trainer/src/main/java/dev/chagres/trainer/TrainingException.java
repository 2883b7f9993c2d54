package dev.chagres.trainer;

import dev.chagres.bindings.ForeignText;

/**
 * Training cannot begin or go on, for a reason that one line tells the user.
 *
 * <p>Threading: immutable.
 */
public sealed class TrainingException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    TrainingException(String message) {
        super(ForeignText.lines(message));
    }

    TrainingException(String message, Throwable cause) {
        super(ForeignText.lines(message), cause);
    }

    /** Options ask for what cannot be done with the file that they name: other ones can. */
    static final class WrongOption extends TrainingException {
        private static final long serialVersionUID = 1L;

        WrongOption(String message) {
            super(message);
        }
    }
}
