package dev.chagres.trainer;

import dev.chagres.bindings.ForeignText;

/**
 * Training cannot begin or go on, for a reason that one line tells the user.
 *
 * <p>Threading: immutable.
 */
sealed class TrainingException extends RuntimeException permits WrongOptionException {
    private static final long serialVersionUID = 1L;

    TrainingException(String message) {
        super(ForeignText.lines(message));
    }

    TrainingException(String message, Throwable cause) {
        super(ForeignText.lines(message), cause);
    }
}
