package dev.chagres.trainer;

/**
 * Options ask for what cannot be done with the file that they name: other ones can.
 *
 * <p>Threading: immutable.
 */
final class WrongOptionException extends TrainingException {
    private static final long serialVersionUID = 1L;

    WrongOptionException(String message) {
        super(message);
    }
}
